"""The longest answer of a request, by the fields that each API has for it."""

from slipstream.vllm_plugin.gate.request_limits import Document, require_number
from slipstream.vllm_plugin.gate.routes import MESSAGES, RESPONSES
from slipstream.vllm_plugin.gate.settings import Settings

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


def bound_answer(document: Document, path: str, settings: Settings) -> list[str]:
    """Refuse or lower what is too long; return what was changed."""
    changed = _fit_context(document, settings.context) if path == MESSAGES else []
    changed += _bound_fields(document, path, settings)
    return changed + (_fit_thinking(document) if path == MESSAGES and changed else [])


def find_longest_answer(document: Document, path: str) -> float | None:
    """Return the most tokens that an answer may have, None if the request does not say."""
    asked = [document.get(field) for field in ANSWER_FIELDS.get(path, ())]
    named = [most for most in asked if isinstance(most, int | float)]
    short = [SHORT_TOKENS] if path == BY_DEFAULT_SHORT and "max_tokens" not in document else []
    return min(named or short, default=None)


def _bound_fields(document: Document, path: str, settings: Settings) -> list[str]:
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
    asked = document.get("max_tokens")
    if context is None or not isinstance(asked, int | float) or asked <= context:
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
