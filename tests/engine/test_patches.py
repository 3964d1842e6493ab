"""Each patch against the real vLLM: the fault is there without it, and gone with it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from slipstream.planning.settings.patches import (
    CPU_SAMPLING,
    CPU_TOP_K,
    DRAFTER_POSITIONS,
    GREEDY_VERIFICATION,
    TURBOQUANT_GRAPHS,
    VARIABLE,
)
from slipstream.proving_ground import SHIPPED_DRAFTER
from tests.engine.arms.launch import run_script
from tests.untrained_drafter import DrafterShape, drafter_config

pytestmark = [pytest.mark.engine, pytest.mark.beside]

START = "slipstream patch"
SERVED, KNOWN = 2048, 512
NAMES = (CPU_SAMPLING, CPU_TOP_K, DRAFTER_POSITIONS, GREEDY_VERIFICATION, TURBOQUANT_GRAPHS)
ALL = ",".join(NAMES)


class Asked(NamedTuple):
    """What vLLM's parts answered, and every line about a patch."""

    answers: dict[str, Any]
    lines: list[str]


@pytest.fixture(scope="module")
def drafters(target: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return two drafters without weights that know few positions, one in each layout."""
    native = drafter_config(
        json.loads((target / "config.json").read_text()), DrafterShape(context=KNOWN)
    )
    trained = json.loads((SHIPPED_DRAFTER / "config.json").read_text())
    trained["transformer_layer_config"]["max_position_embeddings"] = KNOWN
    made: dict[str, Any] = {}
    for name, config in (("native", native), ("speculators", trained)):
        folder = tmp_path_factory.mktemp(name)
        (folder / "config.json").write_text(json.dumps(config))
        made[name] = {"method": "dflash", "model": str(folder), "num_speculative_tokens": 7}
    return made


@pytest.fixture(scope="module")
def ask(
    target: Path, drafters: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Asked]:
    """Return the answers of a process in which these patches are named, run when first asked."""
    done: dict[str, Asked] = {}
    engine = {"model": str(target), "max_model_len": SERVED, "kv_cache_memory_bytes": 1 << 28}

    def answers(names: str) -> Asked:
        if names not in done:
            scratch = tmp_path_factory.mktemp("parts")
            job = {"engine": engine, "drafters": drafters}
            given = run_script("patched_parts.py", job, scratch, {VARIABLE: names})
            log = (scratch / "patched_parts.log").read_text().splitlines()
            lines = [line[line.index(START) :] for line in log if START in line]
            done[names] = Asked(given, sorted(lines))
        return done[names]

    return answers


def test_the_drafter_turns_the_last_position_only_with_the_patch(
    ask: Callable[[str], Asked],
) -> None:
    outside = "index out of range in self"
    assert ask("").answers["complaints"] == {"native": outside, "speculators": outside}
    assert ask(ALL).answers["complaints"] == {"native": None, "speculators": None}


def test_turboquant_with_drafts_gets_split_graphs_only_with_the_patch(
    ask: Callable[[str], Asked],
) -> None:
    assert ask("").answers["drafting_graphs"] == ["FULL_AND_PIECEWISE"] * 2
    assert ask(ALL).answers["drafting_graphs"] == ["PIECEWISE"] * 2


def test_turboquant_without_drafts_keeps_its_whole_graphs(ask: Callable[[str], Asked]) -> None:
    assert ask(ALL).answers["plain_graphs"] == ask("").answers["plain_graphs"]
    assert ask(ALL).answers["plain_graphs"] == "FULL_AND_PIECEWISE"


def test_a_cpu_keeps_the_temperature_of_a_drafted_request_only_with_the_patch(
    ask: Callable[[str], Asked],
) -> None:
    lost = {"temperature": [-1.0] * 3, "top_k": [-1] * 3}
    kept = {"temperature": [1.0, 1.0, 0.699999988079071], "top_k": [5, 5, 9]}
    assert ask("").answers["expanded"] == lost
    assert ask(ALL).answers["expanded"] == kept


def test_a_step_without_drafts_has_a_top_k_only_with_the_patch(
    ask: Callable[[str], Asked],
) -> None:
    complaint = ask("").answers["top_k_of_none"]
    assert "max()" in complaint
    assert ask(ALL).answers["top_k_of_none"] == [0, 8]


def test_greedy_drafts_are_verified_by_the_largest_logits_with_the_patch(
    ask: Callable[[str], Asked],
) -> None:
    without, patched = (ask(names).answers["verified"] for names in ("", ALL))
    best, none = patched["best"], -1
    assert patched["greedy"]["tokens"] == [
        best[:3],
        [best[3], best[4], none],
        [best[6], none, none],
    ]
    assert patched["greedy"]["tokens"] == without["greedy"]["tokens"]
    assert (without["greedy"]["samplings"], patched["greedy"]["samplings"]) == (1, 0)
    assert patched["penalty"] == without["penalty"]
    assert patched["penalty"]["tokens"] != patched["greedy"]["tokens"]
    assert patched["least"]["samplings"] == 1  # Whatever changes logits is vLLM's own business.


def test_vllm_loads_the_plugin_and_each_patch_has_its_line(ask: Callable[[str], Asked]) -> None:
    assert ask("").lines == []
    assert ask(ALL).lines == [f"slipstream patch {name}: applied" for name in NAMES]


def test_a_patch_does_not_import_its_module_itself(ask: Callable[[str], Asked]) -> None:
    assert not ask(ALL).answers["turboquant_was_imported"]
