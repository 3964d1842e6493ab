"""A request to stop before there is an engine: the run ends at once.

Files may be on their way in threads that nothing can interrupt, and no child is there to be
ended: so the process writes its last state and leaves, without waiting for them.
"""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn

from slipstream.errors import ExitCode, SlipstreamError
from slipstream.serving.supervision.chronicle import Chronicle
from slipstream.serving.supervision.supervisor import SIGNALS


@contextmanager
def stopping_early(chronicle: Chronicle) -> Iterator[None]:
    """Stop the run at a signal, until the supervisor takes the signals over."""

    def stop(*_: object) -> NoReturn:
        with suppress(SlipstreamError, ValueError):
            chronicle.move("stopping", "asked to stop before an engine was started")
            chronicle.move("stopped", "nothing of it runs any more")
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(ExitCode.DONE)

    before = {number: signal.getsignal(number) for number in SIGNALS}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:  # as nohup leaves it
            signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
