"""Rules for conversations: parsers of tool calls and reasoning, thinking, sampling, names.

A wrong parser is worse than none: vLLM refuses to start with one that its tokenizer lacks tokens
for, and a reasoning parser takes the whole answer of a model that does not reason for reasoning.
"""

from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from slipstream.checkpoints.conversation import THINKING
from slipstream.checkpoints.pairing import Fault
from slipstream.engines.parsers import read_parsers
from slipstream.errors import UsageError
from slipstream.planning.asked import AskedSettings
from slipstream.planning.families import (
    Family,
    find_family,
    load_families,
    load_template_faults,
    reasons,
)
from slipstream.planning.settings import FLAGS, Choice, EngineSettings
from slipstream.planning.situation import Situation

_HF = "hf"
_HF_FIELDS = {"tool_parser": "tool_calls", "reasoning_parser": "thinking"}
_OTHER = {"tool_parser": "reasoning_parser", "reasoning_parser": "tool_parser"}
# A reasoning parser may also be given inside these.
_CONFIGS = ("--reasoning-config", "--structured-outputs-config")
_CALLS = ("tool_call", "function", "invoke", "tools_prefix")
_TOOLS = "tools"


def decide_served_names(situation: Situation) -> Choice[tuple[str, ...]] | None:
    """Choose the served names: one without a slash, and the full one for models of the hub."""
    if (wish := situation.wishes.find("served_name")) is not None:
        return Choice((wish.value,), wish.source, wish.because)
    target = situation.target
    short = PurePath(target.name).name
    if short in ("", ".."):
        return None
    names = (short,) if target.source == "folder" else tuple(dict.fromkeys((short, target.name)))
    return Choice(names, "default", "what clients call it; Claude Code takes no name with a slash")


def decide_conversation(situation: Situation, advised: AskedSettings) -> dict[str, Choice[Any]]:
    """Choose what only conversations depend on; what is given by user or recipe stays open."""
    given = {**advised.settings, **situation.asked.settings}
    rest = {**advised.rest, **situation.asked.rest}
    chosen: dict[str, Choice[Any]] = {}
    for kind in ("tool_parser", "reasoning_parser"):
        if kind not in given and (parser := _decide_parser(situation, kind)) is not None:
            chosen[kind] = parser
    if any(_names_reasoning_parser(rest.get(flag)) for flag in _CONFIGS):
        chosen.pop("reasoning_parser", None)
    for kind in [kind for kind in chosen if _excludes(chosen[kind], given.get(_OTHER[kind]))]:
        del chosen[kind]
    if "tool_parser" in {**chosen, **given} and "auto_tools" not in given:
        chosen["auto_tools"] = Choice(True, "default", "the parser is not used without it")
    decided = {
        "template_arguments": _decide_thinking(situation),
        "generation_config": _decide_generation(situation),
        "generation_overrides": _decide_overrides(situation),
    }
    return {**chosen, **{name: one for name, one in decided.items() if one is not None}}


def _decide_parser(situation: Situation, kind: str) -> Choice[str] | None:
    family, conversation = _find_family(situation), situation.target.conversation
    name: str | None = getattr(family, kind) if family else None
    if family is not None and name is not None:
        tokens = conversation.has_thinking_token if conversation else None
        known = tokens is not False or not family.needs_thinking_token
        if kind == "tool_parser" or (known and reasons(family, find_template(situation))):
            return Choice(name, "checkpoint", _explain(situation, family, kind))
        return None
    if family is None and conversation and _HF_FIELDS[kind] in conversation.response_fields:
        return Choice(_HF, "checkpoint", "the tokenizer's response_template describes the answers")
    return None


def _explain(situation: Situation, family: Family, kind: str) -> str:
    own = family.reasoning_markers if kind == "reasoning_parser" else family.markers
    if family.encoded:
        how = "vLLM writes its prompts by code of its own"
    elif find_template(situation) is None:
        how = f"by its class {situation.target.architecture}, as no template was read"
    else:
        how = f"its template has {' and '.join(own)}" if own else "by its class"
    because = f"{family.name}: {how} (vLLM's {family.source})"
    if kind == "tool_parser" or situation.wishes.thinking or _find_switch(situation) is None:
        return because
    default = "on, --thinking off" if family.thinks_by_default else "off, --thinking on"
    return f"{because}; thinking is {default} changes that"


def find_template(situation: Situation) -> str | None:
    """Return the checkpoint's chat template, None if it is unknown or another was given."""
    conversation = situation.target.conversation
    replaced = "--chat-template" in situation.asked.rest
    return conversation.template if conversation and not replaced else None


def _find_family(situation: Situation) -> Family | None:
    return find_family(situation.target.architecture, find_template(situation))


def _names_reasoning_parser(choice: Choice[Any] | None) -> bool:
    return (
        choice is not None
        and isinstance(choice.value, Mapping)
        and bool(choice.value.get("reasoning_parser"))
    )


def _excludes(parser: Choice[Any], other: Choice[Any] | None) -> bool:
    """Return whether vLLM refuses a pair: `hf` goes with no other parser."""
    return other is not None and _HF in (parser.value, other.value) and parser.value != other.value


def _find_switch(situation: Situation) -> Mapping[str, Mapping[str, Any]] | None:
    """Return the arguments that switch thinking, None if the template has none."""
    family, template = _find_family(situation), find_template(situation)
    if family is None or family.thinking is None:
        return None
    switch = {"on": family.thinking.on, "off": family.thinking.off}
    named = template is None or all(name in template for name in family.thinking.off)
    return switch if family.encoded or named else None


def _decide_thinking(situation: Situation) -> Choice[dict[str, Any]] | None:
    wish, switch = situation.wishes.find("thinking"), _find_switch(situation)
    if wish is None or switch is None:
        return None
    merged = _merge(situation, "template_arguments", switch[wish.value])
    return Choice(merged, wish.source, f"thinking {wish.value} was asked for")


def _merge(situation: Situation, setting: str, decided: Mapping[str, Any]) -> dict[str, Any]:
    """Merge the given value of a setting over what a rule adds to it."""
    asked = situation.asked.settings.get(setting)
    if asked is not None and not isinstance(asked.value, dict):
        raise UsageError(
            f"{FLAGS[setting]} {asked.value} is no JSON object", hint=f"{FLAGS[setting]} '{{}}'"
        )
    return {**decided, **(asked.value if asked else {})}


def _decide_generation(situation: Situation) -> Choice[str] | None:
    conversation = situation.target.conversation
    if conversation is None or not conversation.sampling:
        return None
    shown = ", ".join(f"{name} {value:g}" for name, value in conversation.sampling.items())
    because = f"requests that leave them out get the checkpoint's: {shown}"
    return Choice(
        "auto", "checkpoint", f"{because}; --generation-config vllm after -- ignores them"
    )


def _decide_overrides(situation: Situation) -> Choice[dict[str, Any]] | None:
    """Remove a default for which vLLM refuses every request while it drafts."""
    conversation, asked = situation.target.conversation, situation.asked
    min_p = conversation.sampling.get("min_p", 0) if conversation else 0
    drafts = situation.method is not None or asked.method is not None
    source = asked.settings.get("generation_config")
    if not min_p or not drafts or (source is not None and source.value != "auto"):
        return None
    because = f"with its min_p {min_p:g} vLLM would refuse every request while drafts are on"
    merged = _merge(situation, "generation_overrides", {"min_p": 0.0})
    return Choice(merged, "checkpoint", because)


def list_conversation_notes(situation: Situation, settings: EngineSettings) -> tuple[str, ...]:
    """Return what is not parsed, why, and what to type for it."""
    notes = []
    if settings.tool_parser is None and situation.wishes.goal != "agent":
        notes.append(f"{_explain_missing_tools(situation)}; {_suggest_tool_parser(situation)}")
    template = find_template(situation) or ""
    if settings.reasoning_parser is None and THINKING in template:
        notes.append(
            f"reasoning stays in the answers: the template has {THINKING}, and no parser is known "
            "for it; --reasoning-parser qwen3 after -- may read it"
        )
    return tuple(notes)


def _explain_missing_tools(situation: Situation) -> str:
    conversation, target = situation.target.conversation, situation.target
    if conversation is None:
        why = f"the chat template of {target.name} could not be read"
    elif conversation.template is None:
        why = f"{target.name} has no chat template"
    elif _TOOLS not in conversation.template:
        why = f"the chat template of {target.name} shows the model no tools"
    else:
        why = f"no family is known for {target.architecture} with this chat template"
    return f"tool calls are not parsed: {why}"


def _suggest_tool_parser(situation: Situation) -> str:
    """Suggest the parsers that look for a tag of the template, or else those for its class."""
    template, kind = find_template(situation) or "", situation.target.architecture
    fitting = [
        name
        for name, markers in read_parsers().tool.items()
        if any(one in template and any(word in one for word in _CALLS) for one in markers)
    ]
    if not template:
        own = (one.tool_parser for one in load_families() if one.has_class(kind))
        fitting = list(dict.fromkeys(name for name in own if name))
    one_of = f" ({' or '.join(fitting)} may read it)" if fitting else ""
    return f"--enable-auto-tool-choice --tool-call-parser NAME after --{one_of}"


def find_conversation_faults(situation: Situation, settings: EngineSettings) -> list[Fault]:
    """Warn about a template that is known to fail, and about wishes that it cannot meet."""
    template, wish = find_template(situation), situation.wishes.find("thinking")
    family, faults = _find_family(situation), []
    encoded = family is not None and family.encoded
    if template is not None and not encoded:
        faults += [
            _warn(one.name, f"{one.message} ({', '.join(one.sources)})", one.hint)
            for one in load_template_faults()
            if all(text in template for text in one.has)
        ]
    if template and _TOOLS not in template and not encoded and settings.tool_parser:
        example = family.example if family and family.example else "FILE"
        message = f"the chat template of {situation.target.name} shows the model no tools"
        hint = f"--chat-template {example} after --"
        faults.append(_warn("template-tools", message, f"{hint}; vLLM's examples have several"))
    if settings.tool_parser is None and situation.wishes.goal == "agent":
        suggested = _suggest_tool_parser(situation)
        faults.append(_warn("tool-parser", _explain_missing_tools(situation), suggested))
    if wish is not None and _find_switch(situation) is None:
        message = f"thinking {wish.value} was asked for, and no switch for it is known"
        hint = f"{FLAGS['template_arguments']} '{{\"NAME\": false}}' after --, as the card says"
        faults.append(_warn("thinking", f"{message} in the chat template", hint))
    return faults


def _warn(code: str, message: str, hint: str) -> Fault:
    return Fault(code=code, verdict="warn", message=message, hint=hint)
