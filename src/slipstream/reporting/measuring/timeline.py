"""The timeline of a measurement: each start with its warm-up, loads and requests.

How long a warm-up took is not kept, so a start, its warm-up and its loads have scales of their own.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from slipstream.measuring.bench import BenchWarmUp, split_loads
from slipstream.measuring.client.sample import Sample
from slipstream.measuring.comparing.blocks import Arm, Block
from slipstream.reporting.drawing import (
    TEXT_WIDTH,
    Scale,
    draw,
    frame,
    join,
    protect,
    shorten,
    write,
)
from slipstream.reporting.html_page import Figure
from slipstream.reporting.report import show

WIDTH = 960.0
START, WARM, LOADS = 118.0, 214.0, 326.0
TOP, HEIGHT, BETWEEN, BETWEEN_ROUNDS = 40.0, 34.0, 20.0, 12.0
BASE = HEIGHT - 8


@dataclass(frozen=True, slots=True)
class Strip:
    """One start: its arm, its duration, its warm-up and its requests."""

    name: str
    start_seconds: float | None
    warm_up: BenchWarmUp
    block: Block


@dataclass(frozen=True, slots=True)
class _Scales:
    start: Scale
    warm: Scale
    time: Scale
    speed: Scale


def draw_timeline(strips: Sequence[Strip]) -> str:
    scales = _find_scales(strips)
    low, high = scales.speed.low, scales.speed.high
    heights = f"a row is from {low:.3g} to {high:.3g} tokens/s, logarithmic"
    parts = [
        write(START, 12, "start", "soft"),
        write(WARM, 12, "warm-up", "soft"),
        write(LOADS, 12, f"requests, over {scales.time.high:.0f} s", "soft"),
        write(WIDTH, 12, heights, "soft", "end"),
    ]
    top = TOP
    for number, strip in enumerate(strips):
        top += BETWEEN_ROUNDS * (strip.block.round != strips[number - 1].block.round and number > 0)
        drawn = _draw_strip(strip, number + 1, scales)
        parts.append(draw("g", *drawn, transform=f"translate(0 {top:.0f})"))
        top += HEIGHT + BETWEEN
    description = "; ".join(
        _describe_strip(strip, number) for number, strip in enumerate(strips, 1)
    )
    return frame(WIDTH, top, "The run, start by start", description, *parts)


def _find_scales(strips: Sequence[Strip]) -> _Scales:
    starts = [strip.start_seconds or 0.0 for strip in strips]
    rounds = [seconds for strip in strips for seconds in strip.warm_up.seconds_per_token]
    whole = [sum(map(_find_end, split_loads(strip.block.samples).values())) for strip in strips]
    samples = [sample for strip in strips for sample in strip.block.samples]
    speeds = [1 / seconds for one in samples if (seconds := one.seconds_per_token)] or [1.0]
    return _Scales(
        start=Scale(0, max(starts, default=0) or 1, START, START + 44),
        warm=Scale(0, max(rounds, default=0) or 1, HEIGHT, 4),
        time=Scale(0, max(whole, default=0) or 1, LOADS, WIDTH),
        speed=Scale(min(speeds), max(speeds), HEIGHT - 4, 4, logarithmic=True),
    )


def _find_end(samples: Sequence[Sample]) -> float:
    return max(sample.began_at + sample.seconds for sample in samples)


def _draw_strip(strip: Strip, number: int, scales: _Scales) -> list[str]:
    arm = strip.block.arm
    ready = scales.start(strip.start_seconds or 0)
    parts = [
        write(0, BASE, str(number), "soft"),
        draw("circle", cx=26, cy=BASE - 4, r=4, kind=f"dot {arm.lower()}"),
        write(36, BASE, shorten(strip.name, 60), f"value {arm.lower()}"),
        draw("rect", x=START, y=BASE - 9, width=ready - START, height=10, kind="start"),
        write(ready + 5, BASE, show(strip.start_seconds, 0, "s"), "soft"),
        *_draw_warm_up(strip.warm_up, scales.warm),
    ]
    began, before, free = 0.0, 0, 0.0
    for (kind, concurrency), samples in split_loads(strip.block.samples).items():
        parts.append(_draw_load(f"{kind}, concurrency {concurrency}", samples, began, arm, scales))
        label = str(concurrency) if before else f"concurrency {concurrency}"
        if concurrency != before and (left := scales.time(began)) >= free:
            parts.append(write(left, -4, label, "soft"))
            free = left + TEXT_WIDTH * (len(label) + 1)
        began, before = began + _find_end(samples), concurrency
    return parts


def _draw_warm_up(warm: BenchWarmUp, scale: Scale) -> list[str]:
    if not warm.seconds_per_token:
        return [write(WARM, BASE, "none", "soft")]
    places = [(WARM + 7 * at, scale(time)) for at, time in enumerate(warm.seconds_per_token)]
    end, height = places[-1]
    return [
        draw("path", d=join(places), kind="line soft"),
        *(draw("circle", cx=x, cy=y, r=1.7, kind="dot soft") for x, y in places),
        write(end + 6, height + 4, f"{1000 * warm.seconds_per_token[-1]:.1f} ms", "soft"),
        write(WARM, -4, "" if warm.flat else "not flat", "warn"),
    ]


def _draw_load(
    title: str, samples: Sequence[Sample], began: float, arm: Arm, scales: _Scales
) -> str:
    """Draw each request as a line as long as it took, at the height of its speed."""
    left, right = scales.time(began), scales.time(began + _find_end(samples))
    lines = crosses = "M0 0"
    for sample in samples:
        begin = scales.time(began + sample.began_at)
        end = scales.time(began + sample.began_at + sample.seconds)
        if sample.error is not None:
            crosses += f"M{max(end - 7, left):.1f} {HEIGHT - 7:.1f}l6 6m0 -6l-6 6"
        elif seconds := sample.seconds_per_token:
            lines += f"M{begin:.1f} {scales.speed(1 / seconds):.1f}h{max(end - begin, 0.5):.1f}"
    return draw(
        "g",
        draw("title", protect(f"{title}: {_count(samples)} in {_find_end(samples):.1f} s")),
        draw("rect", x=left, y=0, width=max(right - left - 1, 0.5), height=HEIGHT, kind="load"),
        draw("path", d=lines, kind=f"request {arm.lower()}"),
        draw("path", d=crosses, kind="fail"),
    )


def _count(samples: Sequence[Sample]) -> str:
    return f"{len(samples)} requests, {sum(one.error is not None for one in samples)} failed,"


def _describe_strip(strip: Strip, number: int) -> str:
    return (
        f"{number} {strip.name}: start {show(strip.start_seconds, 0, 's')}, "
        f"{_count(strip.block.samples)} {strip.warm_up.rounds} rounds of warm-up"
    )


def draw_run(strips: Sequence[Strip], key: Sequence[tuple[str, str]]) -> Figure:
    kinds = dict.fromkeys(sample.kind for strip in strips for sample in strip.block.samples)
    caption = (
        "Each request is a line as long as it took, at the height of its speed; a cross is one "
        f"that failed. At each concurrency the loads follow one another: {', '.join(kinds)}. "
        "A warm-up is shown as its time per token, round by round."
    )
    title = "the run, start by start"
    return Figure(title, caption, [draw_timeline(strips)], key, "wide", folded=True)
