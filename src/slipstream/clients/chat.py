"""A conversation with a served model: its turns, and how each message is asked."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slipstream.clients.arrival import ArrivingAnswer, ChatAnswer, Show
from slipstream.clients.connection import ServedModel
from slipstream.clients.marking import Marker
from slipstream.serving.run import RunFolder
from slipstream.steering.ledger import LedgerLine, LedgerReader

# The core writes a request's line as it ends, and a thread of it writes the file.
LEDGER_SECONDS = 2.0
_LOOK_EVERY_SECONDS = 0.02
_DRAFTS_OFF = {"X-Slipstream-Drafts": "off"}

Message = Mapping[str, str]


@dataclass(slots=True)
class ChatConversation:
    """Turns with a server, which `find` looks up for each: its engine may be another by then.

    `settings` are fields of the request that the user chose.
    """

    find: Callable[[], ServedModel]
    runs: Path
    ledger: LedgerReader
    settings: Mapping[str, float]
    tokenizer: Any = None
    messages: list[Message] = field(default_factory=list)
    last: ChatAnswer | None = None
    _turn: int = 0

    def ask(self, text: str, show: Show) -> ChatAnswer:
        """Ask a message; it stays in the conversation with what was answered, if that is a text."""
        turns = [*self.messages, {"role": "user", "content": text}]
        answer = self._send(turns, show, plain=False)
        if answer.text or not answer.interrupted:
            self.messages = [*turns, {"role": "assistant", "content": answer.text}]
            self.last = answer
        return answer

    def ask_plainly(self, show: Show) -> ChatAnswer:
        """Ask the last message again without drafts; the conversation keeps the first answer."""
        answer = self._send(self.messages[:-1], show, plain=True)
        if self.last is not None and not (answer.interrupted or self.last.interrupted):
            sampled = self.settings.get("temperature") != 0
            same = answer.text == self.last.text
            return answer.model_copy(update={"same_text": same, "sampled": sampled})
        return answer

    def begin_anew(self) -> None:
        self.messages, self.last = [], None

    def _send(self, messages: Sequence[Message], show: Show, *, plain: bool) -> ChatAnswer:
        served = self.find()
        ledger = self._find_ledger(served)
        self._turn += 1
        body = {
            **{"model": served.name, "messages": messages, "return_token_ids": True},
            **{"stream": True, "stream_options": {"include_usage": True}},
            **self.settings,
        }
        marker = Marker(self.tokenizer) if self.tokenizer and not plain else None
        arrival = ArrivingAnswer(self._turn, marker, show)
        line, interrupted = None, False
        try:
            request = {"json": body, "headers": _DRAFTS_OFF if plain else {}}
            asyncio.run(arrival.receive(served, request))
            line = self._read_line(ledger, arrival.request_id) if ledger else None
        except KeyboardInterrupt:
            interrupted = True
        return arrival.describe(served.name, line, plain=plain, interrupted=interrupted)

    def _find_ledger(self, served: ServedModel) -> Path | None:
        """Return the ledger of a run whose scheduler keeps one, read to its present end."""
        if served.run is None:
            return None
        file = RunFolder(self.runs / served.run.id).ledger
        while self.ledger.read_raw(file) is not None:
            pass
        return file if file.exists() else None

    def _read_line(self, file: Path, request_id: str | None) -> LedgerLine | None:
        """Wait for the line of a request; other requests may end before it."""
        until = time.monotonic() + LEDGER_SECONDS
        while request_id and time.monotonic() < until:
            while (raw := self.ledger.read_raw(file)) is not None:
                line = self.ledger.parse(raw)
                if line is not None and line.id == request_id:
                    return line
            time.sleep(_LOOK_EVERY_SECONDS)
        return None
