"""As much of a supervisor as a gate by itself needs: it says ready, and keeps the last counts."""

import socket
import threading
from pathlib import Path

from slipstream.serving.messages import GateCounts, Readiness, decode, encode, short_path


class StubSupervisor:
    """Listens for one gate."""

    def __init__(self, path: Path) -> None:
        self.counts: GateCounts | None = None
        self._listening = socket.socket(socket.AF_UNIX)
        with short_path(path) as short:
            self._listening.bind(short)
        self._listening.listen()

    def __enter__(self) -> "StubSupervisor":
        threading.Thread(target=self._serve, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listening.close()

    def _serve(self) -> None:
        connection, _ = self._listening.accept()
        with connection, connection.makefile("rb") as lines:
            connection.sendall(encode(Readiness(state="ready")))
            for line in lines:
                message = decode(line, (GateCounts,))
                assert isinstance(message, GateCounts)
                self.counts = message
