"""Every patch is named alike by the plan, the plugin and the documents, and proven by a test."""

import re
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from slipstream.planning.settings import patches as rules
from slipstream.vllm_plugin.patches import VARIABLE, apply_named
from slipstream.vllm_plugin.patches.application import Patch
from slipstream.vllm_plugin.patches.known import PATCHES

REPOSITORY = Path(__file__).parents[4]
DOCUMENT = (REPOSITORY / "docs/patches.md").read_text()


def test_the_plan_and_the_plugin_speak_of_the_same_patches() -> None:
    assert set(PATCHES) == {
        *(rules.CPU_SAMPLING, rules.CPU_TOP_K, rules.DFLASH_NO_DRAFTS),
        *(rules.DFLASH_SURVIVAL, rules.DFLASH_V2_COPY),
        *(rules.DRAFTER_POSITIONS, rules.GREEDY_VERIFICATION, rules.TURBOQUANT_GRAPHS),
    }
    assert rules.VARIABLE == VARIABLE
    assert VARIABLE in DOCUMENT


def test_vllm_finds_the_plugin() -> None:
    (ours,) = entry_points(group="vllm.general_plugins", name="slipstream")
    assert ours.load() is apply_named


@pytest.mark.parametrize("patch", PATCHES.values(), ids=PATCHES.keys())
def test_a_patch_has_its_proof_and_its_place_in_the_document(patch: Patch) -> None:
    file, _, test = patch.proof.partition("::")
    assert f"def {test}(" in (REPOSITORY / file).read_text()
    assert all(re.fullmatch("[0-9a-f]{64}", known) for known in patch.known_sources)
    assert f"## {patch.name}\n" in DOCUMENT
    section = DOCUMENT.partition(f"## {patch.name}\n")[2].partition("\n## ")[0]
    assert patch.upstream in section
    assert f"`{patch.module}.{patch.touches}`" in section
