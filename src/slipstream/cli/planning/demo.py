"""`slipstream demo`: the same prompts with and without drafts, side by side, on this machine."""

import argparse
import os
import shlex
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from slipstream.checkpoints import read_checkpoint
from slipstream.cli.arguments import ENGINE_ARGUMENTS
from slipstream.cli.measuring.measuring_options import (
    describe_conditions,
    find_engine_host,
    find_log_folder,
)
from slipstream.cli.options import OptionAdder
from slipstream.cli.reports import require_writable, write_report
from slipstream.cli.screen import Screen
from slipstream.demo.performance import Demo, Stage, TimedPart, load_decoder, make_workload, stay_up
from slipstream.errors import ExitCode
from slipstream.hardware import Host
from slipstream.measuring.bench import Bench
from slipstream.measuring.comparing.comparison import ComparedArm
from slipstream.measuring.comparing.verdict import PLAIN
from slipstream.measuring.machine_watch import make_watch
from slipstream.planning import LaunchPlan, make_options, make_plan
from slipstream.proving_ground import SHIPPED_DRAFTER, make_smollm2
from slipstream.proving_ground.int8 import compare_products, make_int8
from slipstream.proving_ground.smollm2 import CHECKPOINT
from slipstream.reporting.measuring.demo import describe_demo, render_demo_html
from slipstream.reporting.measuring.demo_columns import list_frames
from slipstream.reporting.report import render_text
from slipstream.user_folders import slipstream_cache

PAGE = Path("slipstream-demo.html")
# Compiling would take two minutes of the four.
ENGINE = ("--enforce-eager",)
MOST_ROWS = 18
READING_SECONDS = 1.0

Result = TypeVar("Result")


EXAMPLES = """\
# start both engines and replay their answers side by side; two to four minutes on a CPU
slipstream demo
# longer answers, with the engine compiled as `plan` would have it
slipstream demo --max-tokens 256 -- --no-enforce-eager
"""


def add_arguments(add: OptionAdder) -> None:
    add("--max-tokens TOKENS", "maximum tokens per answer", default=96)
    add("--html FILE", "file for the HTML report", default=PAGE)
    add.parser.set_defaults(seed=0)
    add.parser.usage = f"slipstream demo [options] {ENGINE_ARGUMENTS}"


def run(options: argparse.Namespace, screen: Screen) -> ExitCode:
    """Run both engines in turn, replay their answers, and keep the drafted one serving."""
    require_writable(options.html)
    display = _Display(screen)
    host, cache = find_engine_host("demo"), slipstream_cache(os.environ)
    target, quantized = display.time(
        f"{CHECKPOINT} is prepared", lambda: _prepare_target(cache, host)
    )
    plain, drafted = display.time(
        "both plans are made",
        lambda: [
            ComparedArm(name=name, plan=_make_plan(target, host, options.raw, drafts=name != PLAIN))
            for name in (PLAIN, "drafted")
        ],
    )
    stage = Stage(
        bench=Bench(make_workload(options.max_tokens), (1,), prefix_cache="shared"),
        decode=load_decoder(target),
        logs=find_log_folder("demo"),
        environment=os.environ,
        tick=display.tick,
        note=display.note,
        watch=make_watch(host),
    )
    conditions = describe_conditions(options, stage.bench, drafted.plan, host, model=target.name)
    with stage.perform("A", plain) as (_, first, before):
        pass
    with stage.perform("B", drafted) as (url, second, after):
        demo = Demo(
            conditions=conditions,
            arms=(plain, drafted),
            starts=(first, second),
            answers=(tuple(before), tuple(after)),
            parts=(),
            quantized=quantized,
        )
        if screen.live:
            display.replay(demo)
        demo = demo.model_copy(update={"parts": tuple(display.parts)})
        screen.show_data(text=render_text(describe_demo(demo)), document=demo.to_json())
        write_report(options.html, render_demo_html(demo), screen)
        words = shlex.join(["slipstream", "serve", str(target), "--drafter", str(SHIPPED_DRAFTER)])
        screen.show_progress(f"to serve this pair: {words}")
        if not screen.live:
            return ExitCode.DONE
        screen.show_progress(_describe_server(url))
        try:
            stay_up(url)
        except KeyboardInterrupt:
            screen.show_progress("\nstopping the engine")
    return ExitCode.DONE


def _prepare_target(cache: Path, host: Host) -> tuple[Path, str]:
    """Return the target, in 8 bits where those are faster, and why they are."""
    target = make_smollm2(cache)
    if not host.processor.favours_int8:
        return target, ""
    share = compare_products(os.environ)
    if share >= 1:
        return target, ""
    why = f"an 8-bit matrix product takes {share:.2f} of the time of one in float32 here"
    return make_int8(target), why


def _make_plan(target: Path, host: Host, raw: list[str], *, drafts: bool) -> LaunchPlan:
    return make_plan(
        host,
        read_checkpoint(str(target)),
        read_checkpoint(str(SHIPPED_DRAFTER), tokenizer=False) if drafts else None,
        None,
        make_options(
            served_name=target.name, method=None if drafts else "plain", engine=raw or ENGINE
        ),
    )


def _describe_server(url: str) -> str:
    return (
        f"\nthe drafted engine serves at {url}/v1 until Ctrl-C; in another terminal:\n\n"
        f"  slipstream chat {url}"
    )


class _Display:
    """The parts of the demo with their times, redrawn on a live screen."""

    def __init__(self, screen: Screen) -> None:
        self.parts: list[TimedPart] = []
        self._screen = screen
        self._begun = ""

    def tick(self, name: str, seconds: float) -> None:
        """Redraw the line of the part that is under way; where that cannot be, say it once."""
        if self._screen.live:
            self._screen.draw(_describe_part(name, seconds))
        elif name != self._begun:
            self._screen.show_progress(f"          {name} ...")
        self._begun = name

    def note(self, part: TimedPart) -> None:
        """Keep a part that is done, and print its time."""
        self.parts.append(part)
        self.tick(part.name, part.seconds)
        line = "" if self._screen.live else _describe_part(part.name, part.seconds)
        self._screen.show_progress(line)

    def time(self, name: str, make: Callable[[], Result]) -> Result:
        """Run a part, note its time and return its result."""
        began = time.monotonic()
        self.tick(name, 0.0)
        result = make()
        self.note(TimedPart(name=name, seconds=time.monotonic() - began))
        return result

    def replay(self, demo: Demo) -> None:
        """Replay each pair of answers side by side at the speed at which they were measured."""
        opened = time.monotonic()
        green = ", accepted drafts in green" if self._screen.colour else ""
        self._write(f"\nreplayed as measured, one engine after the other{green}\n")
        size = shutil.get_terminal_size()
        rows = max(1, min(MOST_ROWS, size.lines - 4))
        for plain, drafted in demo.pairs:
            frames = list_frames(
                plain, drafted, width=size.columns, rows=rows, colour=self._screen.colour
            )
            began, up = time.monotonic(), "\n"
            for moment, lines in frames:
                time.sleep(max(0.0, began + moment - time.monotonic()))
                self._write(up + "".join(f"{line}\033[K\n" for line in lines))
                up = f"\033[{len(lines)}A"
            time.sleep(READING_SECONDS)
        self._write("\n")
        self.note(TimedPart(name="both are replayed", seconds=time.monotonic() - opened))
        self._write("\n")

    def _write(self, text: str) -> None:
        self._screen.messages.write(text)
        self._screen.messages.flush()


def _describe_part(name: str, seconds: float) -> str:
    return f"{seconds:6.1f} s  {name}"
