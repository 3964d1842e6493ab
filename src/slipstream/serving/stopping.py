"""Stop a run from outside: its supervisor is asked, and what it leaves behind is ended.

The supervisor drains at the first SIGTERM and stops at once at the second. Two that come
together count as one, so the second waits until the first was seen; and a run that is ending
already gets none, or asking twice for patience would be asking for haste.
"""

import signal
from collections.abc import Callable
from contextlib import suppress

from slipstream.serving.following import follow_events
from slipstream.serving.run import TRANSITIONS, Event, RunFolder, is_alive
from slipstream.serving.supervision.engine_session import Means, end_session


def stop_run(
    folder: RunFolder, *, at_once: bool, tell: Callable[[Event], None], means: Means
) -> None:
    """Stop a run and wait until none of its processes is left, passing its events to `tell`."""
    asked = set[str]()

    def is_gone() -> bool:
        run = folder.read()
        if not is_alive(run.supervisor, means.proc):
            return True
        due = "haste" if run.state in ("draining", "stopping") else "end"
        if due not in asked and (at_once if due == "haste" else TRANSITIONS[run.state]):
            asked.add(due)
            with suppress(ProcessLookupError):
                means.send(run.supervisor.pid, signal.SIGTERM)
        return False

    for event in follow_events(folder, is_gone, means.wait, only_new=True):
        tell(event)
    if (engine := folder.read().engine) is not None:
        end_session(engine, means)
