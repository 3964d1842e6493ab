"""`Workspace`: what all stages share, the engine that they plan, and how they report progress."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from slipstream.checkpoints.checkpoint import Checkpoint
from slipstream.hardware import Host
from slipstream.planning import LaunchPlan, make_options, make_plan
from slipstream.training.prompts import Conversation
from slipstream.training.run import TrainFolder, TrainSettings
from slipstream.units import show_time


@dataclass(frozen=True, slots=True)
class Workspace:
    """The inputs of the stages; a warm start continues from the drafter in `start_folder`."""

    folder: TrainFolder
    target: Checkpoint
    target_folder: Path
    host: Host
    environment: Mapping[str, str]
    report: Callable[[str], None]
    start_folder: Path | None = None

    @property
    def dtype(self) -> str:
        """Return the dtype to compute in: bfloat16, unless this CPU only emulates it."""
        return "float32" if self.host.processor.has_bfloat16 is False else "bfloat16"

    @property
    def target_name(self) -> str:
        """Return the target's public name; a hub model lies here under a commit's hash."""
        here = Path(self.target.name).is_dir()
        return self.target_folder.name if here else self.target.name

    def plan_engine(
        self,
        settings: TrainSettings,
        conversations: Sequence[Conversation],
        *,
        drafter: Checkpoint | None,
        users: int,
        raw: Sequence[str] = (),
    ) -> LaunchPlan:
        """Return the plan of the engine that answers prompts, with or without the drafter."""
        longest = max(row.tokens or row.characters for row in conversations)
        eager = () if self.host.accelerators else ("--enforce-eager",)
        counted = ("--per-request-spec-decode-metrics", "summary") if drafter else ()
        options = make_options(
            method=None if drafter else "plain",
            draft_length=settings.design.draft_tokens if drafter else None,
            users=users,
            context=min(self.target.context or 1 << 30, settings.max_tokens + longest),
            engine=(*raw, *eager, *counted),
        )
        here = {"name": str(self.target_folder), "revision": None}
        return make_plan(self.host, self.target.model_copy(update=here), drafter, None, options)


class Ticker:
    """Reports done, rate and remaining time: at most once per interval, and always at the end."""

    def __init__(
        self,
        report: Callable[[str], None],
        work: str,
        *,
        unit: str,
        every_seconds: float = 20,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._report, self._work, self._unit = report, work, unit
        self._every, self._clock = every_seconds, clock
        self._began = self._said = clock()
        self._first: int | None = None

    def show(self, done: int, total: int, note: str = "") -> None:
        """Print the progress; what was done before the first call is left out of the rate."""
        now = self._clock()
        if self._first is None:
            self._first, self._began = done, now
        if done < total and now - self._said < self._every:
            return
        self._said = now
        rate = (done - self._first) / max(now - self._began, 1e-9)
        left = f", {show_time((total - done) / rate)} left" if done < total and rate else ""
        shown = f"{rate:.0f}" if rate >= 100 else f"{rate:.3g}"
        speed = f", {shown} {self._unit}/s" if rate else ""
        extra = f", {note}" if note else ""
        self._report(f"{self._work}: {done} of {total} {self._unit}{speed}{extra}{left}")
