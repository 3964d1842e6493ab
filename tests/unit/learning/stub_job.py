"""The learning job with a training that is a copy, and kills where a test has planted them.

    python -m tests.unit.learning.stub_job PLANTED ... as slipstream.learning.job

PLANTED is a folder: `drafter` is what a training makes, `figures.json` the tokens per step before,
in the probe and after. A file `kill-NAME` there ends the process at that place, once.
"""

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from slipstream.atomic_files import make_folder_once
from slipstream.learning import job
from slipstream.learning.candidate import Point, Round, find_gain
from slipstream.learning.generation import LearningFolder
from slipstream.steering.drafts import Drafts


def walk(rates: dict[str, float]) -> dict[str, Drafts]:
    """Return counts of so many tokens per step, by kind."""
    return {
        kind: Drafts(drafts=1000, drafted=7000, accepted=(round(1000 * (rate - 1)),))
        for kind, rate in rates.items()
    }


def main(planted: Path, words: list[str]) -> int:
    def reach(place: str) -> None:
        (planted / "reached").open("a").write(f"{place}\n")
        mark = planted / f"kill-{place}"
        if mark.exists():
            mark.unlink()
            os.kill(os.getpid(), signal.SIGKILL)

    def plant(owner: Any, name: str) -> None:
        inner: Callable[..., Any] = getattr(owner, name)

        def around(*arguments: Any, **named: Any) -> Any:
            reach(f"before-{name}")
            result = inner(*arguments, **named)
            reach(f"after-{name}")
            return result

        setattr(owner, name, around)

    class CopiedRound(Round):
        """A round whose figures a test has written down."""

        def probe(self) -> float | None:
            reach("probe")
            rates = json.loads((planted / "figures.json").read_text())
            if rates is None:
                return None
            if self.work.before is None:
                self.save(before=walk(rates["before"]), probed=walk(rates["probed"]))
            return find_gain(self.work.before or {}, self.work.probed or {}, self.work.shares)

        def train(self) -> None:
            reach("train")
            rates = json.loads((planted / "figures.json").read_text())
            self._copy(planted / "drafter")
            self.save(curve=(Point(step=10, walked=walk(rates["after"])),), is_trained=True)

        def _copy(self, made: Path) -> None:
            def fill(folder: Path) -> None:
                shutil.copytree(made, folder, dirs_exist_ok=True)
                reach("half-copied")

            make_folder_once(self._name(10), fill)

    for name in ("add", "write_progress", "end_work"):
        plant(LearningFolder, name)
    plant(job, "begin_work")
    vars(job)["Round"] = CopiedRound
    # At the lowest priority a busy machine may let it wait for minutes.
    os.nice, os.sched_setscheduler = (lambda _: 0), (lambda *_: None)
    return job.main(words)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
