"""Fields that a client may not set, since they are the server's or the engine cannot use them.

A field that is dropped or changed is named in the warning that the client gets.
"""

import json
from typing import NoReturn

from slipstream.vllm_plugin.gate.answer_lengths import bound_answer
from slipstream.vllm_plugin.gate.answers import Refusal
from slipstream.vllm_plugin.gate.constraints.forms import require_forms, require_tokens_left
from slipstream.vllm_plugin.gate.media import require_pictures, require_text
from slipstream.vllm_plugin.gate.request_fields import keep_known_fields
from slipstream.vllm_plugin.gate.request_limits import (
    Document,
    require_few_containers,
    require_few_inputs,
    require_short_salt,
    require_within_limits,
)
from slipstream.vllm_plugin.gate.request_shapes import require_sound_shapes
from slipstream.vllm_plugin.gate.routes import POOLING, WITHOUT_ENGINE
from slipstream.vllm_plugin.gate.settings import Limits, Settings

# vLLM 0.32 refuses the first two while it speculates, and the third ends the engine (vllm#42592).
NOT_WITH_SPECULATION = ("min_p", "logit_bias", "logprob_token_ids")


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
    """Refuse or change the document; return what was changed."""
    require_within_limits(document, body, settings.limits)
    if path in POOLING:
        require_few_inputs(document, settings.limits)
    require_sound_shapes(document, path)
    warnings = keep_known_fields(document, path)
    require_short_salt(document)
    _require_known_template_arguments(document, settings.template_arguments)
    _require_media(document, body, settings)
    warnings += bound_answer(document, path, settings)
    require_tokens_left(document)
    if settings.constraints == "plain" and path not in WITHOUT_ENGINE:
        require_forms(document)
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


def _require_media(document: Document, body: bytes, settings: Settings) -> None:
    """Refuse media that are not served; what is beside the pictures must keep the usual size."""
    if settings.text_only:
        require_text(document)
        return
    inline = require_pictures(document, settings.media)
    if len(body) - inline > settings.limits.body_bytes:
        what = f"the body beside its pictures is larger than {settings.limits.body_bytes} bytes"
        raise Refusal(413, what)


def _drop_unsupported(document: Document, policy: str) -> list[str]:
    named = [field for field in NOT_WITH_SPECULATION if document.get(field)]
    if named and policy == "refuse":
        what = f"{' and '.join(named)}: the engine cannot do this while it speculates"
        raise Refusal(400, what, field=named[0])
    for field in named:
        del document[field]
    return [f"{field} dropped: not with speculation" for field in named]
