"""A `Demo` as text: the speed-up, its explanation, each prompt, and its limits."""

from dataclasses import replace

from slipstream.demo.performance import Demo, count_tokens_per_step, find_step_seconds
from slipstream.demo.recording import Take
from slipstream.measuring.engine_start import report_usage
from slipstream.reporting.pages.report import Report, Row, Section, Table, render_text, show
from slipstream.reporting.serving.machine import describe_machine_loads
from slipstream.reporting.text.conditions import describe_conditions, describe_plan

EVEN_WITHIN = 0.05


def render_demo_text(demo: Demo) -> str:
    """Return a demo's result as text."""
    return render_text(describe_demo(demo))


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
    if (disturbed := demo.disturbance) is not None:
        name, machine = disturbed
        outcome = "cannot tell"
        sentence = (
            f"Cannot tell: the machine was busy while the {name} engine answered, "
            f"{machine.describe()}. By these times: {sentence[0].lower()}{sentence[1:]}"
        )
    return Report(
        title=f"drafted against plain: {demo.conditions.model}",
        answer=outcome,
        figure=f"{times}\N{MULTIPLICATION SIGN}",
        interval=f"{spread} over {count} prompts",
        figure_note="time per token after the first, without drafts against with them",
        sentence=sentence,
        sections=[
            Section("tokens/s, prompt by prompt", _tabulate(demo)),
            *_describe_steps(demo),
            *describe_machine_loads(
                [(f"the {name} engine", machine) for name, machine in demo.machines.items()]
            ),
            Section("what this does not show", lines=_list_limits(demo)),
            Section("seconds", Table((), [*_list_parts(demo)]), in_full=True),
            *_list_answers(demo),
            *(replace(section, in_full=True) for section in describe_conditions(demo.conditions)),
            *_describe_engines(demo),
        ],
    )


def explain(demo: Demo) -> str:
    """Return a sentence on the cost and yield of a verification step; empty without drafts."""
    cost, tokens = demo.step_cost, demo.tokens_per_step
    if cost is None or tokens is None:
        return ""
    outcome = _name_outcome(demo.speed_up)
    result = {"faster": "drafting wins", "slower": "drafting loses", "even": "it is a draw"}
    sentence = (
        f"A verification step takes {cost:.1f} plain steps' time here, and {tokens:.1f} tokens "
        f"come out of it: {result[outcome]}."
    )
    host = demo.conditions.host
    computes_on_cpu = host is not None and not host.accelerators
    if host and computes_on_cpu and outcome != "faster" and host.processor.has_bfloat16 is False:
        sentence += " This processor has no bfloat16 instructions."
    return sentence


def _describe_steps(demo: Demo) -> list[Section]:
    cost, tokens = demo.step_cost, demo.tokens_per_step
    if cost is None or tokens is None:
        return []
    plain, drafted = (1000 * find_step_seconds(takes) for takes in (demo.plain, demo.drafted))
    rows = [
        ("time of a plain step", f"{plain:.1f} ms"),
        ("time of a verification step", f"{drafted:.1f} ms"),
        ("tokens per step, to break even", f"{cost:.2f}"),
        ("tokens per step, measured", f"{tokens:.2f}"),
    ]
    return [Section("cost and yield of a step", Table((), rows), lines=[explain(demo)])]


def _name_outcome(speed_up: float) -> str:
    if abs(speed_up - 1) <= EVEN_WITHIN:
        return "even"
    return "faster" if speed_up > 1 else "slower"


def _tabulate(demo: Demo) -> Table:
    header = ("prompt", "tokens", "plain", "drafted", "speed-up", "tokens/step")
    rows = [
        (
            plain.prompt.kind,
            str(len(drafted.tokens)),
            show(1 / plain.seconds_per_token),
            show(1 / drafted.seconds_per_token),
            show(ratio, 2),
            show(count_tokens_per_step([drafted]), 2),
            _compare_text(plain, drafted),
        )
        for (plain, drafted), ratio in zip(demo.pairs, demo.speed_ups, strict=True)
    ]
    tokens = sum(len(take.tokens) for take in demo.drafted)
    steps = show(demo.tokens_per_step, 2)
    equal = f"the same for {demo.equal} of {len(rows)}"
    whole = ("all", str(tokens), "", "", show(demo.speed_up, 2), steps, equal)
    return Table((*header, "text"), [*rows, whole], words=(0, len(header)))


def _compare_text(plain: Take, drafted: Take) -> str:
    if plain.token_ids == drafted.token_ids:
        return "the same"
    pairs = zip(plain.token_ids, drafted.token_ids, strict=False)
    same = next((at for at, (one, other) in enumerate(pairs) if one != other), None)
    return "one is longer" if same is None else f"parts after {same} tokens"


def _list_limits(demo: Demo) -> list[str]:
    """Return what a few prompts and two starts leave open, and which verb answers it."""
    count = len(demo.pairs)
    text = (
        f"the same text for {count} prompts is no proof; `slipstream verify` is one"
        if demo.equal == count
        else "where texts differ, two tokens may have been nearly tied; `slipstream verify` judges"
    )
    return [
        f"{count} prompts and one start of each engine give no interval; `slipstream compare` does",
        text,
    ]


def _list_parts(demo: Demo) -> list[Row]:
    whole = sum(part.seconds for part in demo.parts)
    return [
        *((part.name, show(part.seconds)) for part in demo.parts),
        ("together", show(whole)),
    ]


def _list_answers(demo: Demo) -> list[Section]:
    """Return both texts of each prompt, or the one that both are."""
    return [
        Section(
            f"{take.prompt.kind}, {name}",
            lines=[take.prompt.messages[-1]["content"]],
            code="".join(token.text for token in take.tokens),
            in_full=True,
        )
        for plain, drafted in demo.pairs
        for name, take in (
            (("plain and drafted", plain),)
            if plain.token_ids == drafted.token_ids
            else (("plain", plain), ("drafted", drafted))
        )
    ]


def _describe_engines(demo: Demo) -> list[Section]:
    plan = demo.conditions.plan
    if plan is None:
        return []
    return [
        describe_plan("engine of plain", demo.plain_plan),
        describe_plan("engine of drafted", report_usage(plan)),
    ]
