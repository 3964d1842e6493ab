"""The one writer of a run: every change is saved, added to the events and told."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from slipstream.engines.vllm_log import Phase
from slipstream.serving.run import Event, Run, RunFolder, State


class Chronicle:
    """A run as it stands, and the way to change it."""

    def __init__(self, folder: RunFolder, run: Run, tell: Callable[[Event], None]) -> None:
        self.folder, self.run = folder, run
        self._listeners = [tell]

    def listen(self, hear: Callable[[Event], None]) -> None:
        """Have somebody else told every event from now on."""
        self._listeners.append(hear)

    def move(self, state: State, message: str, **figures: float) -> None:
        """Take the run to its next state."""
        self.run = self.run.move(state)
        self.folder.write(self.run)
        self.note(message, figures=figures)

    def note(
        self,
        message: str,
        *,
        phase: Phase | None = None,
        figures: Mapping[str, float] | None = None,
    ) -> None:
        """Tell something that is no change of state."""
        event = Event(
            at=datetime.now(UTC),
            state=self.run.state,
            phase=phase,
            message=message,
            figures=dict(figures or {}),
        )
        self.folder.append(event)
        for hear in self._listeners:
            hear(event)

    def update(self, **changes: Any) -> None:
        """Save other facts of the run."""
        self.run = self.run.model_copy(update=changes)
        self.folder.write(self.run)
