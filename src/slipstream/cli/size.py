"""`slipstream size`: how many replicas for this demand, drafted or plain, and at what cost?"""

import argparse
import os
from pathlib import Path

from slipstream.cli.arguments import natural_number, positive_number, whole_number
from slipstream.cli.screen import Screen
from slipstream.errors import ExitCode, InvalidInputError, UsageError
from slipstream.recipes.loading import load_recipes
from slipstream.reporting.text.sizing import render_sizing_text
from slipstream.sizing.demand import Arrival, Demand, KindDemand
from slipstream.sizing.engine_speed import EngineSpeed
from slipstream.sizing.money import MachinePrice, require_whole
from slipstream.sizing.published_speed import take_recipe
from slipstream.sizing.recording import read_recording
from slipstream.sizing.service_goal import parse_service_goal
from slipstream.sizing.sizer import Sizer
from slipstream.sizing.sizing import Sizing
from slipstream.user_folders import recipe_overlay

USUAL_PROMPT = 512
USUAL_ANSWER = 256
HOURS = 24


EXAMPLES = """\
# a first answer from published figures, for 10 requests per second
slipstream size --rate code=6 prose=4 --recipe qwen3.5-27b-nvfp4-gb10 --arithmetic
# limits to keep, a price per machine and hour, and a page with pictures
slipstream size --rate code=6 --profile tuning.json --goal 'ttft<1s@p95' 'tpot<30ms@p95' \\
  --price 0.5 --currency EUR --html size.html
# three times the recorded traffic of a run, at the speed that its ledger shows
slipstream size --trace ledger.jsonl --profile ledger.jsonl --growth 3
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `size`."""
    _add_demand(parser)
    _add_speed(parser)
    _add_price(parser)
    sizing = parser.add_argument_group("sizing")
    sizing.add_argument(
        "--goal",
        metavar="LIMIT",
        nargs="+",
        default=("throughput",),
        help="limits on the time to first token and per output token, such as 'ttft<1s@p95' "
        "'tpot<30ms@p95', or throughput (default throughput)",
    )
    sizing.add_argument(
        "--routing",
        choices=("random", "power-of-two"),
        default="random",
        help="how the router chooses a replica: at random, as vllm-router does with streams, or "
        "the one with fewer requests of two (default random)",
    )
    sizing.add_argument(
        "--arithmetic", action="store_true", help="leave out the simulation: takes a second"
    )
    sizing.add_argument(
        "--day",
        action="store_true",
        help="simulate a day with a fixed number of replicas and with autoscaling",
    )
    sizing.add_argument(
        "--seed", metavar="N", type=natural_number, default=0, help="random seed (default 0)"
    )
    reports = parser.add_argument_group("reports")
    reports.add_argument("--html", metavar="FILE", type=Path, help="write an HTML page with charts")
    reports.add_argument(
        "--markdown", metavar="FILE", type=Path, help="write the tables as Markdown"
    )


def _add_demand(parser: argparse.ArgumentParser) -> None:
    demand = parser.add_argument_group("load")
    demand.add_argument(
        "--rate",
        metavar="KIND=N",
        nargs="+",
        default=(),
        help="requests per second of each kind in the busiest hour, such as code=6 prose=4",
    )
    demand.add_argument(
        "--trace",
        metavar="FILE",
        type=Path,
        help="recorded requests instead of --rate: ledger.jsonl, access.jsonl, or a CSV in the "
        "format of BurstGPT or of Azure's LLM inference traces",
    )
    demand.add_argument(
        "--trace-kind",
        metavar="KIND",
        default="other",
        help="kind of the requests of a trace without kinds (default other)",
    )
    demand.add_argument(
        "--prompt-tokens",
        metavar="N",
        type=whole_number,
        default=USUAL_PROMPT,
        help=f"mean tokens per prompt (default {USUAL_PROMPT})",
    )
    demand.add_argument(
        "--answer-tokens",
        metavar="N",
        type=whole_number,
        default=USUAL_ANSWER,
        help=f"mean tokens per answer (default {USUAL_ANSWER})",
    )
    demand.add_argument(
        "--cached",
        metavar="SHARE",
        type=_share,
        default=0.0,
        help="share of the prompt tokens that the prefix cache has (default 0)",
    )
    demand.add_argument(
        "--growth",
        metavar="FACTOR",
        type=positive_number,
        default=1.0,
        help="multiply the load by this factor (default 1)",
    )
    demand.add_argument(
        "--hours",
        metavar="SHARE",
        type=_share,
        nargs=HOURS,
        default=(),
        help="load of each hour of the day from midnight on, as a share of the busiest one",
    )


def _add_speed(parser: argparse.ArgumentParser) -> None:
    speed = parser.add_argument_group("speed of a replica")
    source = speed.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "--profile",
        metavar="FILE",
        type=Path,
        help="measured speed: the output of tune --json or status RUN --json, or a run's "
        "ledger.jsonl",
    )
    source.add_argument(
        "--recipe",
        metavar="NAME",
        help="published speed: the figures of a recipe, with wide intervals",
    )
    speed.add_argument(
        "--prompt-rate",
        metavar="N",
        type=positive_number,
        help="prompt tokens per second of a replica (default: as measured, or derived)",
    )
    speed.add_argument(
        "--max-sequences",
        metavar="N",
        type=whole_number,
        help="concurrent sequences per replica (default: as measured)",
    )
    speed.add_argument(
        "--start-seconds",
        metavar="N",
        type=positive_number,
        help="seconds until a new replica serves (default: as measured)",
    )


def _add_price(parser: argparse.ArgumentParser) -> None:
    price = parser.add_argument_group("price of a replica's machines")
    for name, metavar, text in (
        ("--price", "AMOUNT", "price per hour"),
        ("--machine-price", "AMOUNT", "purchase price, with --years"),
        ("--years", "N", "years of use, with --machine-price"),
        ("--watts", "N", "power in watts, with --energy-price"),
        ("--energy-price", "AMOUNT", "price per kilowatt-hour, with --watts"),
    ):
        price.add_argument(name, metavar=metavar, type=positive_number, help=text)
    price.add_argument("--currency", metavar="NAME", default="", help="currency of the prices")


def run(options: argparse.Namespace, screen: Screen) -> ExitCode:
    """Size the demand; a goal that no number of replicas holds leaves with 4."""
    if options.html or options.markdown:
        # What pages need takes longer to import than the arithmetic to compute.
        from slipstream.cli.measuring_options import require_writable

        require_writable(options.html, options.markdown)
    if options.day and options.arithmetic:
        raise UsageError("--day is a simulation", hint="leave out --arithmetic")
    goal = parse_service_goal(options.goal)
    price = require_whole(
        MachinePrice(
            currency=options.currency[:12],
            per_hour=options.price,
            purchase=options.machine_price,
            years=options.years,
            watts=options.watts,
            per_kilowatt_hour=options.energy_price,
        )
    )
    demand, arrivals = _read_demand(options, screen)
    sizer = Sizer(
        demand,
        goal,
        _read_speed(options),
        price=price,
        seed=options.seed,
        routing=options.routing,
        arrivals=arrivals,
        say=screen.show_progress,
    )
    sizing = sizer.size(simulate=not options.arithmetic, day=options.day)
    screen.show_data(text=render_sizing_text(sizing), document=sizing.to_json())
    if options.html or options.markdown:
        _write_pages(sizing, options, screen)
    held = sizing.best is not None and sizing.best.holds is not False
    return ExitCode.DONE if held else ExitCode.GATE_MISSED


def _write_pages(sizing: Sizing, options: argparse.Namespace, screen: Screen) -> None:
    from slipstream.cli.measuring_options import write_reports
    from slipstream.reporting.pages.sizing import render_sizing_html, render_sizing_markdown

    write_reports(options, sizing, render_sizing_html, render_sizing_markdown, screen)


def _read_demand(options: argparse.Namespace, screen: Screen) -> tuple[Demand, list[Arrival]]:
    if bool(options.rate) == bool(options.trace):
        raise UsageError(
            "the demand is either given or recorded", hint="--rate code=6 prose=4, or --trace FILE"
        )
    if options.trace:
        recording = read_recording(options.trace, options.trace_kind)
        if recording.left_out:
            screen.show_progress(f"{recording.left_out} lines are no served requests: left out")
        growth = options.growth
        arrivals = [one._replace(at=one.at / growth) for one in recording.arrivals]
        demand = recording.demand
        if options.hours:
            demand = demand.model_copy(update={"hours": tuple(options.hours)})
        return demand.grow(growth), arrivals
    kinds = [_read_rate(word, options) for word in options.rate]
    if len({kind.kind for kind in kinds}) < len(kinds):
        raise UsageError("a kind is given twice", hint="--rate code=6 prose=4")
    demand = Demand(source="--rate", kinds=tuple(kinds), hours=tuple(options.hours))
    return demand.grow(options.growth), []


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
        from slipstream.sizing.speed_file import read_speed

        speed = read_speed(options.profile)
    else:
        speed = _take_recipe(options.recipe)
    changes: dict[str, object] = {}
    if options.prompt_rate:
        changes |= {"by_prompt_token": 1 / options.prompt_rate, "prompt_source": "--prompt-rate"}
    if options.max_sequences:
        changes["max_sequences"] = options.max_sequences
    if options.start_seconds:
        changes["start_seconds"] = options.start_seconds
    return speed.model_copy(update=changes)


def _take_recipe(name: str) -> EngineSpeed:
    recipes = load_recipes(overlay=recipe_overlay(os.environ))
    found = [one for one in recipes if one.name == name]
    if not found:
        raise InvalidInputError(f"there is no recipe {name}", hint="slipstream recipes")
    return take_recipe(found[0])


def _share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise argparse.ArgumentTypeError(f"'{text}' is not a share between 0 and 1")
    return share
