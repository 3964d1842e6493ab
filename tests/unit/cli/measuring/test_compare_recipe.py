"""`compare --recipe`: a measured pair becomes a recipe, and evidence without names."""

import argparse
import json
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest

from slipstream.cli.main import run
from slipstream.cli.measuring import compare, measuring_options, verify
from slipstream.errors import EngineError
from slipstream.hardware import load_host
from slipstream.hardware.host import Engine
from slipstream.measuring.comparing.comparison import Comparison
from slipstream.recipes import find_recipes, load_recipes
from slipstream.recipes.recipe import Recipe
from slipstream.reporting.text.model import render_recipe
from tests.unit.reporting.measuring.test_certificate import certify
from tests.unit.reporting.records import make_comparison
from tests.unit.serving.support.test_examination import EXCERPTS

Capture = pytest.CaptureFixture[str]
TARGET = "Qwen/Qwen3-8B"
WORDS = ["compare", TARGET, "--recipe", "it.toml"]
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
    """What was compared and verified; both end without an engine."""
    asked: list[argparse.Namespace] = []
    comparison = make_comparison(rounds=1)
    host = load_host("gb10")
    software = host.software.model_copy(
        update={"engine": Engine(distribution="vllm", version="0.32.0")}
    )
    host = host.model_copy(update={"software": software})
    monkeypatch.setattr(measuring_options, "read_host", lambda _: host)

    def measure(options: argparse.Namespace, *rest: Any) -> Comparison:
        asked.append(options)
        logs = rest[-1]
        for folder, name in ((logs, "B-0-2.log"), (logs.parents[1] / "other", "B-0-9.log")):
            folder.mkdir(parents=True)
            (folder / name).write_text(LOG)
        return comparison

    def examine(options: argparse.Namespace, *_: Any) -> Any:
        asked.append(options)
        sampling = certify().findings.sampling.model_copy(update={"prompt_ids": (40404, 50505)})
        return certify(passed=True, sampling=sampling)

    monkeypatch.setattr(compare, "measure", measure)
    monkeypatch.setattr(verify, "examine", examine)
    return asked


def read_bundle() -> dict[str, str]:
    with zipfile.ZipFile("it.zip") as archive:
        return {name: archive.read(name).decode() for name in archive.namelist()}


def test_what_was_measured_becomes_a_recipe_with_its_evidence(
    asked: list[argparse.Namespace], capsys: Capture
) -> None:
    words = ["--rounds", "1", "--prompts", "3", "--by", "Ann Example"]
    assert run([*WORDS, *words, "--json"], {}) == 0
    assert Comparison.model_validate_json(capsys.readouterr().out) == make_comparison(rounds=1)
    assert [(one.rounds, one.prompts, one.samples) for one in asked] == [(1, 3, 400)] * 2
    recipe = Recipe.model_validate(tomllib.loads(Path("it.toml").read_text()))
    contribution = json.loads(read_bundle()["contribution.json"])
    assert recipe == Recipe.model_validate(contribution["recipe"])
    assert (recipe.name, recipe.machines) == ("it", ("gb10",))
    verdict = make_comparison(rounds=1).verdict
    rows = [(one.kind, one.concurrency) for one in verdict.find("drafted") if one.kind is not None]
    shown = [(one.workload.partition(",")[0], one.concurrency) for one in recipe.evidence]
    assert shown == rows
    assert all(one.by == "Ann Example" and one.tokens_per_s for one in recipe.evidence)
    figures = {one["what"]: one["measured"] for one in contribution["planned"]}
    assert figures["cache tokens"] == 32896
    assert figures["weights"] == round(17.25 * 2**30)


@pytest.mark.usefixtures("asked")
def test_the_catalogue_takes_the_file_and_shows_who_measured(capsys: Capture) -> None:
    assert run([*WORDS, "--by", "Ann Example", "--html", "it.html"], {}) == 0
    text = capsys.readouterr().out
    assert text.startswith(make_comparison(rounds=1).verdict.sentence)
    for part in ("[[evidence]]", "PLANNED", "comparison.json"):
        assert part in text
    assert "<svg" in Path("it.html").read_text()
    recipes = load_recipes(Path())
    assert find_recipes(recipes, target=TARGET, machine="gb10") == recipes
    assert "Ann Example" in render_recipe(recipes[0])


@pytest.mark.usefixtures("asked")
def test_the_evidence_has_no_names_and_nothing_that_was_said() -> None:
    assert run(WORDS, {}) == 0
    held = read_bundle()
    # A comparison that runs meanwhile is somebody else's.
    assert [name for name in held if name.startswith("logs/")] == ["logs/compare-B-0-2.log"]
    assert "GPU KV cache size: 32,896 tokens" in held["logs/compare-B-0-2.log"]
    for word in ("wilhelmina", "rare disease", "151644", "40404", "東京", "prompt_id"):
        assert not [name for name, text in held.items() if word in text], word
    assert json.loads(held["certificate.json"])["passed"] is True
    cells = [start["cells"] for start in json.loads(held["comparison.json"])["starts"]]
    assert all(cell["first_token"] for own in cells for cell in own)


@pytest.mark.usefixtures("asked")
def test_a_changed_text_leaves_with_4_and_is_written_down(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "examine", lambda *_: certify(passed=False))
    assert run(WORDS, {}) == 4
    assert "text NOT verified" in Path("it.toml").read_text()


@pytest.mark.usefixtures("asked")
def test_an_engine_that_refuses_a_flag_is_evidence_without_a_recipe(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*rest: Any) -> Any:
        rest[-1].mkdir(parents=True)
        (rest[-1] / "B-0-1.log").write_bytes((EXCERPTS / "flag-unknown.log").read_bytes())
        raise EngineError("the engine ended before it was ready", hint="slipstream doctor")

    monkeypatch.setattr(compare, "measure", refuse)
    assert run(WORDS, {}) == 3
    failures = json.loads(read_bundle()["failures.json"])
    assert failures["compare-B-0-1.log"][0]["signature"] == "flag-unknown"
    assert not Path("it.toml").exists()


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--target-name", "../etc/passwd"], 1),
        (["--drafter-name", "no-owner"], 1),
        (["--by", "a\nb"], 2),
        (["--by", 'x"]\n[evil]'], 2),
        (["--no-speculation"], 1),
        (["--recipe", "here.toml"], 1),
        (["--recipe", "it.zip"], 2),
        (["--recipe", "My Pair.toml"], 2),
        (["--recipe", "nowhere/it.toml"], 1),
        (["--methods", "ngram", "plain"], 2),
    ],
)
def test_what_cannot_be_published_is_refused_before_anything_starts(
    words: list[str], code: int, asked: list[argparse.Namespace]
) -> None:
    Path("here.zip").touch()
    assert run([*WORDS, *words], {}) == code
    assert asked == []
