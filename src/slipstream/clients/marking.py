"""Which characters of a streamed chunk come of accepted draft tokens, by the run's own tokenizer.

A chunk has text and token ids, and not which token wrote what. The tokenizer of a run is on this
machine; a chunk whose text is not that of its tokens (a reasoning parser took some) stays unmarked.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from slipstream.clients.connection import ServedModel


def load_tokenizer(served: ServedModel) -> tuple[Any, str]:
    """Return the tokenizer of a run that drafts, or None and why no token can be marked."""
    if served.run is None:
        return None, "the tokenizer of this server is not known here"
    if served.run.plan.speculation is None:
        return None, "this run does not draft"
    file = Path(served.run.plan.target) / "tokenizer.json"
    try:
        from tokenizers import Tokenizer

        return Tokenizer.from_file(str(file)), ""
    except ImportError:
        return None, "the package tokenizers is not installed"
    except Exception as fault:  # noqa: BLE001 tokenizers raises nothing narrower
        return None, f"{file} cannot be read: {fault}"


class Marker:
    """Splits the text of each chunk where its accepted draft tokens end, by vLLM's own decoder."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._begin()

    def find_drafted(self, token_ids: Sequence[int], text: str) -> int | None:
        """Return how many characters come before those of the last token; None if unknown."""
        try:
            pieces = [self._decoder.step(self._tokenizer, token) or "" for token in token_ids]
        except Exception:  # noqa: BLE001 tokenizers raises nothing narrower
            self._begin()
            return None
        return len(text) - len(pieces[-1]) if pieces and "".join(pieces) == text else None

    def _begin(self) -> None:
        from tokenizers.decoders import DecodeStream

        self._decoder = DecodeStream(skip_special_tokens=True)
