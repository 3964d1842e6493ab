"""The logs of several machines as one stream of lines, each with its machine's name."""

import queue
import threading
from collections.abc import Generator, Mapping, Sequence

from slipstream.errors import SlipstreamError
from slipstream.fleet.machines.commands import Machines
from slipstream.fleet.machines.transport import Stream, escape

LONGEST_LINE = 4000
# Machines that say more than is read wait; so does the memory of this one.
MOST_LINES = 10_000
_Line = tuple[str, str] | None


def follow_logs(
    far: Machines, runs: Mapping[str, str], words: Sequence[str]
) -> Generator[tuple[str, str], None, None]:
    """Yield lines of `slipstream logs` of each machine's run as they come, escaped."""
    lines: queue.Queue[_Line] = queue.Queue(MOST_LINES)
    streams = list[Stream]()
    try:
        for machine, run in runs.items():
            try:
                stream = far.start(machine, ["logs", *words, run])
            except SlipstreamError as fault:
                yield machine, fault.message
                continue
            streams.append(stream)
            threading.Thread(target=_read, args=(machine, stream, lines), daemon=True).start()
        left = len(streams)
        while left:
            if (line := lines.get()) is None:
                left -= 1
            else:
                yield line
    finally:
        for stream in streams:
            stream.close()


def _read(machine: str, stream: Stream, lines: "queue.Queue[_Line]") -> None:
    try:
        for line in stream.lines():
            # A bar is redrawn many times before its line ends: its last form counts.
            text = line.decode(errors="replace").rstrip("\r\n").rpartition("\r")[2]
            lines.put((machine, escape(text, LONGEST_LINE)))
    except ValueError:  # It was closed meanwhile.
        pass
    finally:
        lines.put(None)
