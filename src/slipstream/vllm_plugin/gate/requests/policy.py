"""The fields that a request may have, and how long its answer may be.

Those of the APIs and vLLM's for sampling pass. What is for the server to decide is refused. The
engine takes any other field, too, and its next version may find a meaning in it: one that is not
listed is dropped. What is dropped or changed is named in the warning that the client gets.
"""

import json
from typing import NoReturn

from slipstream.serving.access.gate_file import GateSettings
from slipstream.vllm_plugin.gate.answers import Refusal
from slipstream.vllm_plugin.gate.constraints.forms import require_forms, require_tokens_left
from slipstream.vllm_plugin.gate.requests.content import require_images, require_text
from slipstream.vllm_plugin.gate.requests.limits import (
    Document,
    require_few_inputs,
    require_number,
    require_parsable,
    require_short_salt,
    require_within_limits,
)
from slipstream.vllm_plugin.gate.routes import MESSAGES, POOLING, RESPONSES, WITHOUT_ENGINE

# vLLM 0.32 refuses the first two while it speculates, and the third ends the engine (vllm#42592).
NOT_WITH_SPECULATION = ("min_p", "logit_bias", "logprob_token_ids")
SERVER_FIELDS = (
    *("chat_template", "kv_transfer_params", "ec_transfer_params", "vllm_xargs", "prompt_embeds"),
    *("mm_processor_kwargs", "mm_payload", "media_io_kwargs", "return_mm_kwargs"),
    *("priority", "request_id", "session_id", "stream_interval", "routed_experts_prompt_start"),
)
ROUTES = (
    *("/v1/chat/completions", "/v1/completions", RESPONSES),
    *("/v1/messages", "/v1/messages/count_tokens"),
)
# vLLM would keep answers in memory for these, and never remove one.
STORED = ("background", "previous_response_id", "conversation")
_PROMPTS = {
    *("model", "messages", "prompt", "input", "system", "instructions", "suffix", "documents"),
    *("previous_input_messages", "previous_response_id", "conversation", "add_generation_prompt"),
    *("continue_final_message", "add_special_tokens", "chat_template_kwargs", "cache_salt"),
    *("truncate_prompt_tokens", "truncation_side", "truncation", "echo"),
}
_SAMPLING = {
    *("temperature", "top_p", "top_k", "min_p", "seed", "n", "best_of", "logit_bias"),
    *("frequency_penalty", "presence_penalty", "repetition_penalty", "length_penalty"),
    *("use_beam_search", "allowed_token_ids", "bad_words", "repetition_detection"),
    *("watermarking", "response_format", "structured_outputs", "text", "output_config"),
}
_LENGTHS = {
    *("max_tokens", "max_completion_tokens", "max_output_tokens", "min_tokens", "ignore_eos"),
    *("stop", "stop_sequences", "stop_token_ids", "include_stop_str_in_output"),
    *("max_tool_calls", "thinking_token_budget"),
}
_TOOLS = {
    *("tools", "tool_choice", "parallel_tool_calls", "functions", "function_call"),
    *("reasoning", "reasoning_effort", "include_reasoning", "thinking"),
}
_ANSWERS = {
    *("stream", "stream_options", "background", "include", "enable_response_messages"),
    *("logprobs", "top_logprobs", "prompt_logprobs", "logprob_token_ids"),
    *("skip_special_tokens", "spaces_between_special_tokens", "return_tokens_as_token_ids"),
    *("return_token_ids", "return_token_offsets", "return_prompt_text"),
}
# Of hosted services: clients send them, and vLLM knows nothing of most.
_HOSTED = {
    *("user", "metadata", "store", "service_tier", "prompt_cache_key", "prompt_cache_retention"),
    *("safety_identifier", "verbosity", "modalities", "audio", "prediction"),
    *("web_search_options", "container", "context_management", "mcp_servers"),
}
# vllm-router writes these into every body, and vLLM ignores them: no client needs a warning.
_ROUTERS = {"no_stop_trim", "separate_reasoning", "stream_reasoning", "return_hidden_states"}
FIELDS = frozenset(
    {*_PROMPTS, *_SAMPLING, *_LENGTHS, *_TOOLS, *_ANSWERS, *_HOSTED, *_ROUTERS, *SERVER_FIELDS}
)
MOST_DROPPED = 16
# By their numbers, in all prompts of a request; a longer context has more.
MOST_TOKENS = 2**17
# The fields that end an answer, the one to set first; without any, an answer fills the context.
ANSWER_FIELDS = {
    "/v1/chat/completions": ("max_completion_tokens", "max_tokens"),
    "/v1/completions": ("max_tokens",),
    RESPONSES: ("max_output_tokens",),
    MESSAGES: ("max_tokens",),
}
BY_DEFAULT_SHORT = "/v1/completions"
SHORT_TOKENS = 16  # Unless it says null.
# The least that vLLM takes for a budget of thought, which must be less than the answer.
LEAST_BUDGET = 1024


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_decoder = json.JSONDecoder(parse_constant=_refuse_constant)


def parse_body(body: bytes, settings: GateSettings) -> Document:
    require_parsable(body, settings.limits.values, max(MOST_TOKENS, settings.context or 0))
    try:
        document = _decoder.decode(body.decode())
    except RecursionError as fault:
        raise Refusal(400, "the body is nested too deep") from fault
    except ValueError as fault:
        raise Refusal(400, f"the body is not JSON: {fault}") from fault
    if not isinstance(document, dict):
        raise Refusal(400, "the body is not a JSON object")
    return document


def apply_policy(document: Document, body: bytes, path: str, settings: GateSettings) -> list[str]:
    """Refuse or change the document; return what was changed."""
    require_within_limits(document, body, settings.limits)
    if path in POOLING:
        require_few_inputs(document, settings.limits)
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


def _require_media(document: Document, body: bytes, settings: GateSettings) -> None:
    """Refuse media that are not served; what is beside the images must keep the usual size."""
    if settings.text_only:
        require_text(document)
        return
    inline = require_images(document, settings.media)
    if len(body) - inline > settings.limits.body_bytes:
        what = f"the body beside its images is larger than {settings.limits.body_bytes} bytes"
        raise Refusal(413, what)


def _drop_unsupported(document: Document, policy: str) -> list[str]:
    named = [field for field in NOT_WITH_SPECULATION if document.get(field)]
    if named and policy == "refuse":
        what = f"{' and '.join(named)}: the engine does not support this with speculation"
        raise Refusal(400, what, field=named[0])
    for field in named:
        del document[field]
    return [f"{field} dropped: not supported with speculation" for field in named]


def keep_known_fields(document: Document, path: str) -> list[str]:
    """Refuse what is for the server to decide, and drop what nobody knows."""
    for field in SERVER_FIELDS:
        if document.get(field) is not None:
            raise Refusal(400, f"{field} may not be set by clients", field=field)
    for field in STORED if path == RESPONSES else ():
        if document.get(field):
            what = f"{field}: this server stores no responses; send the whole conversation as input"
            raise Refusal(400, what, field=field)
    if path not in ROUTES or document.keys() <= FIELDS:
        return []
    dropped = [field for field in document if field not in FIELDS]
    if len(dropped) > MOST_DROPPED:
        raise Refusal(400, f"the body has {len(dropped)} fields that are not part of this API")
    for field in dropped:
        del document[field]
    return [f"{_show(field)} dropped: not a field of this API" for field in dropped]


def _show(field: str) -> str:
    """Write a client's word so that it can stand in a header."""
    return "".join(one if one.isascii() and one.isprintable() else "?" for one in field[:40])


def bound_answer(document: Document, path: str, settings: GateSettings) -> list[str]:
    """Refuse or lower what is too long; return what was changed."""
    changed = _fit_context(document, settings.context) if path == MESSAGES else []
    changed += _bound_fields(document, path, settings)
    return changed + (_fit_thinking(document) if path == MESSAGES and changed else [])


def find_longest_answer(document: Document, path: str) -> float | None:
    """Return the most tokens that an answer may have, None if the request does not say."""
    lengths = [document.get(field) for field in ANSWER_FIELDS.get(path, ())]
    named = [most for most in lengths if isinstance(most, int | float)]
    short = [SHORT_TOKENS] if path == BY_DEFAULT_SHORT and "max_tokens" not in document else []
    return min(named or short, default=None)


def _bound_fields(document: Document, path: str, settings: GateSettings) -> list[str]:
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


def _fit_context(document: Document, context: int | None) -> list[str]:
    """Lower the limit that Anthropic's clients send: vLLM refuses answers beyond its context."""
    length = document.get("max_tokens")
    if context is None or not isinstance(length, int | float) or length <= context:
        return []
    document["max_tokens"] = context
    return [f"max_tokens lowered to {context}: the context"]


def _fit_thinking(document: Document) -> list[str]:
    """Keep the thinking budget below a shortened answer."""
    thinking, most = document.get("thinking"), document["max_tokens"]
    if not isinstance(thinking, dict):
        return []
    budget = thinking.get("budget_tokens")
    if not isinstance(budget, int) or budget < most:
        return []
    if most <= LEAST_BUDGET:
        document["thinking"] = {"type": "adaptive"}
        return ["thinking.budget_tokens dropped: longer than the answer"]
    document["thinking"] = {**thinking, "budget_tokens": most - 1}
    return [f"thinking.budget_tokens lowered to {most - 1}"]
