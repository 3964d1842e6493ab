"""`slipstream top`: a live view of a run, redrawn every second."""

import argparse
import os
import select
import shutil
import signal
import sys
import termios
import time
import tty
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime

from slipstream.cli.options import OptionAdder, add_run
from slipstream.cli.screen import Screen
from slipstream.errors import ExitCode, InvalidInputError
from slipstream.measuring.client.endpoint import KEY_VARIABLE
from slipstream.reporting.serving.top import Terminal, render_top
from slipstream.serving.live_view import (
    EngineFigures,
    LiveView,
    read_engine_figures,
    read_live_view,
)
from slipstream.serving.run import Run, RunFolder, find_live, find_runs_root
from slipstream.serving.run_status import find_shown_state
from slipstream.serving.selection import choose_run, is_over

REDRAW_SECONDS = 1.0
# The memory of processes takes the kernel a while to add up, and /metrics the engine to write.
SLOW_SECONDS = 5.0
# What is shown of late is of the last minute; the line of throughput is as long as it fits.
RECENT_VIEWS = 60
HISTORY = 600
PIPED_COLUMNS = 120
_ENTER, _LEAVE = "\033[?1049h\033[?25l", "\033[?25h\033[?1049l"
_HOME, _REST_OF_LINE, _REST = "\033[H", "\033[K", "\033[J"


EXAMPLES = """\
# watch the newest live run; q quits
slipstream top
# one snapshot as JSON
slipstream top Qwen3-8B --json
"""


def add_arguments(add: OptionAdder) -> None:
    add_run(add, default="the newest live run")
    add("--once", "print one snapshot and exit (default without a terminal)")
    add.parser.usage = "slipstream top [RUN] [options]"


def run(options: argparse.Namespace, screen: Screen) -> ExitCode:
    """Show a run until `q` is pressed, or once."""
    folder, chosen = _choose(options.run)
    watch = _Watch(folder, chosen)
    if options.once or screen.json or not is_live(screen):
        view = watch.look()
        size = shutil.get_terminal_size(fallback=(PIPED_COLUMNS, 24))
        text = "\n".join(render_top(view, _describe_terminal(screen, size.columns, None)))
        screen.show_data(text=text, document=view.to_json(), as_is=True)
        return ExitCode.DONE
    with full_screen(screen):
        while not is_over(watch.run):
            draw(screen, watch.draw(screen, max(1, shutil.get_terminal_size().lines - 1)))
            if wait_for_quit(REDRAW_SECONDS):
                return ExitCode.DONE
    screen.show_data(text="\n".join(watch.draw(screen, rows=None)), document="")
    return ExitCode.DONE


class _Watch:
    """A run that is read again and again, with the history of its throughput."""

    def __init__(self, folder: RunFolder, run: Run) -> None:
        self.folder, self.run = folder, run
        self._views: deque[LiveView] = deque(maxlen=RECENT_VIEWS)
        self._throughput: deque[float | None] = deque(maxlen=HISTORY)
        self._key = os.environ.get(KEY_VARIABLE)
        self._may_ask = bool(self._key) or not run.terms.needs_key
        self._written, self._looked = 0, 0.0

    def look(self) -> LiveView:
        """Read the run now; what is slow to read is read every few seconds only."""
        self._read_run()
        now, monotonic = datetime.now(UTC), time.monotonic()
        last = self._views[-1] if self._views else None
        if fresh := last if last and not self._is_outdated(last, monotonic) else None:
            engine = fresh.engine
        else:
            self._looked, engine = monotonic, self._ask()
        view = read_live_view(
            self.folder, self.run, engine, now=now, monotonic=monotonic, last=fresh
        )
        self._throughput.append(view.measure_throughput(last))
        self._views.append(view)
        return view

    def _read_run(self) -> None:
        """Read the run's record again if it has changed."""
        with suppress(OSError, InvalidInputError):  # Half written: what was read last counts.
            written = self.folder.record.stat().st_mtime_ns
            if written != self._written:
                self.run, self._written = self.folder.read(), written

    def _is_outdated(self, last: LiveView, monotonic: float) -> bool:
        changed = find_shown_state(self.run) != last.status.state or last.steering is None
        return changed or monotonic - self._looked >= SLOW_SECONDS

    def _ask(self) -> EngineFigures | None:
        """Read the engine's metrics; where a key is needed, stop after the first refusal."""
        engine = read_engine_figures(self.run, self._key) if self._may_ask else None
        if engine is None and self.run.terms.needs_key:
            self._may_ask = False  # Every refusal would be a line of the access log.
        return engine

    def draw(self, screen: Screen, rows: int | None) -> list[str]:
        """Read the run and render it, with changes since the oldest view that is kept."""
        view = self.look()
        terminal = _describe_terminal(screen, shutil.get_terminal_size().columns, rows)
        return render_top(view, terminal, before=self._views[0], history=tuple(self._throughput))


def _choose(name: str | None) -> tuple[RunFolder, Run]:
    """Return the named run, or else the newest live one, or else the newest."""
    root = find_runs_root(os.environ)
    live = find_live(root) if name is None else []
    return live[0] if live else choose_run(root, name)


def is_live(screen: Screen) -> bool:
    return (
        screen.output.isatty() and sys.stdin.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    )


def _describe_terminal(screen: Screen, width: int, rows: int | None) -> Terminal:
    encoding = (getattr(screen.output, "encoding", None) or "").lower().replace("-", "")
    colour = screen.colour and screen.output.isatty()
    return Terminal(width=width, rows=rows, colour=colour, unicode=encoding == "utf8")


def draw(screen: Screen, lines: list[str]) -> None:
    """Draw over the previous frame, so that nothing flickers."""
    frame = "".join(f"{line}{_REST_OF_LINE}\r\n" for line in lines)
    _write(screen, f"{_HOME}{frame}q quits{_REST_OF_LINE}{_REST}")


@contextmanager
def full_screen(screen: Screen) -> Iterator[None]:
    """Switch the terminal to full screen, and back however the command ends or is stopped."""
    keyboard = sys.stdin.fileno()
    settings = termios.tcgetattr(keyboard)

    def enter() -> None:
        tty.setcbreak(keyboard)
        _write(screen, _ENTER)

    def leave() -> None:
        _write(screen, _LEAVE)
        termios.tcsetattr(keyboard, termios.TCSADRAIN, settings)

    def stop(*_: object) -> None:
        leave()
        os.kill(os.getpid(), signal.SIGSTOP)
        enter()

    enter()
    before = signal.signal(signal.SIGTSTP, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTSTP, before)
        leave()


def _write(screen: Screen, text: str) -> None:
    screen.output.write(text)
    screen.output.flush()


def wait_for_quit(seconds: float) -> bool:
    """Wait for a key until the next frame is due, and return whether it quits."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        if select.select([sys.stdin], [], [], left)[0]:
            typed = os.read(sys.stdin.fileno(), 64)
            if not typed or b"q" in typed.lower():
                return True
    return False
