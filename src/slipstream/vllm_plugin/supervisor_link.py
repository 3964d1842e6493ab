"""The connection from vLLM's processes to the run's supervisor, made again whenever it breaks.

Nothing waits for it: what cannot be sent now is dropped, since newer reports follow. A message that
cannot be read, and any fault in what is done about one, is logged and costs that message only.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from pathlib import Path

from slipstream.errors import explain
from slipstream.records import Record
from slipstream.serving.messages import MOST_BYTES, decode, encode, short_path

AGAIN_AFTER_SECONDS = 0.5

# Below vLLM's own logger, whose handler it so has.
_log = logging.getLogger("vllm.slipstream")


class SupervisorLink:
    """Sends messages, and calls `hear` with those of `kinds`; `greet` lists the first to send."""

    def __init__(
        self,
        path: Path,
        kinds: Iterable[type[Record]],
        *,
        hear: Callable[[Record], None],
        greet: Callable[[], Iterable[Record]],
    ) -> None:
        self._path, self._kinds = path, tuple(kinds)
        self._hear, self._greet = hear, greet
        self._writer: asyncio.StreamWriter | None = None
        self._logged: str | None = None

    def send(self, message: Record) -> None:
        """Send a message, unless nobody is connected or the other side does not read."""
        writer = self._writer
        if writer is not None and writer.transport.get_write_buffer_size() < MOST_BYTES:
            writer.write(encode(message))

    async def follow(self) -> None:
        """Connect, and connect again, for as long as the process runs."""
        while True:
            try:
                await self._listen()
            except Exception as fault:  # noqa: BLE001 without it nobody hears of this process
                self.report(f"no connection to the supervisor: {explain(fault)}")
            await asyncio.sleep(AGAIN_AFTER_SECONDS)

    def report(self, trouble: str) -> None:
        """Log something that went wrong, once until it is something else."""
        if trouble != self._logged:
            self._logged = trouble
            _log.warning("slipstream: %s", trouble)

    async def _listen(self) -> None:
        with short_path(self._path) as short:
            reader, writer = await asyncio.open_unix_connection(short, limit=MOST_BYTES)
        self._writer = writer
        try:
            for message in self._greet():
                self.send(message)
            while line := await reader.readline():
                self._take(line)
        finally:
            self._writer = None
            writer.close()

    def _take(self, line: bytes) -> None:
        try:
            self._hear(decode(line, self._kinds))
        except Exception as fault:  # noqa: BLE001 what serves is not ended for a message
            self.report(f"a message was dropped: {explain(fault)}")
