"""What the user specified, parsed once: flags, variables and arguments for the engine.

Everything becomes a typed setting here, whatever its spelling: `--context`, MAX_MODEL_LEN and
`-- --max_model_len 32k` are one value; JSON, dotted keys and `--spec-*` are one speculation. A
value that vLLM would refuse is a `UsageError` that names its flag.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, Self

from pydantic import ValidationError

from slipstream.engines.arguments import ENGINE_HELP, parse_arguments, render_arguments
from slipstream.engines.vllm_methods import METHODS, MethodName
from slipstream.errors import UsageError
from slipstream.planning.settings import (
    FLAGS,
    SPECULATION,
    SPECULATION_KEYS,
    Choice,
    EngineOptions,
    Source,
)
from slipstream.records import Record

Goal = Literal["latency", "throughput", "capacity", "agent"]
PLAIN = "plain"
AFTER_DASHES = "set after --"
# Arguments whose value is, or may be, a file or folder.
PATHS = tuple(
    f"--{name}"
    for name in (
        *("tokenizer", "chat-template", "hf-config-path", "download-dir", "log-config-file"),
        *("ssl-certfile", "ssl-keyfile", "ssl-ca-certs", "allowed-local-media-path"),
        *("tool-parser-plugin", "reasoning-parser-plugin", "io-processor-plugin"),
        *("mm-encoder-fp8-scale-path", "mm-encoder-fp8-scale-save-path"),
    )
)
_PATH_FIELDS = ("model", "generation_config", "uds")
_FIELDS = {flag: name for name, flag in FLAGS.items()}
_PARTS = {key: name for name, key in SPECULATION_KEYS.items()}
_SHORT_FORMS = {
    "--spec-method": "method",
    "--spec-model": "model",
    "--spec-tokens": "num_speculative_tokens",
}


class PlanOptions(Record):
    """The user's part of a plan; what is not in `engine` is left to the planner.

    `method` is None for the best one known; `plain` plans no speculation.
    """

    goal: Goal = "latency"
    method: Choice[MethodName] | None = None
    thinking: Literal["on", "off"] | None = None
    images: bool = False
    # None copies drafts where that was measured to pay.
    copy_drafts: bool | None = None
    # Whether graphs are captured for several draft lengths; None if nobody measured that it pays.
    steer: Choice[bool] | None = None
    # The version of vLLM to plan for, None for the installed one.
    vllm: str | None = None
    engine: EngineOptions = EngineOptions()

    @property
    def speculates(self) -> bool:
        return self.method is None or self.method.value != PLAIN

    def specify(self, engine: EngineOptions) -> Self:
        """Return the options with further engine settings, which win over those here."""
        return self.model_copy(update={"engine": self.engine.override(engine)})

    def rename_paths(self, rename: Callable[[str], str]) -> Self:
        """Return the options with every value that may be a path under another name."""

        def change(choices: Mapping[str, Choice[Any] | None]) -> dict[str, Choice[Any]]:
            return {
                name: replace(choice, value=rename(choice.value))
                for name, choice in choices.items()
                if choice is not None and isinstance(choice.value, str) and choice.value
            }

        engine = self.engine
        changed: dict[str, Any] = change({name: getattr(engine, name) for name in _PATH_FIELDS})
        changed["rest"] = {**engine.rest, **change({flag: engine.rest.get(flag) for flag in PATHS})}
        if engine.speculation is not None:
            drafter = change({"drafter": engine.speculation.drafter})
            changed["speculation"] = engine.speculation.change(**drafter)
        return self.model_copy(update={"engine": engine.change(**changed)})

    def without_speculation(self) -> Self:
        """Return the options for plain decoding; what only drafts need is left out."""
        method = Choice(PLAIN, "user", "requested") if self.speculates else self.method
        engine = self.engine.change(speculation=None, draft_metrics=None)
        changed = {"method": method, "engine": engine, "copy_drafts": None, "steer": None}
        return self.model_copy(update=changed)

    def list_words(self) -> list[str]:
        """Return the words of `slipstream plan TARGET` that these options are read from."""
        flags = {
            "--goal": None if self.goal == "latency" else self.goal,
            "--method": self.method.value if self.method else None,
            "--thinking": self.thinking,
            "--vllm": self.vllm,
        }
        words = [word for flag, value in flags.items() if value for word in (flag, value)]
        words += ["--images"] if self.images else []
        words += ["--steer"] if self.steer and self.steer.source == "user" else []
        if self.copy_drafts is not None:
            words.append("--copy" if self.copy_drafts else "--no-copy")
        engine = render_arguments(self.engine.list_arguments())
        return [*words, "--", *engine] if engine else words


def make_options(
    *,
    goal: Goal = "latency",
    method: MethodName | None = None,
    thinking: Literal["on", "off"] | None = None,
    images: bool = False,
    copy_drafts: bool | None = None,
    steer: bool = False,
    vllm: str | None = None,
    drafter: str | None = None,
    draft_length: int | None = None,
    context: int | None = None,
    users: int | None = None,
    served_name: str | None = None,
    engine: Sequence[str] = (),
    variables: PlanOptions | None = None,
) -> PlanOptions:
    """Return the options of flags, over those of variables; words for the engine win over both."""
    words = read_engine_arguments(engine, "user", AFTER_DASHES)
    _require_one_method(method, drafter, words)
    flags = make_engine_options(
        "user",
        "requested",
        speculation={"drafter": drafter, "length": draft_length},
        context=context,
        sequences=users,
        served_names=None if served_name is None else (served_name,),
    )
    base = variables or PlanOptions()
    chosen: Choice[MethodName] | None = Choice(method, "user", "requested") if method else None
    if method is None and not drafter and not words.speculation:
        chosen = base.method
    options = PlanOptions(
        goal=goal,
        method=chosen,
        thinking=thinking,
        images=images,
        copy_drafts=copy_drafts,
        steer=Choice(True, "user", "requested") if steer else None,
        vllm=vllm,
        engine=base.engine.override(flags).override(words),
    )
    return options if options.speculates else options.without_speculation()


def _require_one_method(
    method: MethodName | None, drafter: str | None, words: EngineOptions
) -> None:
    """Refuse a method beside another one, or beside a drafter that it has no use for."""
    given = [f"--method {method}"] if method else []
    if words.drafting.method or (method == PLAIN and words.speculation):
        given.append("the engine's arguments for speculation")
    if drafter and method in METHODS and METHODS[str(method)].needs == "nothing":
        given.append("--drafter")
    if len(given) > 1:
        raise UsageError(f"{' and '.join(given)} cannot be combined", hint="leave out all but one")


def read_engine_arguments(words: Sequence[str], source: Source, because: str) -> EngineOptions:
    """Parse words for the engine; an explicit None is the same as not given."""
    if not words:
        return EngineOptions()
    given = {flag: value for flag, value in parse_arguments(words).items() if value is not None}
    parts = _gather_speculation(given)
    return make_engine_options(
        source,
        because,
        speculation={_PARTS[key]: value for key, value in parts.items() if key in _PARTS},
        speculation_rest={key: value for key, value in parts.items() if key not in _PARTS},
        rest={flag: value for flag, value in given.items() if flag not in _FIELDS},
        **{_FIELDS[flag]: value for flag, value in given.items() if flag in _FIELDS},
    )


def _gather_speculation(given: dict[str, Any]) -> dict[str, Any]:
    """Take JSON, dotted keys and short forms out, merged; as in vLLM, each key is given once."""
    config = given.pop(SPECULATION, {})
    if not isinstance(config, dict):
        raise UsageError(
            f"{SPECULATION} {config} is not a JSON object",
            hint=f"""{SPECULATION} '{{"method": "dflash", "num_speculative_tokens": 7}}'""",
        )
    parts = {key.replace("-", "_"): value for key, value in config.items()}
    for flag, key in _SHORT_FORMS.items():
        if flag in given and key in parts:
            raise UsageError(
                f"{flag} and {key} of {SPECULATION} cannot be combined",
                hint="leave out all but one",
            )
        if flag in given:
            parts[key] = given.pop(flag)
    return parts


def make_engine_options(
    source: Source,
    because: str,
    *,
    speculation: Mapping[str, Any] | None = None,
    speculation_rest: Mapping[str, Any] | None = None,
    rest: Mapping[str, Any] | None = None,
    names: Mapping[str, str] = FLAGS,
    **settings: Any,
) -> EngineOptions:
    """Return values by field as settings of one source; None is not given.

    A value outside vLLM's ranges is refused under the name that its field has in `names`.
    """

    def choose(values: Mapping[str, Any] | None) -> dict[str, Any]:
        return {
            name: Choice(value, source, because)
            for name, value in (values or {}).items()
            if value is not None
        }

    parts, further = choose(speculation), choose(speculation_rest)
    drafting = {**parts, "rest": further} if parts or further else None
    try:
        return EngineOptions.model_validate(
            {**choose(settings), "rest": choose(rest), "speculation": drafting}
        )
    except ValidationError as fault:
        first, *others = (_describe_fault(entry, names) for entry in fault.errors())
        raise UsageError(first, details=tuple(others), hint=ENGINE_HELP) from fault


def _describe_fault(entry: Mapping[str, Any], names: Mapping[str, str]) -> str:
    message = str(entry["msg"]).removeprefix("Value error, ")
    if entry["loc"] == ("rest",):
        return message
    return f"{_name_field(entry['loc'], names)}: {message}, not {entry['input']}"


def _name_field(path: tuple[int | str, ...], names: Mapping[str, str]) -> str:
    """Return what the user calls the field that a fault was found in."""
    field, *inner = map(str, path)
    if field == "speculation" and inner:
        key = f"{SPECULATION}.{SPECULATION_KEYS.get(inner[0], inner[0])}"
        return names.get(inner[0], key) if names is not FLAGS else key
    return names.get(field, field)
