"""The fields that a request may have: those of the APIs, and vLLM's for sampling.

The engine takes any field, and its next version may find a meaning in it. One that is not listed
is dropped, with a warning: clients send odd things. What chooses for the server is refused.
"""

from slipstream.vllm_plugin.gate.answers import Refusal
from slipstream.vllm_plugin.gate.request_limits import Document
from slipstream.vllm_plugin.gate.routes import RESPONSES

THE_SERVERS = (
    "chat_template",
    "kv_transfer_params",
    "ec_transfer_params",
    "mm_processor_kwargs",
    "mm_payload",
    "media_io_kwargs",
    "return_mm_kwargs",
    "priority",
    "request_id",
    "session_id",
    "stream_interval",
    "routed_experts_prompt_start",
    "vllm_xargs",
    "prompt_embeds",
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
    {*_PROMPTS, *_SAMPLING, *_LENGTHS, *_TOOLS, *_ANSWERS, *_HOSTED, *_ROUTERS, *THE_SERVERS}
)
MOST_DROPPED = 16


def keep_known_fields(document: Document, path: str) -> list[str]:
    """Refuse what is for the server to decide, and drop what nobody knows."""
    for field in THE_SERVERS:
        if document.get(field) is not None:
            raise Refusal(400, f"{field} is for the server to decide", field=field)
    for field in STORED if path == RESPONSES else ():
        if document.get(field):
            what = f"{field}: this server stores no responses; send the whole conversation as input"
            raise Refusal(400, what, field=field)
    if path not in ROUTES or document.keys() <= FIELDS:
        return []
    dropped = [field for field in document if field not in FIELDS]
    if len(dropped) > MOST_DROPPED:
        raise Refusal(400, f"the body has {len(dropped)} fields that are not of this API")
    for field in dropped:
        del document[field]
    return [f"{_show(field)} dropped: not a field of this API" for field in dropped]


def _show(field: str) -> str:
    """Write a client's word so that it can stand in a header."""
    return "".join(one if one.isascii() and one.isprintable() else "?" for one in field[:40])
