"""systemd's notification protocol: ready, stopping, a line of status, and a heartbeat.

A message is one datagram to the socket that the manager names; without one nothing is sent. The
heartbeat comes from the supervisor's own event loop: if that hangs, the manager restarts us.
"""

import asyncio
import os
import socket
from collections.abc import Mapping
from contextlib import suppress

from slipstream.serving.run import Event

# A start is never cut off while it reports: a download does every few seconds, the loop more often.
EXTEND_SECONDS = 600
BEATS_PER_TIMEOUT = 4
UNWATCHED_SECONDS = 60.0


class ServiceManager:
    """The service manager that started this process, or none."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        name = environment.get("NOTIFY_SOCKET", "")
        # A leading @ is an abstract name.
        self._address = "\0" + name[1:] if name.startswith("@") else name
        # What must arrive: it is sent again with every beat until there is room for it.
        self._unsent: tuple[str, ...] = ()
        self._is_ready = False
        watched = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        timeout_us = int(environment.get("WATCHDOG_USEC", 0)) if watched else 0
        self._beat_seconds = timeout_us / 1e6 / BEATS_PER_TIMEOUT or UNWATCHED_SECONDS

    def report(self, event: Event) -> None:
        """Report an event of the run."""
        lines = [f"STATUS={event.state}: {' '.join(event.message.split())}"]
        if event.state == "ready" and not self._is_ready:
            self._is_ready = True
            self._unsent = ("READY=1",)
        if event.state in ("draining", "stopping"):
            lines.append("STOPPING=1")
        self._send(*lines, *self._extend())

    async def beat(self) -> None:
        """Send heartbeats as long as the loop runs."""
        while self._address:
            self._send("WATCHDOG=1", *self._extend())
            await asyncio.sleep(self._beat_seconds)

    def _extend(self) -> list[str]:
        return [] if self._is_ready else [f"EXTEND_TIMEOUT_USEC={EXTEND_SECONDS * 1_000_000}"]

    def _send(self, *lines: str) -> None:
        if not self._address:
            return
        # A manager that does not listen is no reason to stop serving.
        with (
            suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sender,
        ):
            sender.sendto("\n".join((*lines, *self._unsent)).encode(), self._address)
            self._unsent = ()
