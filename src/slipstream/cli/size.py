"""`slipstream size`: how many replicas for this demand, drafted or plain, and at what cost?"""

import argparse
import os
from pathlib import Path

from slipstream.cli.options import OptionAdder, natural_number, positive_number
from slipstream.cli.reports import require_writable, show_report
from slipstream.cli.screen import Screen
from slipstream.errors import ExitCode, InvalidInputError, UsageError
from slipstream.recipes.loading import load_recipes
from slipstream.reporting.tuning.sizing import describe_sizing, render_sizing_html
from slipstream.sizing.demand import Arrival, Demand, KindDemand
from slipstream.sizing.engine_speed import EngineSpeed
from slipstream.sizing.published_speed import take_recipe
from slipstream.sizing.recording import read_recording
from slipstream.sizing.sizer import Sizer
from slipstream.sizing.sizing import MachinePrice, parse_price
from slipstream.tuning.goal import parse_goal
from slipstream.user_folders import recipe_overlay

USUAL_PROMPT = 512
USUAL_ANSWER = 256
USUAL_KIND = "other"
HOURS = 24


EXAMPLES = """\
# a first answer from published figures, for 10 requests per second
slipstream size --rate code=6 prose=4 --recipe qwen3.5-27b-nvfp4-gb10 --arithmetic
# limits to keep, a price per machine and hour, and a page with charts
slipstream size --rate code=6 --profile tuning.json --goal 'ttft<1s@p95' 'tpot<30ms@p95' \\
  --price 0.5EUR --html size.html
# three times the recorded traffic of a run, at the speed that its ledger shows
slipstream size --trace ledger.jsonl --profile ledger.jsonl --growth 3
"""


def add_arguments(add: OptionAdder) -> None:
    _add_demand(add)
    _add_speed(add)
    add = add.group("sizing")
    add(
        "--goal LIMIT ...",
        "limits on the time to first token and per output token, such as 'ttft<1s@p95' "
        "'tpot<30ms@p95', or throughput (default throughput)",
        default=("throughput",),
    )
    add(
        "--price AMOUNT",
        "price per hour of a replica's machines, such as 0.5EUR; or of bought ones over years "
        "of use, with their power at a price per kilowatt-hour: '4000EUR/3y+240W*0.3'",
    )
    add(
        "--routing",
        "how the router chooses a replica: at random, as vllm-router does for streams, or "
        "the less loaded of two",
        default="random",
        choices=("random", "power-of-two"),
    )
    add("--arithmetic", "leave out the simulation")
    add("--day", "simulate a day with a fixed number of replicas and with autoscaling")
    add("--seed N", "random seed", natural_number, 0)
    add = add.group("reports")
    add("--html FILE", "write an HTML page with charts")
    add("--markdown FILE", "write the tables as Markdown")


def _add_demand(add: OptionAdder) -> None:
    add = add.group("load")
    add(
        "--rate KIND=N ...",
        "requests per second of each kind in the busiest hour, such as code=6 prose=4",
        default=(),
    )
    add(
        "--trace [KIND=]FILE",
        "recorded requests instead of --rate: ledger.jsonl, access.jsonl, or a CSV in the "
        "format of BurstGPT or of Azure's LLM inference traces; the kind is that of a file "
        f"without kinds (default {USUAL_KIND})",
    )
    add("--prompt-tokens N", "mean tokens per prompt", default=USUAL_PROMPT)
    add("--answer-tokens N", "mean tokens per answer", default=USUAL_ANSWER)
    add(
        "--cached SHARE",
        "share of the prompt tokens that the prefix cache has (default 0)",
        _share,
        0.0,
    )
    add("--growth FACTOR", "multiply the load by this factor (default 1)", positive_number, 1.0)
    add(
        "--hours SHARE ...",
        "load of each of the 24 hours from midnight, as a share of the busiest hour",
        _share,
        (),
    )


def _add_speed(add: OptionAdder) -> None:
    add = add.group("speed of a replica")
    source = add.exclusive(required=True)
    source(
        "--profile FILE", "measured speed: the output of tune --json, or the ledger.jsonl of a run"
    )
    source("--recipe NAME", "published speed: the figures of a recipe, with wide intervals")
    text = "prompt tokens per second (default: as measured or derived)"
    add("--prompt-rate N", text, positive_number)
    add("--max-sequences N", "concurrent sequences (default: as measured)")
    text = "seconds until a new one serves (default: as measured)"
    add("--start-seconds N", text, positive_number)


def run(options: argparse.Namespace, screen: Screen) -> ExitCode:
    """Size the demand; a goal that no number of replicas holds leaves with 4."""
    require_writable(options.html, options.markdown)
    if options.day and options.arithmetic:
        raise UsageError("--day is a simulation", hint="leave out --arithmetic")
    goal = parse_goal(options.goal, aims=("throughput",), figures=("ttft", "tpot"))
    price = MachinePrice() if options.price is None else parse_price(options.price)
    demand, arrivals = _read_demand(options, screen)
    sizer = Sizer(
        demand,
        goal,
        _read_speed(options),
        price=price,
        seed=options.seed,
        routing=options.routing,
        arrivals=arrivals,
        progress=screen.show_progress,
    )
    sizing = sizer.size(simulate=not options.arithmetic, day=options.day)
    show_report(sizing, describe_sizing(sizing), render_sizing_html, options, screen)
    held = sizing.best is not None and sizing.best.meets_goal is not False
    return ExitCode.DONE if held else ExitCode.GATE_MISSED


def _read_demand(options: argparse.Namespace, screen: Screen) -> tuple[Demand, list[Arrival]]:
    if bool(options.rate) == bool(options.trace):
        raise UsageError(
            "give the demand either as --rate or as --trace",
            hint="--rate code=6 prose=4, or --trace FILE",
        )
    arrivals: list[Arrival] = []
    if options.trace:
        kind, _, name = options.trace.rpartition("=")
        if Path(options.trace).exists():
            kind, name = "", options.trace
        recording = read_recording(Path(name), kind or USUAL_KIND)
        if recording.left_out:
            screen.show_progress(f"{recording.left_out} lines are not served requests: left out")
        arrivals = [one._replace(at=one.at / options.growth) for one in recording.arrivals]
        demand = recording.demand
    else:
        kinds = [_read_rate(word, options) for word in options.rate]
        if len({kind.kind for kind in kinds}) < len(kinds):
            raise UsageError("a kind is named twice", hint="--rate code=6 prose=4")
        demand = Demand(source="--rate", kinds=tuple(kinds))
    if options.hours:
        if len(options.hours) != HOURS:
            raise UsageError(
                f"--hours has {len(options.hours)} shares", hint="--hours with 24 shares"
            )
        demand = demand.model_copy(update={"hours": tuple(options.hours)})
    return demand.grow(options.growth), arrivals


def _read_rate(word: str, options: argparse.Namespace) -> KindDemand:
    kind, _, rate = word.partition("=")
    try:
        per_second = positive_number(rate)
    except argparse.ArgumentTypeError as fault:
        raise UsageError(f"--rate {word}: {fault}", hint="--rate code=6 prose=4") from fault
    if not kind.isprintable() or not 0 < len(kind) <= 64:
        raise UsageError(f"--rate {word!r} names no kind", hint="--rate code=6 prose=4")
    return KindDemand(
        kind=kind,
        requests_per_second=per_second,
        prompt_tokens=options.prompt_tokens,
        output_tokens=options.answer_tokens,
        cached_share=options.cached,
    )


def _read_speed(options: argparse.Namespace) -> EngineSpeed:
    if options.profile:
        from slipstream.sizing.measured_speed import read_speed

        speed = read_speed(options.profile)
    else:
        recipes = load_recipes(overlay=recipe_overlay(os.environ))
        found = next((one for one in recipes if one.name == options.recipe), None)
        if found is None:
            raise InvalidInputError(
                f"there is no recipe {options.recipe}", hint="slipstream models"
            )
        speed = take_recipe(found)
    changes: dict[str, object] = {}
    if options.prompt_rate:
        changes |= {"per_prompt_token": 1 / options.prompt_rate, "prompt_source": "--prompt-rate"}
    for name in ("max_sequences", "start_seconds"):
        if value := getattr(options, name):
            changes[name] = value
    return speed.model_copy(update=changes)


def _share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise argparse.ArgumentTypeError(f"'{text}' is not a share between 0 and 1")
    return share
