"""A card says what a drafter fits, what it reached and how to make it again."""

import json
from pathlib import Path

import pytest

from slipstream.training.card import render_card
from slipstream.training.run import Judged, TrainRun
from tests.snapshots import read_snapshot
from tests.unit.planning.pieces import TARGET
from tests.unit.training.pieces import DONE, RUN, change

TARGET_HERE = TARGET.model_copy(update={"name": "models/SmolLM2-135M-Instruct/"})


@pytest.fixture(autouse=True)
def _models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the target be a folder here."""
    monkeypatch.chdir(tmp_path)
    Path(TARGET_HERE.name).mkdir(parents=True)


def render(run: TrainRun = DONE) -> str:
    return render_card(run, TARGET_HERE)


def find_table(card: str, heading: str) -> list[list[str]]:
    """Read the cells of the table under a heading."""
    part = card.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    rows = [line for line in part.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def test_a_card_is_as_reviewed() -> None:
    shown = render()
    assert shown == read_snapshot("train-card.md", shown)


@pytest.mark.parametrize(
    ("method", "title", "engine_method", "tokens", "passes"),
    [
        ("eagle3", "EAGLE-3 head", "eagle3", 3, "one after another"),
        ("dflash2", "DFlash2 drafter", "dflash", 3, "in one pass"),
        ("dspark", "DSpark drafter", "dspark", 4, "in one pass"),
    ],
)
def test_a_card_names_its_method_as_vllm_does(
    method: str, title: str, engine_method: str, tokens: int, passes: str
) -> None:
    settings = change(method=method, mask_token_id=None)
    card = render(DONE.model_copy(update={"settings": settings}))
    assert f"# {title} for SmolLM2-135M-Instruct\n\nDrafts up to {tokens} tokens {passes};" in card
    assert f"tags: [{method}, speculative-decoding, vllm]" in card
    assert f'"method": "{engine_method}"' in card
    assert f'"num_speculative_tokens": {tokens}' in card
    assert "mask_token_id" not in card


def test_a_card_ends_with_the_command_that_makes_it_again() -> None:
    assert render().endswith(f"## The command\n\n```\n{DONE.command}\n```\n")


def test_every_kind_is_a_row_with_its_figures_and_every_position() -> None:
    header, _, code, prose = find_table(render(), "Acceptance on held-out prompts")
    assert header[5:] == ["position 1", "position 2", "position 3"]
    assert code == ["code", "24", "2.23", "2.20", "2.50", "0.70", "0.40", "0.13"]
    assert prose == ["prose", "7", "not measured", "1.50", "1.60", "0.35", "0.10", "0.05"]


def test_every_point_of_the_curve_is_a_row() -> None:
    assert find_table(render(), "Held-out acceptance while training") == [
        ["step", "loss", "code", "prose"],
        ["---"] * 4,
        ["50", "2.500", "1.70", "1.30"],
        ["100", "1.750", "2.20", "1.50"],
    ]


def test_what_was_not_measured_is_said_to_be_so() -> None:
    card = render(RUN)
    assert "## Acceptance on held-out prompts\n" in card
    assert "\nNot measured.\n" in card
    assert "\nNot recorded.\n" in card
    assert find_table(card, "Acceptance on held-out prompts") == []


def test_a_kind_without_positions_is_a_row_without_them() -> None:
    run = DONE.model_copy(update={"judged": {"code": Judged(prompts=3)}})
    rows = find_table(render(run), "Acceptance on held-out prompts")
    assert rows[2] == ["code", "3", "not measured", "not measured", "not measured"]
    assert len(rows[0]) == 5


@pytest.mark.parametrize(("block", "drafted"), [(4, 3), (16, 15)])
def test_the_engine_drafts_a_block_less_its_anchor(block: int, drafted: int) -> None:
    run = DONE.model_copy(update={"settings": change(block_size=block)})
    (line,) = [line for line in render(run).splitlines() if line.startswith("vllm serve")]
    command, _, table = line.partition(" --speculative-config ")
    assert command == "vllm serve SmolLM2-135M-Instruct"
    assert json.loads(table.strip("'")) == {
        "method": "dflash",
        "model": "THIS FOLDER",
        "num_speculative_tokens": drafted,
    }


@pytest.mark.parametrize(
    ("target", "name"),
    [
        ("models/SmolLM2-135M-Instruct/", "SmolLM2-135M-Instruct"),
        ("Qwen/Qwen3-8B", "Qwen/Qwen3-8B"),
    ],
)
def test_a_folder_goes_by_its_own_name_and_a_hub_model_by_its_whole_one(
    target: str, name: str
) -> None:
    card = render_card(DONE, TARGET.model_copy(update={"name": target}))
    assert f"\nbase_model: {name}\n" in card
    assert f"\n# DFlash drafter for {name}\n" in card
    assert f"\nvllm serve {name} --speculative-config" in card


def test_a_licence_is_named_if_it_is_known() -> None:
    licensed = TARGET_HERE.model_copy(update={"licence": "apache-2.0"})
    assert "\nlicense: apache-2.0\n" in render_card(DONE, licensed)
    assert "license" not in render()


def test_a_warm_start_names_where_it_began() -> None:
    run = DONE.model_copy(update={"settings": change(from_drafter="z-lab/some-drafter")})
    assert "\n- started from z-lab/some-drafter\n" in render(run)
    assert "started from" not in render()


def test_the_card_says_which_prompts_it_was_trained_on() -> None:
    lines = render().splitlines()
    assert "- prompts: read 900, held_out 45, 0 s" in lines
    assert "- responses: responses 900, cut 12, 1200 s" in lines
    assert "- training: steps 100, 3000 s" in lines
    assert "- responses regenerated greedily by the target, with its own chat template" in lines
