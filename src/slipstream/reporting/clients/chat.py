"""A streamed answer for the terminal, accepted draft tokens in green, and its line of figures."""

from slipstream.clients.arrival import AnswerPart, ChatAnswer
from slipstream.reporting.report import clean_text, show

_NEAR_TIE = "after a near-tie, or a fault: slipstream verify {} tells which"
_GREEN, _PLAIN = "\033[32m", "\033[0m"


def render_part(part: AnswerPart, *, colour: bool) -> str:
    """Return a part of an answer, nothing of which acts on a terminal."""
    drafted = part.drafted or 0 if colour else 0
    marked, rest = clean_text(part.text[:drafted]), clean_text(part.text[drafted:])
    return f"{_GREEN}{marked}{_PLAIN}{rest}" if marked else rest


def render_figures(answer: ChatAnswer, *, server: str, colour: bool) -> str:
    """Return an answer's figures, and under them what they leave open.

    `server` is what `verify` takes for it.
    """
    if answer.interrupted:
        return f"stopped after {answer.output_tokens} tokens"
    parts = [
        f"{answer.output_tokens} tokens",
        f"{show(answer.tokens_per_second)} tokens/s",
        _describe_steps(answer),
        f"first token {show(answer.first_token_seconds, 2, 's')}",
    ]
    lines = [("plain: " if answer.plain else "") + ", ".join(parts)]
    if answer.finish_reason == "length":
        lines.append("it was cut off at its length limit")
    if answer.same_text is not None:
        why = (
            "sampling: compare with --temperature 0" if answer.sampled else _NEAR_TIE.format(server)
        )
        different = f"different text than before ({why})"
        lines.append("the same text" if answer.same_text else different)
    if answer.plain and answer.accepted:
        lines.append("it was drafted anyway: only a server with the gate can leave drafts out")
    joined = (answer.steps or 0) - answer.chunks
    if colour and joined > 0 and not answer.plain:
        steps = f"{joined} of {answer.steps} steps arrived together with others"
        lines.append(f"{steps}: up to {joined} green tokens are not drafts")
    return "\n".join(lines)


def _describe_steps(answer: ChatAnswer) -> str:
    if answer.tokens_per_step is None and answer.tokens_per_chunk is not None:
        return f"at most {answer.tokens_per_chunk:.2f} tokens per step"
    return f"{show(answer.tokens_per_step, 2)} tokens per step"
