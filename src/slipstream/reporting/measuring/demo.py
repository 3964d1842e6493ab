"""A `Demo` as a report and as a page: the speed-up, its explanation, each prompt, its limits."""

from dataclasses import replace

from slipstream.demo.performance import Demo, RecordedAnswer
from slipstream.measuring.comparing.cautions import find_disturbance
from slipstream.measuring.comparing.verdict import EVEN
from slipstream.measuring.engine_start import report_usage
from slipstream.reporting.drawing import DOT, Scale, draw, draw_grid, frame, round_up, write
from slipstream.reporting.html_page import Figure, render_page
from slipstream.reporting.measuring.conditions import (
    describe_conditions,
    describe_machine_loads,
    describe_plan,
)
from slipstream.reporting.report import Report, Row, Section, Table, show

LEFT, RIGHT, TOP, BOTTOM = 4.0, 300.0, 34.0, 190.0


def describe_demo(demo: Demo) -> Report:
    """Return what came out, and for which prompts."""
    times = f"{demo.speed_up:.2f}"
    spread = f"{min(demo.speed_ups):.2f} to {max(demo.speed_ups):.2f}"
    count = len(demo.pairs)
    outcome = _name_outcome(demo.speed_up)
    sentence = (
        f"Drafts made {demo.conditions.model} {times} times as fast "
        f"({spread} over {count} prompts, one start each)."
    )
    if outcome != "faster" and (why := explain(demo)):
        sentence += f" {why}"
    if (busy := find_disturbance([start.machine for start in demo.starts])) is not None:
        outcome = "cannot tell"
        sentence = (
            f"Cannot tell: {busy.message}. By these times: {sentence[0].lower()}{sentence[1:]}"
        )
    parts = [(part.name, show(part.seconds)) for part in demo.parts]
    parts.append(("together", show(sum(part.seconds for part in demo.parts))))
    return Report(
        title=f"drafted against plain: {demo.conditions.model}",
        answer=outcome,
        figure=f"{times}\N{MULTIPLICATION SIGN}",
        interval=f"{spread} over {count} prompts",
        figure_note="time per token after the first, without drafts against with them",
        sentence=sentence,
        sections=[
            Section("tokens/s, prompt by prompt", _tabulate(demo)),
            Section(
                "cost and yield of a step",
                Table((), _list_steps(demo)),
                lines=explain(demo).splitlines(),
            ),
            *describe_machine_loads(
                [
                    (f"the {arm.name} engine", start.machine)
                    for arm, start in zip(demo.arms, demo.starts, strict=True)
                ]
            ),
            Section("what this does not show", lines=_list_limits(demo)),
            Section("seconds", Table((), parts), in_full=True),
            *_list_answers(demo),
            *(replace(section, in_full=True) for section in describe_conditions(demo.conditions)),
            *(describe_plan(f"engine of {arm.name}", report_usage(arm.plan)) for arm in demo.arms),
        ],
    )


def find_step_cost(demo: Demo) -> tuple[float, float] | None:
    """Return a drafted step's time in plain steps, and the tokens that came of one."""
    plain, drafted = demo.step_seconds
    tokens = demo.tokens_per_step
    return None if tokens is None else (drafted / plain, tokens)


def explain(demo: Demo) -> str:
    """Return a sentence on the cost and yield of a verification step; empty without drafts."""
    if (found := find_step_cost(demo)) is None:
        return ""
    outcome = _name_outcome(demo.speed_up)
    result = {"faster": "drafting wins", "slower": "drafting loses", "even": "it is a draw"}
    sentence = (
        f"A verification step takes {found[0]:.1f} plain steps' time here, and {found[1]:.1f} "
        f"tokens come out of it: {result[outcome]}."
    )
    host = demo.conditions.host
    lost = outcome != "faster"
    if lost and host and not host.accelerators and host.processor.has_bfloat16 is False:
        sentence += " This processor has no bfloat16 instructions."
    if lost:
        sentence += (
            f" On a GPU, where a verification step takes about as long as a plain one, "
            f"{found[1]:.1f} tokens per step are what carries over."
        )
    return sentence


def _list_steps(demo: Demo) -> list[Row]:
    if (found := find_step_cost(demo)) is None:
        return []
    plain, drafted = demo.step_seconds
    return [
        ("time of a plain step", f"{1000 * plain:.1f} ms"),
        ("time of a verification step", f"{1000 * drafted:.1f} ms"),
        ("tokens per step, to break even", f"{found[0]:.2f}"),
        ("tokens per step, measured", f"{found[1]:.2f}"),
    ]


def _name_outcome(speed_up: float) -> str:
    if abs(speed_up - 1) <= EVEN:
        return "even"
    return "faster" if speed_up > 1 else "slower"


def _tabulate(demo: Demo) -> Table:
    header = ("prompt", "tokens", "plain", "drafted", "speed-up", "tokens/step")
    rows = [
        (
            plain.prompt.kind,
            str(len(drafted.tokens)),
            *(show(1 / (one.seconds_per_token or 1)) for one in samples),
            show(ratio, 2),
            show(samples[1].draft_counts.tokens_per_step, 2),
            _compare_text(plain, drafted),
        )
        for (plain, drafted), ratio, *samples in zip(
            demo.pairs, demo.speed_ups, *(start.samples for start in demo.starts), strict=True
        )
    ]
    tokens = sum(len(answer.tokens) for answer in demo.answers[1])
    steps = show(demo.tokens_per_step, 2)
    equal = f"same for {demo.equal} of {len(rows)}"
    whole = ("all", str(tokens), "", "", show(demo.speed_up, 2), steps, equal)
    return Table((*header, "text"), [*rows, whole], words=(0, len(header)))


def _compare_text(plain: RecordedAnswer, drafted: RecordedAnswer) -> str:
    if plain.token_ids == drafted.token_ids:
        return "same"
    pairs = zip(plain.token_ids, drafted.token_ids, strict=False)
    same = next((at for at, (one, other) in enumerate(pairs) if one != other), None)
    return "one is longer" if same is None else f"differs after {same}"


def _list_limits(demo: Demo) -> list[str]:
    """Return what a few prompts and two starts leave open, and which verb answers it."""
    count = len(demo.pairs)
    text = (
        f"the same text for {count} prompts proves nothing; `slipstream verify` tests it"
        if demo.equal == count
        else "texts can differ where two tokens are nearly tied; `slipstream verify` tests it"
    )
    return [
        *([f"the target is quantized in both engines: {demo.quantized}"] if demo.quantized else ()),
        f"{count} prompts and one start of each engine give no interval; `slipstream compare` does",
        text,
    ]


def _list_answers(demo: Demo) -> list[Section]:
    """Return both texts of each prompt, or the one that both are."""
    return [
        Section(
            f"{answer.prompt.kind}, {name}",
            lines=[answer.prompt.messages[-1]["content"]],
            code="".join(token.text for token in answer.tokens),
            in_full=True,
        )
        for plain, drafted in demo.pairs
        for name, answer in (
            (("plain and drafted", plain),)
            if plain.token_ids == drafted.token_ids
            else (("plain", plain), ("drafted", drafted))
        )
    ]


def render_demo_html(demo: Demo) -> str:
    tokens = Figure(
        "time of each token",
        "Tokens so far over the seconds since the request. Without drafts a step adds one token; "
        "with drafts it adds the accepted ones and one of the target's own.",
        [_draw_pair(demo, plain, drafted) for plain, drafted in demo.pairs],
        [(letter, arm.name) for letter, arm in zip("AB", demo.arms, strict=True)],
        "broad",
    )
    return render_page(describe_demo(demo), [tokens])


def _draw_pair(demo: Demo, plain: RecordedAnswer, drafted: RecordedAnswer) -> str:
    """Draw both answers to a prompt; all prompts have the same axes."""
    answers = [answer for own in demo.answers for answer in own]
    x = Scale(0, round_up(max(answer.seconds for answer in answers)), LEFT, RIGHT)
    y = Scale(0, round_up(max(len(answer.tokens) for answer in answers)), BOTTOM, TOP)
    kind = plain.prompt.kind
    parts = [
        write(LEFT, 12, kind, "strong"),
        write(LEFT, TOP - 5, f"{y.high:g} tokens", "soft"),
        *draw_grid(y, LEFT, RIGHT),
        *(
            write(x(x.high * part), BOTTOM + 16, f"{x.high * part:g} s", "soft", anchor)
            for part, anchor in ((0, "start"), (0.5, "middle"), (1, "end"))
        ),
        _draw_answer("A", plain, x, y, first=plain.seconds < drafted.seconds),
        _draw_answer("B", drafted, x, y, first=plain.seconds >= drafted.seconds),
    ]
    description = f"plain {_describe_answer(plain)}; drafted {_describe_answer(drafted)}"
    return frame(360, BOTTOM + 22, f"{kind}: time of each token", description, *parts)


def _draw_answer(arm: str, answer: RecordedAnswer, x: Scale, y: Scale, *, first: bool) -> str:
    """Draw an answer as stairs, a step up for every chunk; the first to end has its time before."""
    path = f"M{x(0):.1f} {y(0):.1f}"
    for count, token in enumerate(answer.tokens, 1):
        if not token.drafted:
            path += f"H{x(token.seconds):.1f}V{y(count):.1f}"
    kind = arm.lower()
    end, height = x(answer.seconds), y(len(answer.tokens))
    aside, anchor = (-7, "end") if first else (7, "start")
    return draw(
        "g",
        draw("path", d=path, kind=f"line {kind}"),
        draw("circle", cx=end, cy=height, r=DOT, kind=f"dot {kind}"),
        write(end + aside, height + 4, f"{answer.seconds:.1f} s", f"value {kind}", anchor),
    )


def _describe_answer(answer: RecordedAnswer) -> str:
    return f"{len(answer.tokens)} tokens in {answer.seconds:.1f} s"
