"""Sends the tokens of ended requests to the run's collector, if there is one.

No step waits for it: what the collector does not take at once is lost, and it is looked for again
only after a while.
"""

import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from slipstream.learning.kept_text import encode
from slipstream.serving.messages import short_path
from slipstream.steering.state import Kind

LOOK_EVERY_SECONDS = 5.0


class AnswerSender:
    """The core's connection to the collector."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection: socket.socket | None = None
        self._looked = float("-inf")

    def send(self, kind: Kind, prompt: Sequence[int], answer: Sequence[int]) -> None:
        """Send a request's tokens; whatever hinders that costs them."""
        connection = self._connection or self._connect()
        if connection is None:
            return
        record = encode(kind, time.time(), prompt, answer)
        if record is None:
            return
        try:
            connection.send(record, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        except BlockingIOError:
            return
        except OSError:
            self.close()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _connect(self) -> socket.socket | None:
        now = time.monotonic()
        if now - self._looked < LOOK_EVERY_SECONDS:
            return None
        self._looked = now
        if not self._path.exists():
            return None
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        with suppress(OSError), short_path(self._path) as short:
            connection.connect(short)
            self._connection = connection
            return connection
        connection.close()
        return None
