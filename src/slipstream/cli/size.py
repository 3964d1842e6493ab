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
# replicas for ten requests per second, by a tuning of your machine
slipstream size --rate code=6 prose=4 --goal 'ttft<1s@p95' --profile tuning.json
# the same by published figures, with the cost per million tokens
slipstream size --rate code=6 prose=4 --recipe qwen3.6-27b-fp8-gb10 --price 0.5 --html sizing.html
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `size` takes."""
    demand = parser.add_argument_group("demand")
    demand.add_argument(
        "--rate",
        metavar="KIND=REQUESTS",
        nargs="+",
        default=(),
        help="requests per second of each kind in the busiest hour, such as code=6 prose=4",
    )
    demand.add_argument(
        "--trace",
        metavar="FILE",
        type=Path,
        help="recorded requests instead: ledger.jsonl, access.jsonl, or a CSV as of BurstGPT or "
        "Azure's LLM traces",
    )
    demand.add_argument(
        "--trace-kind", metavar="KIND", default="other", help="kind of a trace that does not say"
    )
    demand.add_argument(
        "--prompt-tokens",
        type=whole_number,
        default=USUAL_PROMPT,
        help=f"mean tokens per prompt (default {USUAL_PROMPT})",
    )
    demand.add_argument(
        "--answer-tokens",
        type=whole_number,
        default=USUAL_ANSWER,
        help=f"mean tokens per answer (default {USUAL_ANSWER})",
    )
    demand.add_argument(
        "--cached",
        metavar="SHARE",
        type=_share,
        default=0.0,
        help="share of prompts' tokens in the prefix cache (default 0)",
    )
    demand.add_argument(
        "--growth", type=positive_number, default=1.0, help="times the demand (default 1)"
    )
    demand.add_argument(
        "--hours",
        metavar="SHARE",
        type=_share,
        nargs=HOURS,
        default=(),
        help="24 shares of the busiest hour, from midnight",
    )
    parser.add_argument(
        "--goal",
        nargs="+",
        default=("throughput",),
        help="limits such as 'ttft<1s@p95' 'tpot<30ms@p95', or throughput (default)",
    )
    speed = parser.add_argument_group("speed of one replica")
    source = speed.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "--profile",
        metavar="FILE",
        type=Path,
        help="measured: from tune --json, or a run's ledger.jsonl or steering.json",
    )
    source.add_argument(
        "--recipe", metavar="NAME", help="published: a recipe's figures, with wide intervals"
    )
    speed.add_argument(
        "--prompt-rate",
        metavar="TOKENS",
        type=positive_number,
        help="prompt tokens per second of a replica; default: measured, or derived",
    )
    speed.add_argument(
        "--max-sequences", type=whole_number, help="sequences per replica; default: as measured"
    )
    speed.add_argument(
        "--start-seconds", type=positive_number, help="seconds until a replica serves"
    )
    parser.add_argument(
        "--routing",
        choices=("random", "power-of-two"),
        default="random",
        help="how the router chooses a replica: any one, as vllm-router does with streams "
        "(default), or the emptier of two",
    )
    _add_price(parser)
    parser.add_argument(
        "--arithmetic", action="store_true", help="no simulation: an answer within a second"
    )
    parser.add_argument(
        "--day", action="store_true", help="simulate a day, with and without a scaler"
    )
    parser.add_argument(
        "--seed", type=natural_number, default=0, help="seed of all that is drawn (default 0)"
    )
    parser.add_argument("--html", metavar="FILE", type=Path, help="write a page with pictures")
    parser.add_argument("--markdown", metavar="FILE", type=Path, help="write the tables")


def _add_price(parser: argparse.ArgumentParser) -> None:
    price = parser.add_argument_group("price of one replica's machines (nothing is assumed)")
    price.add_argument(
        "--price",
        metavar="AMOUNT",
        type=positive_number,
        help="price of a replica per hour, rented",
    )
    price.add_argument(
        "--machine-price",
        metavar="AMOUNT",
        type=positive_number,
        help="purchase price of a replica's machines; with --years",
    )
    price.add_argument(
        "--years", type=positive_number, help="years that bought machines are in use"
    )
    price.add_argument(
        "--watts",
        type=positive_number,
        help="power that a replica draws, in watts; with --energy-price",
    )
    price.add_argument(
        "--energy-price",
        metavar="AMOUNT",
        type=positive_number,
        help="price of electricity per kilowatt-hour",
    )
    price.add_argument("--currency", default="", help="name of the currency, shown with amounts")


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
    from slipstream.cli.measuring_options import write_report
    from slipstream.reporting.pages.sizing import render_sizing_html, render_sizing_markdown

    if options.html:
        write_report(options.html, render_sizing_html(sizing), screen)
    if options.markdown:
        write_report(options.markdown, render_sizing_markdown(sizing), screen)


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
