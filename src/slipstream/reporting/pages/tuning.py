"""A `Tuning` as a page with charts, and as Markdown."""

from slipstream.reporting.drawing import Scale, draw, frame, round_up, rule, write
from slipstream.reporting.html_page import Figure, render_page
from slipstream.reporting.report import render_markdown
from slipstream.reporting.text.tuning import describe_tuning, list_loads
from slipstream.tuning.profile import SpeedProfile
from slipstream.tuning.speed_model import Prediction
from slipstream.tuning.tuner import Tuning


def render_tuning_markdown(tuning: Tuning) -> str:
    """Write what was found as Markdown."""
    return render_markdown(describe_tuning(tuning))


def render_tuning_html(tuning: Tuning) -> str:
    """Write what was found as one page."""
    profile = tuning.profile
    speeds = Figure(
        "tokens per second by draft length",
        "One panel per load. The line is predicted, with its 95 % band; the dashed line is an "
        "engine without drafts; the ring is the best; a diamond was served to confirm it.",
        [_draw_load(profile, load) for load in list_loads(profile)],
    )
    steps = Figure(
        "time of a step by its tokens, ms",
        "Dots are loads that were measured, filled with drafts and hollow without; the bar beside "
        "each is what was fitted. A step's tokens are those that it verifies, of all sequences.",
        [_draw_steps(profile)],
        layout="broad",
    )
    return render_page(describe_tuning(tuning), [speeds, steps])


def _draw_load(profile: SpeedProfile, load: int) -> str:
    own = [one for one in profile.predictions if one.concurrency == load and not one.far]
    drafting = [one for one in own if one.draft_length]
    plain = next((one for one in own if not one.draft_length), None)
    best = max(own, key=lambda one: one.tokens_per_second)
    top = round_up(max(one.tokens_per_second * (1 + one.error) for one in own))
    lengths = [one.draft_length for one in drafting]
    x, y = Scale(min(lengths), max(lengths), 14, 190), Scale(0, top, 122, 34)
    upper = [(x(one.draft_length), y(_reach(one, 1))) for one in drafting]
    lower = [(x(one.draft_length), y(_reach(one, -1))) for one in drafting]
    path = [(x(one.draft_length), y(one.tokens_per_second)) for one in drafting]
    parts = [
        write(0, 12, f"concurrency {load}", "strong"),
        write(0, y(top) - 4, f"{top:g}", "soft"),
        *(rule(0, y(top * part), 204, y(top * part), "grid") for part in (0.5, 1)),
        draw("path", d=f"{_join([*upper, *reversed(lower)])}Z", kind="band"),
        rule(0, y(0), 204, y(0), "axis"),
        *(write(x(length), 138, str(length), "soft", "middle") for length in lengths),
        draw("path", d=_join(path), kind="line b"),
    ]
    if plain is not None:
        height = y(plain.tokens_per_second)
        parts.append(draw("path", d=_join([(0, height), (204, height)]), kind="line a"))
    if best.draft_length:
        place = {"cx": x(best.draft_length), "cy": y(best.tokens_per_second)}
        parts.append(draw("circle", r=5.0, kind="dot a", **place))
    parts += _draw_served(profile, load, x, y)
    description = ", ".join(
        f"{one.draft_length or 'plain'} {one.tokens_per_second:.1f}" for one in own
    )
    return frame(230, 142, f"concurrency {load}: tokens per second", description, *parts)


def _draw_served(profile: SpeedProfile, load: int, x: Scale, y: Scale) -> list[str]:
    if load != profile.choice.concurrency:
        return []
    speeds = {
        one.draft_length: profile.model.predict(one.draft_length, load).tokens_per_second
        / (1 + one.off_by)
        for one in profile.confirmations
        if one.draft_length
    }
    return [
        draw(
            "path",
            d="M0 -5L5 0L0 5L-5 0Z",
            transform=f"translate({x(length):.1f} {y.clip(speed):.1f})",
            kind="dot b",
        )
        for length, speed in speeds.items()
    ]


def _draw_steps(profile: SpeedProfile) -> str:
    tokens = [point.sequences * (point.draft_length + 1) for point in profile.points]
    top = round_up(1000 * max(point.seconds_per_step for point in profile.points))
    last = max(tokens)
    x, y = Scale(0, last, 30, 345), Scale(0, top, 180, 26)
    parts = [
        *(rule(30, y(top * part), 350, y(top * part), "grid") for part in (0.5, 1)),
        *(write(24, y(top * part) + 4, f"{top * part:g}", "soft", "end") for part in (0.5, 1)),
        rule(30, y(0), 350, y(0), "axis"),
        *(write(x(last * at), 197, f"{last * at:.0f}", "soft", "middle") for at in (0.5, 1)),
    ]
    for size, point in zip(tokens, profile.points, strict=True):
        fitted, _ = profile.step_time.predict(point.sequences, round(point.draft_length))
        kind = "b" if point.draft_length else "a"
        height = y(1000 * point.seconds_per_step)
        parts.append(rule(x(size), y.clip(1000 * fitted), x(size), height, f"tick {kind}"))
        parts.append(
            rule(
                x(size) - 5,
                y.clip(1000 * fitted),
                x(size) + 5,
                y.clip(1000 * fitted),
                f"tick {kind}",
            )
        )
        parts.append(draw("circle", cx=x(size), cy=height, r=3.4, kind=f"dot {kind}"))
    description = f"{len(tokens)} loads, off the fit by {profile.step_time.spread:.1%}"
    return frame(360, 204, "time of a step, ms", description, *parts)


def _reach(one: Prediction, side: int) -> float:
    return max(0.0, one.tokens_per_second * (1 + side * one.error))


def _join(places: list[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{across:.1f} {down:.1f}" for across, down in places)
