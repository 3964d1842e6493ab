"""A `LiveView` as lines for a terminal of any width: what `slipstream top` draws every second.

Pure: a view in, lines out. Names, events and reasons are others' text and are cleaned here.
"""

import re
import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from math import ceil
from pathlib import Path
from unicodedata import category, east_asian_width

from slipstream.reporting.report import Row, Table, align, align_table, clean, show
from slipstream.reporting.serving.run import show_age
from slipstream.serving.live_view import LiveView
from slipstream.serving.run_status import RunStatus
from slipstream.steering.state import KINDS, KindCounts, SteeringState
from slipstream.units import UNKNOWN, show_bytes

SHOWN_KEYS = 6
LEAST_BYTES = 2**26
BETWEEN = "    "
_BOLD, _CYAN, _PLAIN = "\033[1m", "\033[36m", "\033[0m"
_HEIGHTS = " ▁▂▃▄▅▆▇█"
_BARS = re.compile(f"[{_HEIGHTS[1:]}░][{_HEIGHTS}░]+")
_ASCII_HEIGHTS = " .:-=+*#%"
_ELLIPSIS = "…"


@dataclass(frozen=True, slots=True)
class Terminal:
    """The abilities of a terminal; `rows` is None where nothing limits them."""

    width: int = 80
    rows: int | None = None
    colour: bool = False
    unicode: bool = True

    @property
    def heights(self) -> str:
        """The characters for bars of rising height, the first of them empty."""
        return _HEIGHTS if self.unicode else _ASCII_HEIGHTS

    def cut(self, line: str) -> str:
        """Return as much of a line as fits; some signs are two columns wide, some none."""
        taken = 0
        for at, sign in enumerate(line):
            taken += _measure(sign)
            if taken > self.width:
                kept = line[: max(0, at - 1)]
                return f"{kept}{_ELLIPSIS if self.unicode else '.'}"
        return line

    def paint(self, line: str, *, bold: bool) -> str:
        """Return a line in colour: headings are bold and bars are cyan."""
        if not self.colour or not line:
            return line
        drawn = _BARS.sub(rf"{_CYAN}\g<0>{_PLAIN}", line)
        return f"{_BOLD}{line}{_PLAIN}" if bold else drawn


def render_top(
    view: LiveView,
    terminal: Terminal,
    *,
    before: LiveView | None = None,
    history: Sequence[float | None] = (),
) -> list[str]:
    """Draw a run; `before` is an earlier view, and `history` the throughput second by second."""
    throughput = history[-1] if history else view.measure_throughput(before)
    parts = [
        [_describe_run(view, terminal), *_describe_figures(view, throughput, history, terminal)],
        *_arrange(_describe_acceptance(view, before, terminal), _describe_lengths(view), terminal),
        _describe_keys(view),
        _describe_events(view),
    ]
    lines = [line for part in parts if part for line in ("", *part)][1:]
    headings = {0} | {at + 1 for at, line in enumerate(lines) if not line}
    cut = [terminal.cut(clean(line).rstrip()) for line in lines]
    shown = [terminal.paint(line, bold=at in headings) for at, line in enumerate(cut)]
    return shown[: terminal.rows]


def _describe_run(view: LiveView, terminal: Terminal) -> str:
    status = view.status
    age = show_age((view.at - status.since).total_seconds())
    name = f"{clean(status.id)}  {status.state} for {age}"
    clock = f"{view.at:%H:%M:%S} UTC"
    gap = terminal.width - sum(map(_measure, name)) - len(clock)
    return f"{name}{' ' * gap}{clock}" if gap >= 2 else name


def _describe_figures(
    view: LiveView, throughput: float | None, history: Sequence[float | None], terminal: Terminal
) -> list[str]:
    rows = [
        ("throughput", _describe_throughput(throughput, history, terminal)),
        ("batch", _describe_batch(view)),
        ("draft length", _describe_length(view)),
        ("step", _describe_step(view.steering)),
        ("first token", _describe_first_tokens(view)),
        ("requests", _describe_traffic(view)),
        ("cache", _describe_cache(view, terminal)),
        ("memory", _describe_memory(view)),
        ("drafter", _name_drafter(view.status.drafter)),
        *(("drift", drift.describe()) for drift in view.status.drifts),
        *([("learning", view.status.learning.describe())] if view.status.learning else []),
        *(("note", note) for note in view.status.run_notes),
    ]
    return align(rows)


def _name_drafter(drafter: str | None) -> str:
    """Return a drafter's name; of a folder on this disk, the last part."""
    if drafter is None:
        return "none: plain decoding"
    return Path(drafter).name if drafter.startswith("/") else drafter


def _describe_throughput(
    throughput: float | None, history: Sequence[float | None], terminal: Terminal
) -> str:
    if throughput is None:
        return UNKNOWN
    figure = f"{throughput:.1f} tokens/s"
    room = terminal.width - len("draft length") - len(figure) - len(BETWEEN)
    known = [value or 0.0 for value in history[-max(0, room) :]] if room > 8 else []
    if not any(known):
        return figure
    heights, most = terminal.heights, max(known)
    bars = (heights[ceil((len(heights) - 1) * value / most)] for value in known)
    return f"{figure}  {''.join(bars)}"


def _describe_batch(view: LiveView) -> str:
    load = view.steering or view.engine
    running, queued = (load.running, load.waiting) if load else (view.in_flight, None)
    if running is None:
        return UNKNOWN
    in_engine = "" if queued is None else f", {queued} waiting in the engine"
    return f"{running} running{in_engine}, {view.waiting} waiting for a seat"


def _describe_length(view: LiveView) -> str:
    state = view.steering
    if state is None or state.draft_length is None:
        return UNKNOWN if view.status.drafter else "none"
    longest = "" if state.longest is None else f" of {state.longest}"
    bounds = [("at least", state.least), ("at most", state.most)]
    orders = [f"{word} {bound} (limit set)" for word, bound in bounds if bound is not None]
    plain = ["a step without drafts is the fastest"] if state.plain_pays else []
    waits = [f"waiting to be measured: slipstream tune {view.status.target}"]
    unmeasured = waits if view.status.awaits_tuning and not state.steers else []
    words = ["steered" if state.steers else "fixed", *unmeasured, *plain, *orders]
    return f"{state.draft_length}{longest}, {', '.join(words)}"


def _describe_step(state: SteeringState | None) -> str:
    if state is None or state.step_seconds is None:
        return UNKNOWN
    return f"{1000 * state.step_seconds:.1f} ms, {state.steps} steps so far"


def _describe_first_tokens(view: LiveView) -> str:
    found = view.traffic.first_token if view.traffic else None
    if found is None:
        return "no streams lately" if view.status.gated else UNKNOWN
    return f"p50 {found.p50:.2f} s, p90 {found.p90:.2f} s, p99 {found.p99:.2f} s"


def _describe_traffic(view: LiveView) -> str:
    if view.traffic is None:
        return "none yet" if view.status.gated else UNKNOWN
    traffic = view.traffic
    refused = f", {traffic.refused} refused" if traffic.refused else ""
    return f"{traffic.requests} in the last {show_age(traffic.seconds)}{refused}"


def _describe_cache(view: LiveView, terminal: Terminal) -> str:
    state, engine = view.steering, view.engine
    usage = state.kv_usage if state else engine.kv_usage if engine else None
    hits = engine.cache_hit_share if engine else None
    shares = [] if usage is None else [f"{100 * usage:.0f} % used {_draw_bar(usage, terminal)}"]
    shares += [] if hits is None else [f"prefix hits {100 * hits:.0f} %"]
    return ", ".join(shares) or UNKNOWN


def _draw_bar(share: float, terminal: Terminal, width: int = 10) -> str:
    full = max(0, min(width, round(share * width)))
    done, left = ("█", "░") if terminal.unicode else ("#", ".")
    return done * full + left * (width - full)


def _describe_memory(view: LiveView) -> str:
    if not view.processes:
        return "no engine"
    roles: Counter[str] = Counter()
    for one in view.processes:
        roles[one.role] += one.bytes or 0
    parts = [
        f"{role} {show_bytes(size)}" for role, size in roles.most_common() if size >= LEAST_BYTES
    ]
    whole = show_bytes(view.status.engine_bytes)
    return f"{whole}: {', '.join(parts)}" if parts else whole


def _describe_acceptance(view: LiveView, before: LiveView | None, terminal: Terminal) -> list[str]:
    kinds, recent = _list_kinds(view, before)
    if not kinds:
        return []
    positions = max(len(counts.accepted) for counts in kinds.values())
    copies = any(counts.copies for counts in kinds.values())
    header = (
        *("kind", "requests", "tokens/step", *(("copied",) if copies else ())),
        *(str(one + 1) for one in range(positions)),
    )
    rows: list[Row] = []
    for kind, counts in kinds.items():
        shares = [f"{100 * share:.0f}" for share in counts.by_position] or ["-"] * positions
        blank = [""] * (positions - len(shares))
        copied = [f"{counts.copied_share or 0:.0%}"] if copies else []
        speed = show(counts.tokens_per_step, 2)
        rows.append((kind, str(counts.requests), speed, *copied, *shares, *blank))
    title = "accepted by kind and position, % of drafts, "
    title += "of the last minute" if recent else "since the engine started"
    return [title, *map(terminal.cut, align_table(Table(header, rows)))]


def _list_kinds(view: LiveView, before: LiveView | None) -> tuple[dict[str, KindCounts], bool]:
    """Return the counts by kind, of late if there were drafts; those of vLLM without a report."""
    if (state := view.steering) is None:
        return _count_all(view), False
    earlier = before.steering.kinds if before and before.steering else {}
    recent = {kind: state.kinds[kind].since(earlier.get(kind)) for kind in state.kinds}
    drafting: dict[str, KindCounts] = {
        kind: recent[kind]
        for kind in KINDS
        if kind in recent and (recent[kind].drafts or recent[kind].copies)
    }
    if earlier and drafting:
        return drafting, True
    return {kind: state.kinds[kind] for kind in KINDS if kind in state.kinds}, False


def _count_all(view: LiveView) -> dict[str, KindCounts]:
    engine = view.engine
    if engine is None or not engine.drafts:
        return {}
    whole = KindCounts(
        requests=view.counts.total if view.counts else 0,
        aborted=0,
        tokens=engine.drafts + sum(engine.accepted),
        steps=engine.drafts,
        drafts=engine.drafts,
        drafted=engine.drafted,
        accepted=engine.accepted,
    )
    return {"all": whole}


def _describe_lengths(view: LiveView) -> list[str]:
    state = view.steering
    if state is None or not state.lengths:
        return []
    rows = [
        (
            f"{one.draft_length}{'*' if one.draft_length == state.draft_length else ' '}",
            show(one.step_seconds and 1000 * one.step_seconds, 1, "ms"),
            show(one.tokens_per_step, 2),
            show(one.tokens_per_second),
            str(one.steps),
        )
        for one in state.lengths
    ]
    table = Table(("length", "step", "tokens/step", "tokens/s", "steps"), rows)
    return [
        "estimated by draft length, for this batch; * is in use",
        *align_table(table),
        *_say_whether_drafts_pay(state, view.status),
    ]


def _say_whether_drafts_pay(state: SteeringState, status: RunStatus) -> list[str]:
    speeds = {
        one.draft_length: one.tokens_per_second for one in state.lengths if one.tokens_per_second
    }
    plain, drafted = speeds.pop(0, None), max(speeds.values(), default=None)
    compare = f"to measure it: slipstream compare {shlex.quote(status.target)}"
    if plain is not None and drafted is not None:
        answer = "yes" if drafted > plain else "no"
        return [f"drafts pay? {answer}, {drafted / plain:.1f} x or so", compare]
    missing, limit = ("without", "0  # then --k any") if plain is None else ("with", "any")
    known = f"drafts pay? no step {missing} drafts was measured"
    if not state.steers:
        return [known, compare]
    return [f"{known}; for a few requests set", f"slipstream swap {status.id} --k {limit}"]


def _describe_keys(view: LiveView) -> list[str]:
    if view.counts is None or not view.counts.by_key:
        return []
    busiest = sorted(
        view.counts.by_key.items(),
        key=lambda item: (-item[1].in_flight - item[1].waiting, -item[1].total),
    )
    rows = [
        (clean(key)[:24], str(one.in_flight), str(one.waiting), str(one.total))
        for key, one in busiest[:SHOWN_KEYS]
    ]
    left = len(busiest) - SHOWN_KEYS
    more = [f"and {left} more"] if left > 0 else []
    return ["keys", *align_table(Table(("key", "in flight", "waiting", "requests"), rows)), *more]


def _describe_events(view: LiveView) -> list[str]:
    newest = [
        f"{one.at:%H:%M:%S}  {one.state:<9}  {clean(one.message)}" for one in reversed(view.events)
    ]
    return ["events", *newest] if newest else []


def _arrange(left: list[str], right: list[str], terminal: Terminal) -> list[list[str]]:
    """Place two tables side by side where there is room for both."""
    width = max(map(len, left), default=0)
    if not left or not right or width + len(BETWEEN) + max(map(len, right)) > terminal.width:
        return [left, right]
    pairs = zip_longest(left, right, fillvalue="")
    return [[f"{one.ljust(width)}{BETWEEN}{other}".rstrip() for one, other in pairs]]


def _measure(sign: str) -> int:
    if category(sign) in ("Mn", "Me"):
        return 0
    return 2 if east_asian_width(sign) in "WF" else 1
