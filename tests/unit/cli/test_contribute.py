"""A measured pair becomes a recipe that the catalogue reads, and evidence without names."""

import argparse
import json
import tomllib
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slipstream.cli import compare, contribute, verify
from slipstream.cli.contribute import add_time_left
from slipstream.cli.main import run
from slipstream.errors import EngineError
from slipstream.hardware import load_host
from slipstream.hardware.host import Engine
from slipstream.measuring.contribution import Contribution
from slipstream.recipes import find_recipes, load_recipes
from slipstream.recipes.recipe import Recipe
from slipstream.reporting.text.recipe import render_recipes
from tests.unit.reporting.pages.test_certificate import certify
from tests.unit.reporting.records import make_comparison
from tests.unit.serving.support.test_examination import EXCERPTS

Capture = pytest.CaptureFixture[str]
TARGET = "Qwen/Qwen3-8B"
LOG = """\
(EngineCore pid=2) INFO 11-16 22:16:35 [gpu_model_runner.py:5150] Model loading took 17.25 GiB
(EngineCore pid=2) INFO 11-16 22:16:38 [kv_cache_utils.py:2327] GPU KV cache size: 32,896 tokens
(APIServer pid=1) INFO 11-16 22:16:41 [entry.py:140] Starting vLLM server on http://127.0.0.1:8432
(APIServer pid=1) ERROR 11-16 22:16:42 [core.py:1] wilhelmina asked about a rare disease
"""


@pytest.fixture(autouse=True)
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("USER", "wilhelmina")
    for name in ("SLIPSTREAM_CACHE", "XDG_STATE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(name, str(tmp_path / "own"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[argparse.Namespace]:
    """What `compare` and `verify` were asked; both answer without an engine."""
    asked: list[argparse.Namespace] = []
    comparison = make_comparison(rounds=1)
    others = tmp_path / "own" / "compare" / f"{comparison.conditions.at:%Y%m%d-%H%M%S}"
    host = load_host("gb10")
    software = host.software.model_copy(
        update={"engine": Engine(distribution="vllm", version="0.32.0")}
    )
    host = host.model_copy(update={"software": software})
    monkeypatch.setattr(contribute, "find_host", lambda _: host)

    def measure(
        options: argparse.Namespace, *_: Any, say: Callable[[str], None], logs: Path
    ) -> Any:
        asked.append(options)
        say("block 2 of 4: drafted starts")
        for folder, name in ((logs, "B-0-2.log"), (others, "B-0-9.log")):
            folder.mkdir(parents=True)
            (folder / name).write_text(LOG)
        return comparison

    def examine(options: argparse.Namespace, *_: Any, logs: Path) -> Any:
        asked.append(options)
        return certify(passed=True)

    monkeypatch.setattr(compare, "measure", measure)
    monkeypatch.setattr(verify, "examine", examine)
    return asked


def test_a_spark_is_planned_for_and_told_how_long_it_takes(capsys: Capture) -> None:
    words = ["contribute", TARGET, "--host", "gb10", "--dry-run"]
    assert run(words, {}) == 0
    shown = capsys.readouterr()
    assert "z-lab/Qwen3-8B-DFlash-b16" in shown.out
    assert "6 starts of the engine, about " in shown.err
    assert not Path("contribution").exists()
    assert run(words[:-1], {}) == 2


def test_what_was_measured_becomes_a_recipe_with_its_evidence(
    asked: list[argparse.Namespace], capsys: Capture
) -> None:
    assert run(["contribute", TARGET, "--by", "Ann Example", "--json"], {}) == 0
    contribution = Contribution.model_validate_json(capsys.readouterr().out)
    assert [one.rounds for one in asked[:1]] == [1]
    assert asked[0].concurrency == [1, 4, 8]
    assert asked[1].prompts == 8
    (file,) = Path("contribution").glob("*.toml")
    recipe = Recipe.model_validate(tomllib.loads(file.read_text()))
    assert recipe == contribution.recipe
    assert (recipe.name, recipe.machines) == (file.stem, ("gb10",))
    verdict = make_comparison(rounds=1).verdict
    rows = [(one.kind, one.concurrency) for one in verdict.findings if one.kind is not None]
    shown = [(one.workload.partition(",")[0], one.concurrency) for one in recipe.evidence]
    assert shown == rows
    assert all(one.by == "Ann Example" and one.tokens_per_s for one in recipe.evidence)
    figures = {one.what: one.measured for one in contribution.planned}
    assert figures["cache tokens"] == 32896
    assert figures["weights"] == round(17.25 * 2**30)


def test_the_catalogue_takes_the_file_and_shows_who_measured(
    asked: list[argparse.Namespace], capsys: Capture
) -> None:
    assert run(["contribute", TARGET, "--by", "Ann Example"], {}) == 0
    text, progress = capsys.readouterr()
    assert "block 2 of 4: drafted starts; about 1 min left, with the certificate" in progress
    assert "[[evidence]]" in text
    assert "PLANNED" in text
    recipes = load_recipes(Path("contribution"))
    assert find_recipes(recipes, target=TARGET, machine="gb10") == recipes
    assert "(Ann Example)" in render_recipes(recipes)


def test_the_time_left_follows_the_blocks_before() -> None:
    assert add_time_left("block 1 of 4: plain starts", 9) == "block 1 of 4: plain starts"
    assert "about 10 min left" in add_time_left("block 2 of 4: drafted starts", 120)
    assert "about 8 min left" in add_time_left("block 3 of 4: drafted starts", 240)
    assert add_time_left("block 3 of 4: drafted warms up", 240).endswith("warms up")


def test_the_evidence_has_no_names_and_nothing_that_was_said(
    asked: list[argparse.Namespace],
) -> None:
    assert run(["contribute", TARGET, "--quick"], {}) == 0
    assert asked[0].prompts == 2
    with zipfile.ZipFile("contribution/evidence.zip") as archive:
        held = {name: archive.read(name).decode() for name in archive.namelist()}
    # A comparison that runs meanwhile is somebody else's.
    assert [name for name in held if name.startswith("logs/")] == ["logs/compare-B-0-2.log"]
    assert "GPU KV cache size: 32,896 tokens" in held["logs/compare-B-0-2.log"]
    for word in ("wilhelmina", "rare disease", "151644", "東京"):
        assert not [name for name, text in held.items() if word in text]
    assert json.loads(held["certificate.json"])["passed"] is True


def test_a_changed_text_leaves_with_4_and_is_written_down(
    asked: list[argparse.Namespace], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify, "examine", lambda *_, **__: certify(passed=False))
    assert run(["contribute", TARGET], {}) == 4
    (file,) = Path("contribution").glob("*.toml")
    assert "text NOT verified" in file.read_text()


def test_an_engine_that_refuses_a_flag_is_evidence_without_a_recipe(
    asked: list[argparse.Namespace], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, logs: Path, **__: Any) -> Any:
        logs.mkdir(parents=True)
        (logs / "B-0-1.log").write_bytes((EXCERPTS / "flag-unknown.log").read_bytes())
        raise EngineError("the engine ended before it was ready", hint="slipstream doctor")

    monkeypatch.setattr(compare, "measure", refuse)
    assert run(["contribute", TARGET], {}) == 3
    with zipfile.ZipFile("contribution/evidence.zip") as archive:
        failures = json.loads(archive.read("failures.json"))
    assert failures["compare-B-0-1.log"][0]["signature"] == "flag-unknown"
    assert list(Path("contribution").iterdir()) == [Path("contribution/evidence.zip")]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--target-name", "../etc/passwd"], 1),
        (["--drafter-name", "no-owner"], 1),
        (["--by", "a\nb"], 2),
        (["--by", 'x"]\n[evil]'], 2),
        (["--no-speculation"], 1),
        (["--output", "."], 1),
    ],
)
def test_what_cannot_be_published_is_refused_before_anything_starts(
    words: list[str], code: int, asked: list[argparse.Namespace]
) -> None:
    assert run(["contribute", TARGET, *words], {}) == code
    assert asked == []
