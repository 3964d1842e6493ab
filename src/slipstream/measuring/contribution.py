"""`Contribution`: a pair measured on somebody's machine, as a recipe and what it rests on.

It is written to be published: names that are not published are given by whoever measures, and
everything else goes through the redaction of a bug report.
"""

import json
import re
from collections.abc import Iterator
from datetime import date
from statistics import fmean
from typing import Any, Literal

from slipstream.hardware import Host, name_kind
from slipstream.measuring.bench import BenchCell
from slipstream.measuring.comparing.comparison import Comparison
from slipstream.measuring.comparing.verdict import Answer, SpeedFinding
from slipstream.measuring.verifying.certificate import Certificate
from slipstream.planning.plan import LaunchPlan
from slipstream.recipes.recipe import Evidence, Recipe, Settings
from slipstream.records import Record

_KV_TOKENS = re.compile(r"KV cache size: ([\d,]+) tokens")
_LOADED = re.compile(r"Model loading took ([\d.]+) GiB")
_SETTINGS = (
    "context",
    "sequences",
    "batched_tokens",
    "memory_utilization",
    "tensor_parallel",
    "kv_dtype",
    "quantization",
    "eager",
    "prefix_caching",
)


class PlannedAgainstMeasured(Record):
    """One figure of the plan beside what the engine took; None is unknown."""

    what: Literal["memory", "weights", "cache tokens"]
    unit: Literal["bytes", "tokens"]
    planned: int | None
    measured: int | None

    @property
    def ratio(self) -> float | None:
        """Return measured over planned."""
        return self.measured / self.planned if self.planned and self.measured else None


class Contribution(Record):
    """What was measured, what the plan got wrong, and how long it took."""

    schema_version: Literal[1] = 1
    recipe: Recipe
    lossless: bool
    verdict: Answer
    cautions: tuple[str, ...]
    planned: tuple[PlannedAgainstMeasured, ...]
    start_seconds: tuple[float, ...]
    seconds: float


def hold_against_plan(
    plan: LaunchPlan, comparison: Comparison, log: str
) -> tuple[PlannedAgainstMeasured, ...]:
    """Hold the plan's memory against the engine's own lines and what its processes took."""
    sizes = {item.name: item.size_bytes for item in plan.memory.items}
    known = [size for size in sizes.values() if size is not None]
    pool, per_token = plan.memory.kv_pool_bytes, plan.memory.kv_bytes_per_token
    whole = sum(known) + pool if pool is not None and len(known) == len(sizes) else None
    drafted = [cell.memory_bytes for cell in _list_cells(comparison, "B")]
    loaded, tokens = _LOADED.findall(log), _KV_TOKENS.findall(log)
    weights = [sizes[name] for name in ("target weights", "drafter weights") if name in sizes]
    rows = (
        ("memory", "bytes", whole, max(filter(None, drafted), default=None)),
        (
            "weights",
            "bytes",
            None if None in weights else sum(filter(None, weights)),
            round(float(loaded[-1]) * 2**30) if loaded else None,
        ),
        (
            "cache tokens",
            "tokens",
            pool // per_token if pool and per_token else None,
            int(tokens[-1].replace(",", "")) if tokens else None,
        ),
    )
    return tuple(
        PlannedAgainstMeasured.model_validate(
            {"what": what, "unit": unit, "planned": planned, "measured": measured}
        )
        for what, unit, planned, measured in rows
    )


def make_recipe(
    comparison: Comparison,
    certificate: Certificate,
    *,
    target: str,
    drafter: str,
    by: str,
    today: date,
) -> Recipe:
    """Turn figures into a recipe with one line of evidence per kind and load."""
    plan, host = comparison.arms[1].plan, certificate.conditions.host
    machine = name_kind(host) or "unknown"
    engine = host.software.engine
    version = engine.version if engine else plan.engine_version
    settings = {name: getattr(plan.settings, name) for name in _SETTINGS}
    length = plan.speculation.length if plan.speculation else None
    return Recipe(
        name=name_recipe(target, machine),
        title=f"{target.partition('/')[2]} with {drafter} on {describe_hardware(host)}",
        target=target,
        drafter=drafter,
        machines=(machine,),
        engine="vllm",
        engine_version=version,
        settings=Settings(
            draft_length=length.value if length else None,
            **{name: choice.value for name, choice in settings.items() if choice is not None},
        ),
        evidence=tuple(
            _describe_finding(finding, comparison, certificate, by, version, today)
            for finding in comparison.verdict.findings
            if finding.kind is not None
        ),
    )


def name_recipe(target: str, machine: str) -> str:
    """Name a recipe after its target and machine, as a file can be called."""
    return re.sub(r"[^a-z0-9.]+", "-", f"{target.partition('/')[2]}-{machine}".lower()).strip("-")


def describe_hardware(host: Host) -> str:
    """Say what a machine computes with."""
    names = [accelerator.name for accelerator in host.accelerators]
    if names:
        return f"{len(names)}x {names[0]}"
    count = host.processor.usable_threads
    threads = "1 thread" if count == 1 else f"{count} threads"
    return f"{threads} of {host.processor.model or 'a CPU'}"


def render_toml(recipe: Recipe) -> str:
    """Write a recipe as the catalogue keeps it."""
    document = recipe.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
    tables = {"settings": [document.pop("settings", {})], "evidence": document.pop("evidence", [])}
    lines = ["schema_version = 1", *_list_pairs(document)]
    for name, rows in tables.items():
        heading = f"[{name}]" if name == "settings" else f"[[{name}]]"
        for row in filter(None, rows):
            lines += ["", heading, *_list_pairs(row)]
    return "\n".join(lines) + "\n"


def _list_pairs(table: dict[str, Any]) -> Iterator[str]:
    # JSON's strings, numbers, booleans and lists are TOML's.
    for key, value in table.items():
        yield f"{key} = {json.dumps(value)}"


def _describe_finding(
    finding: SpeedFinding,
    comparison: Comparison,
    certificate: Certificate,
    by: str,
    version: str,
    today: date,
) -> Evidence:
    drafted, plain = (_average(comparison, arm, finding) for arm in "BA")
    host, conditions = certificate.conditions.host, comparison.conditions
    ratio = finding.speed_up
    return Evidence(
        by=by,
        source="slipstream contribute",
        hardware=describe_hardware(host),
        engine_version=f"vLLM {version}",
        date=today.isoformat(),
        workload=f"{finding.kind}, {conditions.max_tokens} tokens, {finding.prompts} prompts",
        concurrency=finding.concurrency,
        tokens_per_s=drafted.get("tokens_per_second"),
        plain_tokens_per_s=plain.get("tokens_per_second"),
        speedup=round(ratio.ratio, 3),
        acceptance_length=drafted.get("tokens_per_step"),
        acceptance_rate=drafted.get("acceptance_rate"),
        note=f"{finding.outcome}, {ratio.low:.2f} to {ratio.high:.2f}; "
        f"text {'verified' if certificate.passed else 'NOT verified'}",
    )


def _average(comparison: Comparison, arm: str, finding: SpeedFinding) -> dict[str, float]:
    """Average an arm's figures over its starts."""
    cells = [
        cell
        for cell in _list_cells(comparison, arm)
        if (cell.kind, cell.concurrency) == (finding.kind, finding.concurrency)
    ]
    found = {}
    for name in ("tokens_per_second", "tokens_per_step", "acceptance_rate"):
        values = [getattr(cell, name) for cell in cells if getattr(cell, name) is not None]
        if values:
            found[name] = round(fmean(values), 3)
    return found


def _list_cells(comparison: Comparison, arm: str) -> list[BenchCell]:
    return [cell for report in comparison.reports if report.arm == arm for cell in report.cells]
