"""Rules for conversations: parsers of tool calls and reasoning, thinking, sampling, names.

`families.toml` says which parsers read what a family of models writes. A wrong parser is worse
than none: vLLM refuses to start with one that its tokenizer lacks tokens for, and with a reasoning
parser the entire output of a model that does not reason is returned as reasoning.
"""

import tomllib
from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path, PurePath
from typing import Any, Literal

from pydantic import Field, JsonValue

from slipstream.checkpoints.checkpoint import THINKING, ConversationFacts
from slipstream.checkpoints.pairing import Fault, warn
from slipstream.planning.inputs import PlanInputs
from slipstream.planning.settings import FLAGS, Choice, EngineSettings
from slipstream.records import Record

Kind = Literal["tool_parser", "reasoning_parser"]
_FOLDER = Path(__file__).parent
# It reads an answer by the tokenizer's response_template, and goes with no other parser.
_HF = "hf"
_HF_FIELDS = {"tool_parser": "tool_calls", "reasoning_parser": "thinking"}
# A reasoning parser may also be given inside these.
_CONFIGS = ("--reasoning-config", "--structured-outputs-config")
_TOOLS = "tools"
SHOWS_NO_TOOLS = "shows the model no tools"


class Thinking(Record):
    """The arguments of a chat template that switch thinking on and off."""

    on: dict[str, JsonValue]
    off: dict[str, JsonValue]


class Family(Record):
    """What a family of models writes, and which parsers read it; see families.toml."""

    name: str
    classes: tuple[str, ...] = ()
    markers: tuple[str, ...] = ()
    class_decides: bool = False
    encoded: bool = False
    tool_parser: str | None = None
    reasoning_parser: str | None = None
    reasoning_markers: tuple[str, ...] = ()
    needs_thinking_token: bool = False
    thinking: Thinking | None = None
    thinks_by_default: bool = True
    example: str | None = None
    source: str

    def has_class(self, architecture: str | None) -> bool:
        return any(fnmatchcase(architecture or "", pattern) for pattern in self.classes)

    def writes(self, template: str) -> bool:
        return self.encoded or all(text in template for text in self.markers)

    def reasons(self, conversation: ConversationFacts | None, template: str | None) -> bool:
        """Return whether this member of the family writes what the reasoning parser reads."""
        if self.needs_thinking_token and conversation and conversation.has_thinking_token is False:
            return False
        known = template is not None and not self.encoded
        return not known or all(text in str(template) for text in self.reasoning_markers)


class TemplateFault(Record):
    """Text of a chat template that is known to fail somewhere."""

    name: str
    has: tuple[str, ...] = Field(min_length=1)
    message: str
    hint: str
    sources: tuple[str, ...]


@cache
def load_families() -> tuple[Family, ...]:
    rows = tomllib.loads((_FOLDER / "families.toml").read_text())["family"]
    return tuple(Family.model_validate(row) for row in rows)


@cache
def load_template_faults() -> tuple[TemplateFault, ...]:
    rows = tomllib.loads((_FOLDER / "template_faults.toml").read_text())["fault"]
    return tuple(TemplateFault.model_validate(row) for row in rows)


def find_family(architecture: str | None, template: str | None) -> Family | None:
    """Return the family with this class and template, None if none is known."""
    own = [one for one in load_families() if one.has_class(architecture)]
    if template is None:
        return next((one for one in own if one.encoded or one.class_decides), None)
    others = [one for one in load_families() if not one.classes]
    return next((one for one in (*own, *others) if one.writes(template)), None)


def find_template(inputs: PlanInputs) -> str | None:
    """Return what is known of the chat template, None if that is nothing or another was given."""
    conversation = inputs.target.conversation
    replaced = "--chat-template" in inputs.fixed.rest
    return conversation.known_text if conversation and not replaced else None


def _find_family(inputs: PlanInputs) -> Family | None:
    return find_family(inputs.target.architecture, find_template(inputs))


def decide_served_names(inputs: PlanInputs) -> Choice[tuple[str, ...]] | None:
    """Choose the served names: one without a slash, and the full one for models of the hub."""
    target = inputs.target
    short = PurePath(target.name).name
    if short in ("", ".."):
        return None
    names = (short,) if target.source == "folder" else tuple(dict.fromkeys((short, target.name)))
    return Choice(names, "default", "the name that clients use; Claude Code accepts no slash in it")


def decide_conversation(inputs: PlanInputs) -> dict[str, Choice[Any] | None]:
    """Choose what only conversations depend on, by the name of the setting."""
    given = inputs.fixed
    tools = given.tool_parser or _decide_parser(inputs, "tool_parser")
    used = Choice(True, "default", "needed for the parser to be used") if tools else None
    return {
        "tool_parser": tools,
        "auto_tools": given.auto_tools or used,
        "reasoning_parser": given.reasoning_parser or _decide_parser(inputs, "reasoning_parser"),
        "template_arguments": _decide_thinking(inputs) or given.template_arguments,
        "generation_config": given.generation_config or _decide_generation(inputs),
        "generation_overrides": _decide_overrides(inputs) or given.generation_overrides,
    }


def _decide_parser(inputs: PlanInputs, kind: Kind) -> Choice[str] | None:
    given, conversation, family = inputs.fixed, inputs.target.conversation, _find_family(inputs)
    other = given.tool_parser if kind == "reasoning_parser" else given.reasoning_parser
    configured = kind == "reasoning_parser" and any(
        isinstance(choice.value, Mapping) and choice.value.get(kind)
        for flag, choice in given.rest.items()
        if flag in _CONFIGS
    )
    if configured or (other is not None and other.value == _HF):
        return None
    if family is None:
        fields = conversation.response_fields if conversation and other is None else ()
        why = "the tokenizer's response_template describes the answers"
        return Choice(_HF, "checkpoint", why) if _HF_FIELDS[kind] in fields else None
    name: str | None = getattr(family, kind)
    read = kind == "tool_parser" or family.reasons(conversation, find_template(inputs))
    return Choice(name, "checkpoint", _explain(inputs, family, kind)) if name and read else None


def _explain(inputs: PlanInputs, family: Family, kind: Kind) -> str:
    own = family.reasoning_markers if kind == "reasoning_parser" else family.markers
    if family.encoded:
        how = "vLLM builds its prompts in code"
    elif find_template(inputs) is None:
        how = f"by its class {inputs.target.architecture}, as no template was read"
    else:
        how = f"its template has {' and '.join(own)}" if own else "by its class"
    return f"{family.name}: {how} (vLLM's {family.source})"


def _find_switch(inputs: PlanInputs) -> Thinking | None:
    """Return the arguments that switch thinking, None if the template has none."""
    family, template = _find_family(inputs), find_template(inputs)
    if family is None or family.thinking is None:
        return None
    named = template is None or all(name in template for name in family.thinking.off)
    return family.thinking if family.encoded or named else None


def _decide_thinking(inputs: PlanInputs) -> Choice[dict[str, JsonValue]] | None:
    """Add the switch to the template's arguments; a given one wins."""
    wanted, switch, given = inputs.options.thinking, _find_switch(inputs), inputs.fixed
    if wanted is None or switch is None:
        return None
    own = given.template_arguments.value if given.template_arguments else {}
    switched = switch.on if wanted == "on" else switch.off
    return Choice({**switched, **own}, "user", f"--thinking {wanted}")


def _decide_generation(inputs: PlanInputs) -> Choice[str] | None:
    conversation = inputs.target.conversation
    if conversation is None or not conversation.sampling:
        return None
    shown = ", ".join(f"{name} {value:g}" for name, value in conversation.sampling.items())
    because = f"requests that do not set them use the checkpoint's: {shown}"
    ignored = "--generation-config vllm after -- ignores them"
    return Choice("auto", "checkpoint", f"{because}; {ignored}")


def _decide_overrides(inputs: PlanInputs) -> Choice[dict[str, JsonValue]] | None:
    """Remove a default for which vLLM refuses every request while it drafts; a given one wins."""
    conversation, given = inputs.target.conversation, inputs.fixed
    min_p = conversation.sampling.get("min_p", 0) if conversation else 0
    drafts = inputs.method is not None or inputs.fixed.drafting.method is not None
    source = given.generation_config
    if not min_p or not drafts or (source is not None and source.value != "auto"):
        return None
    own = given.generation_overrides.value if given.generation_overrides else {}
    because = f"with its min_p {min_p:g} vLLM would refuse every request while drafts are on"
    return Choice({"min_p": 0.0, **own}, "checkpoint", because)


def list_conversation_notes(inputs: PlanInputs, settings: EngineSettings) -> tuple[str, ...]:
    notes = []
    if settings.tool_parser is None and inputs.options.goal != "agent":
        notes.append(f"{_explain_missing_tools(inputs)}; {_hint_tool_parser(inputs)}")
    if settings.reasoning_parser is None and THINKING in (find_template(inputs) or ""):
        notes.append(f"reasoning stays in the answers: no parser is known for {THINKING} here")
    return tuple(notes)


def _hint_tool_parser(inputs: PlanInputs) -> str:
    conversation = inputs.target.conversation
    template = conversation.known_text if conversation else None
    if template is None or _TOOLS in template:
        return "--enable-auto-tool-choice --tool-call-parser NAME after --"
    return (
        "another model, or --chat-template FILE --enable-auto-tool-choice --tool-call-parser NAME "
        "after --"
    )


def _explain_missing_tools(inputs: PlanInputs) -> str:
    conversation, target = inputs.target.conversation, inputs.target
    if conversation is None:
        why = f"the chat template of {target.name} could not be read"
    elif conversation.known_text is None:
        why = f"{target.name} has no chat template"
    elif _TOOLS not in conversation.known_text:
        why = f"the chat template of {target.name} {SHOWS_NO_TOOLS}"
    else:
        why = f"no family is known for {target.architecture} with this chat template"
    return f"tool calls are not parsed: {why}"


def find_conversation_faults(inputs: PlanInputs, settings: EngineSettings) -> list[Fault]:
    """Warn about a template that is known to fail, and about options that it cannot meet."""
    template, family, wanted = find_template(inputs), _find_family(inputs), inputs.options.thinking
    faults = []
    if template is not None and not (family and family.encoded):
        faults += [
            warn(one.name, f"{one.message} ({', '.join(one.sources)})", one.hint)
            for one in load_template_faults()
            if all(text in template for text in one.has)
        ]
        if _TOOLS not in template and settings.tool_parser:
            example = family.example if family and family.example else "FILE"
            message = f"the chat template of {inputs.target.name} {SHOWS_NO_TOOLS}"
            hint = f"--chat-template {example} after --; vLLM's examples have several"
            faults.append(warn("template-tools", message, hint))
    if settings.tool_parser is None and inputs.options.goal == "agent":
        faults.append(
            warn("tool-parser", _explain_missing_tools(inputs), _hint_tool_parser(inputs))
        )
    if wanted is not None and _find_switch(inputs) is None:
        message = f"--thinking {wanted} has no effect: no switch for it is known"
        hint = f"{FLAGS['template_arguments']} '{{\"NAME\": false}}' after --, as the card says"
        faults.append(warn("thinking", f"{message} in the chat template", hint))
    return faults
