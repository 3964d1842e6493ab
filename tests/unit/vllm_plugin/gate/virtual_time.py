"""A loop whose clock jumps to what comes next: waiting takes no time on any machine."""

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, ParamSpec, TypeVar

Result = TypeVar("Result")
P = ParamSpec("P")


class Clock:
    """A time that passes when told."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


class VirtualLoop(asyncio.SelectorEventLoop):
    """Never sleeps."""

    _now = 0.0

    def time(self) -> float:
        return self._now

    def _run_once(self) -> None:
        ready: Any = vars(self)["_ready"]
        scheduled: Any = vars(self)["_scheduled"]
        if not ready and scheduled:
            self._now = max(self._now, scheduled[0].when())
        super()._run_once()  # type: ignore[misc]


def run_virtually(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """Run to the end in no time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(coroutine)


def virtually(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Let an asynchronous test run like any other, in no time."""

    @wraps(test)
    def run(*arguments: P.args, **named: P.kwargs) -> None:
        run_virtually(test(*arguments, **named))

    return run


def now() -> float:
    """Return the time of the loop that runs."""
    return asyncio.get_running_loop().time()
