"""`slipstream size` as a user types it: what it answers, writes and refuses."""

import json
from pathlib import Path

import pytest

from slipstream.cli.main import run
from slipstream.sizing.sizing import Sizing
from tests.unit.steering.lines import write
from tests.unit.tuning.test_profile import tune

Capture = pytest.CaptureFixture[str]

SPARK = ("--recipe", "qwen3.5-27b-nvfp4-gb10")
RATES = ("--rate", "code=0.6", "prose=0.4", "--answer-tokens", "200")
QUICK = ("size", *RATES, *SPARK, "--arithmetic")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def read(capsys: Capture, *words: str) -> Sizing:
    assert run([*words, "--json"], {}) == 0
    return Sizing.model_validate_json(capsys.readouterr().out)


def test_a_recipe_and_a_rate_are_enough(capsys: Capture) -> None:
    small, large = (read(capsys, *QUICK, "--growth", growth) for growth in ("1", "10"))
    assert {option.style for option in small.options} >= {"drafted", "plain"}
    assert small.best is not None
    assert large.best is not None
    assert large.best.replicas > 5 * small.best.replicas
    assert (small.best.cost_per_million, small.outage) == (None, None)
    assert run(QUICK, {}) == 0
    assert "steps per request" in capsys.readouterr().out


def test_all_is_simulated_and_drawn_unless_the_arithmetic_is_enough(
    capsys: Capture, here: Path
) -> None:
    words = ("size", *RATES, *SPARK, "--goal", "ttft<3s@p95", "--price", "0.5EUR")
    pages = ("--html", "size.html", "--markdown", "size.md", "--start-seconds", "60")
    assert run([*words, *pages], {}) == 0
    shown = capsys.readouterr().out
    assert "one replica fails for 60 s" in shown
    page = (here / "size.html").read_text()
    assert page.count("<svg") >= 4
    assert "EUR" in page
    assert (here / "size.md").read_text().startswith("# fleet size")


def test_the_same_seed_prints_the_same(capsys: Capture) -> None:
    words = ("size", "--rate", "code=0.1", *SPARK)
    one, again = (read(capsys, *words, "--seed", "4") for _ in range(2))
    assert one == again
    assert one != read(capsys, *words, "--seed", "5")


def test_a_day_has_a_fleet_of_one_size_and_a_scaled_one(capsys: Capture) -> None:
    hours = ["0.1"] * 12 + ["1"] * 12
    words = ("size", "--rate", "code=0.05", *SPARK, "--start-seconds", "120", "--day")
    day = read(capsys, *words, "--hours", *hours).day
    assert day is not None
    assert day.fixed.requests == day.scaled.requests > 1000
    assert day.scaled.machine_hours != day.fixed.machine_hours


def test_a_tuning_is_read_and_its_kinds_are_asked_for(capsys: Capture, here: Path) -> None:
    (here / "profile.json").write_text(tune().to_json())
    sizing = read(capsys, "size", "--rate", "code=3", "--profile", "profile.json", "--arithmetic")
    assert sizing.speed.source == "profile.json"
    assert sizing.best is not None
    # What was printed is a source itself.
    (here / "again.json").write_text(sizing.to_json())
    again = read(capsys, "size", "--rate", "code=3", "--profile", "again.json", "--arithmetic")
    assert again.options == sizing.options


def test_a_ledger_is_the_demand_and_the_speed(capsys: Capture, here: Path) -> None:
    lines = [
        write(
            id=str(number),
            at=1000.0 + 7 * number,
            batch=1.0 + number % 8,
            seconds=0.4 + 29 * (0.03 + 0.002 * (1 + number % 8)),
            first_seconds=0.4,
        )
        for number in range(60)
    ]
    (here / "ledger.jsonl").write_bytes(b"".join(lines))
    words = ("size", "--trace", "ledger.jsonl", "--profile", "ledger.jsonl", "--growth", "20")
    sizing = read(capsys, *words, "--goal", "tpot<100ms@p95")
    assert [kind.kind for kind in sizing.demand.kinds] == ["code"]
    assert sizing.demand.requests_per_second == pytest.approx(20 / 7, rel=0.02)
    assert sizing.best is not None
    assert sizing.best.pools[0].busy_share < 1
    assert sizing.best.simulated is not None
    assert sizing.best.simulated.requests > 30


def test_a_goal_that_nothing_holds_leaves_with_4(capsys: Capture) -> None:
    assert run([*QUICK, "--goal", "tpot<1ms@p95"], {}) == 4
    assert "No fleet that was tried meets tpot<1ms@p95" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--rate", "code=1"), "one of the arguments --profile --recipe is required"),
        ((*SPARK,), "give the demand either as --rate or as --trace"),
        (("--rate", "code", *SPARK), "--rate code"),
        (("--rate", "code=-1", *SPARK), "is not a number above zero"),
        (("--rate", "code=1", "code=2", *SPARK), "a kind is named twice"),
        (("--rate", "code=1", *SPARK, "--cached", "2"), "is not a share"),
        (("--rate", "code=1", *SPARK, "--hours", "1", "0.5"), "--hours has 2 shares"),
        (("--rate", "code=1", *SPARK, "--price", "5/y"), "neither an amount per hour"),
        (("--rate", "code=1", *SPARK, "--day", "--arithmetic"), "--day is a simulation"),
        (("--rate", "code=1", *SPARK, "--goal", "fast"), "is unknown"),
    ],
)
def test_what_cannot_be_sized_is_refused(
    capsys: Capture, words: tuple[str, ...], message: str
) -> None:
    assert run(["size", *words], {}) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("content", ["", "[]", "{}", "[" * 9000, '{"starts": 3}', "\x00"])
def test_a_file_that_is_no_profile_is_refused(capsys: Capture, here: Path, content: str) -> None:
    (here / "odd.json").write_text(content)
    assert run(["size", "--rate", "code=1", "--profile", "odd.json", "--json"], {}) == 1
    error = json.loads(capsys.readouterr().err)["error"]
    assert "tune --json" in error["hint"]


def test_a_hostile_kind_cannot_write_into_the_page(capsys: Capture, here: Path) -> None:
    line = write(kind="<script>alert(1)</script>").decode()
    (here / "trace.jsonl").write_text(line + line.replace("1789000000", "1789000009"))
    words = ("size", "--trace", "trace.jsonl", *SPARK, "--arithmetic", "--html", "size.html")
    assert run(words, {}) == 0
    assert "<script" not in (here / "size.html").read_text()
    capsys.readouterr()
