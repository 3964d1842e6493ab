"""What a request may say: some fields are the server's, and some the engine cannot do.

A field that is dropped or changed is named in the warning that the client gets.
"""

import json
from typing import Any, NoReturn

from slipstream.vllm_plugin.gate.answers import Refusal
from slipstream.vllm_plugin.gate.compiled_constraints import (
    require_affordable_forms,
    require_tokens_left,
)
from slipstream.vllm_plugin.gate.request_constraints import drop_patterns, require_plain_constraints
from slipstream.vllm_plugin.gate.request_fields import keep_known_fields
from slipstream.vllm_plugin.gate.request_limits import (
    CONTAINERS,
    Document,
    require_few_containers,
    require_number,
    require_short_salt,
    require_within_limits,
)
from slipstream.vllm_plugin.gate.settings import Limits, Settings

# vLLM 0.32 refuses the first two while it speculates, and the third ends the engine (vllm#42592).
NOT_WITH_SPECULATION = ("min_p", "logit_bias", "logprob_token_ids")
MEDIA = frozenset(
    {
        *(
            f"{medium}_{form}"
            for medium in ("image", "audio", "video")
            for form in ("url", "embeds")
        ),
        *("image", "image_pil", "input_image", "input_audio", "input_video", "prompt_embeds"),
        *("file", "input_file", "file_data", "file_id", "file_url", "document"),
        *("computer_screenshot", "computer_call_output", "image_generation_call"),
    }
)
SPOKEN = ("messages", "input", "system", "previous_input_messages")
# The fields that end an answer, the one to set first; without any, an answer fills the context.
ANSWER_FIELDS = {
    "/v1/chat/completions": ("max_completion_tokens", "max_tokens"),
    "/v1/completions": ("max_tokens",),
    "/v1/responses": ("max_output_tokens",),
    "/v1/messages": ("max_tokens",),
}
BY_DEFAULT_SHORT = "/v1/completions"
SHORT_TOKENS = 16  # Unless it says null.


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_decoder = json.JSONDecoder(parse_constant=_refuse_constant)


def parse_body(body: bytes, limits: Limits) -> Document:
    """Read the request's JSON object."""
    require_few_containers(body, limits.containers)
    try:
        document = _decoder.decode(body.decode())
    except RecursionError as fault:
        raise Refusal(400, "the body is nested too deep") from fault
    except ValueError as fault:
        raise Refusal(400, f"the body is not JSON: {fault}") from fault
    if not isinstance(document, dict):
        raise Refusal(400, "the body is not a JSON object")
    return document


def apply_policy(document: Document, body: bytes, path: str, settings: Settings) -> list[str]:
    """Refuse or change the document; give what was changed."""
    require_within_limits(document, body, settings.limits)
    warnings = keep_known_fields(document, path)
    require_short_salt(document)
    _require_known_template_arguments(document, settings.template_arguments)
    if settings.text_only:
        _require_text(document)
    warnings += _bound_answer(document, path, settings)
    require_tokens_left(document)
    if settings.constraints == "plain":
        require_plain_constraints(document, settings.limits.grammar_characters)
        warnings += drop_patterns(document, settings.limits.grammar_characters)
        warnings += require_affordable_forms(document, settings.limits.schema_units)
    if settings.speculation:
        warnings += _drop_unsupported(document, settings.unsupported_sampling)
    return warnings


def _require_known_template_arguments(document: Document, known: tuple[str, ...]) -> None:
    field = "chat_template_kwargs"
    given = document.get(field)
    if given is None:
        return
    if not isinstance(given, dict):
        raise Refusal(400, f"{field} is not an object", field=field)
    if unknown := given.keys() - set(known):
        what = f"{field} may hold {', '.join(known)}, and not {min(unknown)[:40]}"
        raise Refusal(400, what, field=field)


def _require_text(document: Document) -> None:
    for field in SPOKEN:
        if (spoken := document.get(field)) is not None and (medium := _find_medium(spoken)):
            raise Refusal(400, f"{medium}: this server takes text only", field=field)


def _find_medium(spoken: Any) -> str | None:
    """Look through the turns and the parts of their content, however deep one holds another."""
    waiting = [spoken]
    while waiting:
        one = waiting.pop()
        if isinstance(one, list):
            waiting += [part for part in one if isinstance(part, CONTAINERS)]
        elif isinstance(one, dict):
            kind = one.get("type")
            if isinstance(kind, str) and kind in MEDIA:
                return kind
            if not MEDIA.isdisjoint(one):
                return min(MEDIA & one.keys())
            waiting += (one.get("content"), one.get("output"))
    return None


def _bound_answer(document: Document, path: str, settings: Settings) -> list[str]:
    most, fields = settings.limits.max_tokens, ANSWER_FIELDS.get(path, ())
    if most is None or not fields:
        return []
    named = [field for field in fields if document.get(field) is not None]
    if not named and (path != BY_DEFAULT_SHORT or fields[0] in document):
        document[fields[0]] = most
        return [f"{fields[0]} set to {most}"]
    changed = []
    for field in named:
        if settings.long_answers == "refuse" or not isinstance(document[field], int | float):
            require_number(document, field, most)
        elif document[field] > most:
            document[field] = most
            changed.append(f"{field} lowered to {most}")
    return changed


def find_longest_answer(document: Document, path: str) -> float | None:
    """Return the most tokens that an answer may have, None if the request does not say."""
    asked = [document.get(field) for field in ANSWER_FIELDS.get(path, ())]
    named = [most for most in asked if isinstance(most, int | float)]
    short = [SHORT_TOKENS] if path == BY_DEFAULT_SHORT and "max_tokens" not in document else []
    return min(named or short, default=None)


def _drop_unsupported(document: Document, policy: str) -> list[str]:
    named = [field for field in NOT_WITH_SPECULATION if document.get(field)]
    if named and policy == "refuse":
        what = f"{' and '.join(named)}: the engine cannot do this while it speculates"
        raise Refusal(400, what, field=named[0])
    for field in named:
        del document[field]
    return [f"{field} dropped: not with speculation" for field in named]
