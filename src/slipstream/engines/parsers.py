"""vLLM's parsers of answers, and its classes that take media, as `scripts/engine tables`
listed them."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files


@dataclass(frozen=True, slots=True)
class ParserTable:
    """Parsers by name, each with the markers that it looks for; classes by name."""

    version: str
    tool: Mapping[str, tuple[str, ...]]
    reasoning: Mapping[str, tuple[str, ...]]
    multimodal: frozenset[str]


@cache
def read_parsers() -> ParserTable:
    """Return the table."""
    table = json.loads(files("slipstream.engines").joinpath("vllm_parsers.json").read_text())
    markers = {
        kind: {row["name"]: tuple(row["markers"]) for row in table[kind]}
        for kind in ("tool", "reasoning")
    }
    return ParserTable(table["version"], **markers, multimodal=frozenset(table["multimodal"]))
