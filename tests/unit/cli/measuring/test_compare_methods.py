"""`compare` with several arms as a user types it: which plans, in which order, what is refused."""

import argparse
from pathlib import Path

import pytest

from slipstream.checkpoints.pairing import Fault
from slipstream.cli.main import run
from slipstream.cli.planning.plan import find_host, plan_plain
from slipstream.cli.planning.plan import make_plan as plan_options
from slipstream.hardware import Host
from slipstream.measuring.bench import Bench, BenchWarmUp, Load
from slipstream.measuring.client.engine_metrics import EngineCounts
from slipstream.measuring.comparing.comparison import Comparison
from slipstream.measuring.engine_start import StartFigures
from slipstream.planning.plan import LaunchPlan
from slipstream.planning.planner import make_plan
from slipstream.planning.settings.options import make_options
from tests.unit.cli.planning.test_plan_methods import write_models
from tests.unit.measuring.comparing.simulated_server import Server, measure
from tests.unit.planning.pieces import TARGET
from tests.unit.reporting.page_reading import parse

Capture = pytest.CaptureFixture[str]

Asked = list[tuple[str, str | None]]

SPEEDS = {"dflash": 1.5, "ngram": 2.2, "eagle3": 1.2}
FEW = ("--workload", "code", "--concurrency", "1", "--rounds", "1")


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Asked:
    """Plan by the name of the method, and let engines be as fast as the method is."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    asked: Asked = []

    def plan(options: argparse.Namespace, _: Host) -> LaunchPlan:
        asked.append((options.method, options.drafter))
        return plan_method(options.method)

    monkeypatch.setattr("slipstream.cli.planning.method_plans.make_plan", plan)
    monkeypatch.setattr(
        "slipstream.cli.planning.method_plans.plan_plain", lambda plan, _: plan.without_drafts()
    )
    monkeypatch.setattr(
        "slipstream.cli.measuring.compare.WeightsOnDisk.localize", lambda _, plan: plan
    )
    monkeypatch.setattr("slipstream.measuring.comparing.comparison.measure_start", start)
    return asked


def plan_method(method: str, *refusals: Fault) -> LaunchPlan:
    words = () if method == "plain" else ("--speculative-config.method", method)
    plan = make_plan(find_host(None), TARGET, None, None, make_options(engine=words))
    return plan.model_copy(update={"refusals": refusals})


def start(plan: LaunchPlan, _: Bench, **rest: object) -> StartFigures:
    """Have a server answer as fast as the plan's method is."""
    method = plan.speculation.method.value if plan.speculation else "plain"
    server = Server(
        kinds=("code",),
        concurrencies=(1,),
        speed_up=lambda kind, concurrency: SPEEDS.get(method, 1.0),
    )
    (block,) = measure(server, 1, "B")
    warm = BenchWarmUp(rounds=1, seconds_per_token=(0.01,), flat=True)
    loads = (Load(kind="code", concurrency=1, counts=EngineCounts()),)
    return StartFigures(1.0, warm, loads, block.samples)


def test_each_method_is_planned_and_the_fastest_is_named(asked: Asked, capsys: Capture) -> None:
    words = ["compare", "it", "--methods", "dflash=mine", "ngram", "plain", "eagle3", *FEW]
    assert run([*words, "--json", "--html", "it.html", "--markdown", "it.md"], {}) == 0
    assert asked == [("dflash", "mine"), ("ngram", None), ("eagle3", None)]
    done = Comparison.model_validate_json(capsys.readouterr().out)
    assert done.verdict.arms == ("plain", "dflash", "ngram", "eagle3")
    assert [start.arm for start in done.starts] == list("ABDCCDBA")
    assert done.verdict.places[0].contenders == ("ngram",)
    assert parse(Path("it.html").read_text()).tag == "html"
    assert Path("it.md").read_text().startswith("# plain, dflash, ngram, eagle3: ")
    assert run(words, {}) == 0
    assert capsys.readouterr().out.startswith("At concurrency 1 ngram is fastest (2.")


def test_two_methods_are_an_ordinary_comparison(asked: Asked, capsys: Capture) -> None:
    assert run(["compare", "it", "--methods", "ngram", "plain", *FEW, "--json"], {}) == 0
    assert asked == [("ngram", None)]
    done = Comparison.model_validate_json(capsys.readouterr().out)
    assert done.verdict.arms == ("plain", "ngram")
    assert [start.arm for start in done.starts] == list("ABBA")
    assert done.verdict.sentence.startswith("Use ngram: it is 2.")


@pytest.mark.usefixtures("asked")
def test_saved_plans_are_held_against_the_first_of_them(capsys: Capture) -> None:
    for method in ("plain", "dflash", "ngram"):
        Path(f"{method}.json").write_text(plan_method(method).to_json())
    words = ["compare", "ngram.json", "--against", "plain.json", "dflash.json", *FEW]
    assert run([*words, "--json"], {}) == 0
    done = Comparison.model_validate_json(capsys.readouterr().out)
    assert done.verdict.arms == ("plain", "dflash", "ngram")
    assert done.verdict.places[0].contenders == ("ngram",)
    for more, told in (
        (["--against", "plain.json", "./ngram.json"], "compare up to 8 plans in different files"),
        (["--against", *["plain.json"] * 8], "compare up to 8 plans in different files"),
        (["--methods", "dflash", "ngram"], "--methods and a saved plan cannot be combined"),
    ):
        assert run(["compare", "ngram.json", *more], {}) == 2
        assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["dflash"], "--methods takes 2 to 8 methods, not 1"),
        (["dflash", "ngram", "dflash"], "--methods names dflash twice"),
        (["dflash", "dflash=other"], "--methods names dflash twice"),
        (["dflash", "medusa"], "unknown method 'medusa'"),
        (["dflash", "ngram=mine"], "'ngram=mine' names no drafter that ngram could use"),
        (["dflash=", "ngram"], "'dflash=' names no drafter that dflash could use"),
        (["dflash", "plain", "--against", "a.json"], "--methods and --against cannot be combined"),
        (["dflash", "plain", "--no-speculation"], "--methods and --method cannot be combined"),
        (["dflash", "plain", "--drafter", "mine"], "--methods and --drafter cannot be combined"),
        (["dflash", "plain", "--method", "ngram"], "--methods and --method cannot be combined"),
    ],
)
def test_what_cannot_be_compared_is_refused_before_anything_is_planned(
    words: list[str], told: str, asked: Asked, capsys: Capture
) -> None:
    assert run(["compare", "it", "--methods", *words], {}) == 2
    shown = capsys.readouterr().err
    assert told in shown
    assert "hint:" in shown
    assert asked == []


@pytest.mark.usefixtures("asked")
def test_the_planner_plans_each_method_with_its_own_drafter(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for planned in (plan_options, plan_plain):
        monkeypatch.setattr(f"slipstream.cli.planning.method_plans.{planned.__name__}", planned)
    write_models(tmp_path)
    words = ["dflash=flash", "eagle3=eagle", "draft_model=small", "ngram", "plain"]
    assert run(["compare", "target", "--methods", *words, *FEW, "--json"], {}) == 0
    done = Comparison.model_validate_json(capsys.readouterr().out)
    speculations = [arm.plan.speculation for arm in done.arms]
    assert speculations[0] is None
    configs = [one.to_config() for one in speculations if one is not None]
    assert [(config["method"], Path(str(config.get("model", ""))).name) for config in configs] == [
        ("dflash", "flash"),
        ("eagle3", "eagle"),
        ("draft_model", "small"),
        ("ngram", ""),
    ]
    assert [start.arm for start in done.starts] == list("ABECDDCEBA")


@pytest.mark.usefixtures("asked")
def test_methods_whose_plans_are_the_same_are_refused(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_method("ngram")  # Once: a busy machine has less memory for the next.
    monkeypatch.setattr("slipstream.cli.planning.method_plans.make_plan", lambda *_: plan)
    assert run(["compare", "it", "--methods", "eagle3", "ngram", "plain", *FEW], {}) == 1
    assert "the plans for eagle3 and ngram are the same" in capsys.readouterr().err


@pytest.mark.usefixtures("asked")
def test_a_method_that_the_planner_refuses_stops_before_any_start(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = Fault(code="x", verdict="refuse", message="mtp needs heads", hint="leave it out")
    monkeypatch.setattr(
        "slipstream.cli.planning.method_plans.make_plan",
        lambda options, _: plan_method(options.method, *[fault] * (options.method == "mtp")),
    )
    monkeypatch.setattr("slipstream.measuring.comparing.comparison.measure_start", None)
    assert run(["compare", "it", "--methods", "ngram", "mtp", "plain", *FEW], {}) == 1
    assert "mtp needs heads" in capsys.readouterr().err
