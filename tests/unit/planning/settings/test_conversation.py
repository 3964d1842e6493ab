"""The table of families is compared with vLLM's own registries."""

from pathlib import Path

import pytest

from slipstream.engines.vllm import VERSION, read_parsers
from slipstream.planning.settings.conversation import (
    Family,
    find_family,
    load_families,
    load_template_faults,
)
from tests.snapshots import read_snapshot

# Their calls are found without a tag: bare JSON or Python, or tokens of mistral-common.
UNTAGGED = ("llama3_json", "llama4_pythonic", "mistral", "phi4_mini_json")
FAMILIES = {family.name: family for family in load_families()}


def test_the_parsers_are_those_of_the_engine_that_is_planned_for() -> None:
    table = read_parsers()
    assert table.version == VERSION
    assert len(table.tool) > 50
    assert len(table.reasoning) > 35
    assert "Qwen3_5ForConditionalGeneration" in table.multimodal


def test_every_parser_that_a_family_names_is_registered() -> None:
    table = read_parsers()
    tools = {one.tool_parser for one in FAMILIES.values()} - {None}
    reasoning = {one.reasoning_parser for one in FAMILIES.values()} - {None}
    assert tools - table.tool.keys() == set()
    assert reasoning - table.reasoning.keys() == set()
    assert len(FAMILIES) == len(load_families())


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_a_familys_markers_are_what_its_parsers_look_for(family: Family) -> None:
    table = read_parsers()
    if family.tool_parser and family.markers and family.tool_parser not in UNTAGGED:
        assert set(family.markers) & set(table.tool[family.tool_parser])
    tags = {one for one in family.reasoning_markers if one.startswith("<")}
    if family.reasoning_parser and family.reasoning_parser != "granite":
        assert tags <= set(table.reasoning[family.reasoning_parser])


def test_a_family_without_markers_is_known_by_its_class() -> None:
    bare = [one for one in FAMILIES.values() if not one.markers and not one.encoded]
    assert [one.name for one in bare if not (one.classes and one.class_decides)] == []


@pytest.mark.parametrize(
    "architecture",
    ["Qwen3ForCausalLM", "DeepseekV3ForCausalLM", "LlamaForCausalLM", "NewForCausalLM", None],
)
def test_a_class_of_several_families_is_unknown_without_its_template(
    architecture: str | None,
) -> None:
    assert find_family(architecture, None) is None


def test_every_template_fault_names_its_source_and_what_to_type() -> None:
    faults = load_template_faults()
    assert len({one.name for one in faults}) == len(faults) > 3
    assert all(one.hint and one.sources and one.message.endswith(".") for one in faults)


def describe(family: Family) -> str:
    """Write a family as a line of the page."""
    classes = ", ".join(f"`{one}`" for one in family.classes) or "any"
    markers = ", ".join(f"`` {one} ``" if "`" in one else f"`{one}`" for one in family.markers)
    told = "vLLM's own prompts" if family.encoded else markers or "not looked at"
    told = told.replace("|", r"\|")
    thinking = ", ".join(family.thinking.off) if family.thinking else ""
    off = " (off)" if family.thinking and not family.thinks_by_default else ""
    parsers = [one or "" for one in (family.tool_parser, family.reasoning_parser)]
    return f"| {family.name} | {classes} | {told} | {' | '.join(parsers)} | {thinking}{off} |"


def test_the_page_shows_every_family() -> None:
    page = Path(__file__).parents[4] / "docs/conversations.md"
    head, title, _ = page.read_text().partition("## Families\n")
    lines = [
        "Thinking is switched by the template's argument; `(off)`: it is off unless switched on.\n",
        "| family | class | template has | tool calls | reasoning | thinking |",
        "| --- | --- | --- | --- | --- | --- |",
        *map(describe, FAMILIES.values()),
    ]
    shown = f"{head}{title}\n" + "\n".join(lines) + "\n"
    assert shown == read_snapshot(page.name, shown, page.parent)
