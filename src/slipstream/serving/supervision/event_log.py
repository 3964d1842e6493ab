"""The only writer of a run: every change is saved, appended to the events and reported.

A disk that cannot be written to ends no engine: the run in memory is the valid one, the fault is
reported once, and what is missing is written as soon as possible. What is wrong for longer is one
of the run's notes until it is over: `status`, `top`, `doctor` and a metric show them.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, TypeVar

from slipstream.engines.vllm_log import Phase
from slipstream.errors import InvalidInputError, SlipstreamError
from slipstream.serving.kept_logs import cut_own_log
from slipstream.serving.run import Event, Run, RunFolder, State
from slipstream.serving.supervision.causes.ladder import Death

KEPT_EVENTS = 1000
# Between looks that fail; each failure doubles it.
FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 60.0
Result = TypeVar("Result")


class EventLog:
    """The current run, and the way to change it."""

    def __init__(self, folder: RunFolder, run: Run, on_event: Callable[[Event], None]) -> None:
        self.folder, self.run = folder, run
        self._listeners = [on_event]
        self._is_saved = True
        self._unwritten = deque[Event](maxlen=KEPT_EVENTS)
        self._trouble: str | None = None
        self._noted: dict[str, str] = {}

    def listen(self, listener: Callable[[Event], None]) -> None:
        self._listeners.append(listener)

    def go_on_in(self, folder: RunFolder, run: Run) -> None:
        """Write another run, into another folder, from now on."""
        self.folder, self.run, self._is_saved = folder, run, False
        self.save()

    def move(self, state: State, message: str, **figures: float) -> None:
        self.run = self.run.move(state)
        self._is_saved = False
        self.note(message, figures=figures)

    def give_up(self, fault: BaseException) -> None:
        """Report why the run has failed, and what to do about it."""
        hint = f"; {fault.hint}" if isinstance(fault, SlipstreamError) else ""
        self.move("failed", f"giving up: {fault}{hint}")

    def note(
        self,
        message: str,
        *,
        phase: Phase | None = None,
        figures: Mapping[str, float] | None = None,
    ) -> None:
        """Report an event that does not change the state."""
        self._add(message, phase, figures)
        self.save()

    def set_note(self, subject: str, message: str | None) -> None:
        """Keep a note of what is wrong, one per subject, until it is right again: None.

        The same words about a subject are reported once.
        """
        message = None if message is None else _clean(message)
        if self.run.notes.get(subject) == message:
            return
        notes = {name: note for name, note in self.run.notes.items() if name != subject}
        self.update(notes=notes if message is None else {**notes, subject: message})
        if message is not None and self._noted.get(subject) != message:
            self._noted[subject] = message
            self.note(message)

    def update(self, **changes: Any) -> None:
        self.run = self.run.model_copy(update=changes)
        self._is_saved = False
        self.save()

    def save(self) -> None:
        """Write what is not written yet, if the disk takes it."""
        try:
            self._write()
            if self._trouble is not None:
                self._trouble = None
                self._add("the run's folder is writable again")
                self._write()
        except InvalidInputError as fault:
            if self._trouble is None:  # Reported once, until it can be written again.
                self._trouble = fault.message
                self._add(f"{fault.message}; the engine keeps running")

    @property
    def unwritten(self) -> tuple[Event, ...]:
        return tuple(self._unwritten)

    async def keep_looking(
        self, name: str, look: Callable[[], Awaitable[Result | None]], every_seconds: float
    ) -> Result:
        """Look again and again until something is found, or an engine has to end.

        Any other fault costs that look: it is noted once, the next look comes later, and what
        serves is not ended for it.
        """
        pause = every_seconds
        while True:
            await asyncio.sleep(pause)
            try:
                if (found := await look()) is not None:
                    return found
            except Death:
                raise
            except Exception as fault:  # noqa: BLE001
                self.set_note(name, f"{name}: {type(fault).__name__}: {fault}")
                pause = min(max(2 * pause, FIRST_PAUSE_SECONDS), LONGEST_PAUSE_SECONDS)
            else:
                self.set_note(name, None)
                pause = every_seconds

    def _add(
        self, message: str, phase: Phase | None = None, figures: Mapping[str, float] | None = None
    ) -> None:
        event = Event(
            at=datetime.now(UTC),
            state=self.run.state,
            phase=phase,
            message=_clean(message),
            figures=dict(figures or {}),
        )
        self._unwritten.append(event)
        cut_own_log(self.folder.supervisor_log)
        for listener in self._listeners:
            with suppress(Exception):  # A terminal that went away, or a log on a full disk.
                listener(event)

    def _write(self) -> None:
        if not self._is_saved:
            self.folder.write(self.run)
            self._is_saved = True
        while self._unwritten:
            self.folder.append(self._unwritten[0])
            self._unwritten.popleft()


def _clean(message: str) -> str:
    """Return a message as UTF-8 can hold it, which a path in it need not be."""
    return message.encode(errors="backslashreplace").decode()
