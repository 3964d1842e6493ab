"""What the builds of vLLM said of the judged plans, kept as data.

The file has every distinct verdict once; a plan's line names the hash of its command line and, for
each version, the number of the verdict.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pydantic import Field

from slipstream.records import Record

TABLE = Path(__file__).parent / "table.json"


class Verdict(Record):
    """What one build made of a plan, with the backends that it chose beside the planned ones."""

    outcome: str
    reason: str | None = None
    warnings: tuple[str, ...] = ()
    target: dict[str, str] = Field(default_factory=dict)
    drafter: dict[str, str] | None = None
    # Graphs by draft length, where a schedule has several.
    recorded: dict[str, int] | None = None

    @property
    def is_good(self) -> bool:
        """Return whether the config was built, and a backend runs every layer as planned."""
        chosen = [*self.target.values(), *(self.drafter or {}).values()]
        return self.outcome == "built" and not any("Error" in name for name in chosen)


class Line(Record):
    """A plan's command line as a hash, and what each version said of it."""

    sha256: str
    verdicts: dict[str, Verdict]
    # A drafter that was left out, because its configuration is not among the models.
    without: str | None = None


Table = dict[str, Line]


def load_table(file: Path = TABLE) -> Table:
    if not file.exists():
        return {}
    stored = json.loads(file.read_text())
    verdicts = [Verdict.model_validate(one) for one in stored["verdicts"]]
    return {
        key: Line(
            sha256=line["sha256"],
            verdicts={version: verdicts[at] for version, at in line["verdicts"].items()},
            without=line.get("without"),
        )
        for key, line in stored["plans"].items()
    }


def save_table(table: Table, file: Path = TABLE) -> None:
    numbers: dict[str, int] = {}
    lines = []
    for key, line in sorted(table.items()):
        given = {
            version: numbers.setdefault(_render(verdict), len(numbers))
            for version, verdict in sorted(line.verdicts.items())
        }
        stored = {"sha256": line.sha256, "verdicts": given}
        if line.without is not None:
            stored["without"] = line.without
        lines.append(f"{json.dumps(key)}: {json.dumps(stored)}")
    verdicts, plans = ",\n".join(numbers), ",\n".join(lines)
    file.write_text(f'{{"verdicts": [\n{verdicts}\n],\n"plans": {{\n{plans}\n}}}}\n')


def _render(verdict: Verdict) -> str:
    return json.dumps(verdict.model_dump(exclude_defaults=True), ensure_ascii=False)


def make_verdict(found: dict[str, Any]) -> Verdict:
    """Read a line of the worker's."""
    fields = ("outcome", "reason", "warnings", "target", "drafter", "recorded")
    return Verdict.model_validate({name: found[name] for name in fields if found.get(name)})


def summarize(table: Table) -> Iterator[str]:
    """Say for every version how many plans were built, what was refused, warned of and chosen."""
    versions = sorted({version for line in table.values() for version in line.verdicts})
    for version in versions:
        given = {
            key: line.verdicts[version] for key, line in table.items() if version in line.verdicts
        }
        good = sum(verdict.is_good for verdict in given.values())
        lacking = sum(table[key].without is not None for key in given)
        yield (
            f"vLLM {version}: {len(given)} plans judged, {good} built, and no layer was refused a "
            f"backend; {lacking} of them without their drafter, whose config is not known"
        )
        yield from _count("", (f"{one.outcome}: {one.reason or ''}" for one in given.values()))
        yield from _count("warning: ", (text for one in given.values() for text in one.warnings))
        yield from _count(
            "target: ", (name for one in given.values() for name in set(one.target.values()))
        )
        yield from _count(
            "drafter: ", (_compare(one, table[key].without) for key, one in given.items())
        )


def _compare(verdict: Verdict, left_out: str | None) -> str:
    if verdict.drafter is None:
        return f"not judged: {left_out}" if left_out else "none in one pass"
    planned, automatic = verdict.drafter["planned"], verdict.drafter["automatic"]
    kept = verdict.drafter["kv_dtype"]
    same = "as vLLM chooses" if planned == automatic else f"vLLM would choose {automatic}"
    return f"{planned} with {kept}, {same}"


def _count(prefix: str, texts: Iterable[str]) -> Iterator[str]:
    for text, number in Counter(texts).most_common():
        yield f"  {number:>5}  {prefix}{text}"
