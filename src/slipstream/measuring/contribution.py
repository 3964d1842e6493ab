"""`Contribution`: a pair measured on somebody's machine, as a recipe and what it rests on.

It is written to be published: names that are not published are given by whoever measures, and
everything else goes through the redaction of a bug report. A start that failed is evidence, too:
its known failures are named, and there is no recipe.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, NamedTuple

from slipstream.engines.vllm import find_versions
from slipstream.engines.vllm_log import KV_TOKENS, LOADED
from slipstream.hardware import Host, name_kind
from slipstream.measuring.bench import BenchCell
from slipstream.measuring.comparing.comparison import Comparison, Start
from slipstream.measuring.comparing.verdict import Answer, SpeedFinding
from slipstream.measuring.verifying.certificate import Certificate
from slipstream.planning.plan import LaunchPlan
from slipstream.recipes.recipe import Evidence, Recipe, RecipeSettings
from slipstream.records import Record
from slipstream.serving.supervision.causes.diagnosis import diagnose_file
from slipstream.serving.support.bundle import Bundle, clean_record, describe_plan
from slipstream.serving.support.redaction import list_skeleton, make_redactor

SOURCE = "slipstream compare --recipe"

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


class Published(NamedTuple):
    """The names under which a contribution is published; the recipe's is that of its file."""

    recipe: str
    target: str
    drafter: str
    by: str


class PlannedAgainstMeasured(Record):
    """One figure of the plan beside what the engine took; None is unknown."""

    what: Literal["memory", "weights", "cache tokens"]
    unit: Literal["bytes", "tokens"]
    planned: int | None
    measured: int | None

    @property
    def ratio(self) -> float | None:
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


def contribute(
    comparison: Comparison,
    certificate: Certificate,
    logs: Iterable[Path],
    published: Published,
    *,
    host: Host,
    today: date,
    seconds: float,
) -> Contribution:
    """Draw up what a comparison of two arms and a certificate of the second show."""
    drafted = [log.read_text(errors="replace") for log in logs if log.name.startswith("B-")]
    return Contribution(
        recipe=_make_recipe(comparison, host, published, today, lossless=certificate.passed),
        lossless=certificate.passed,
        verdict=comparison.verdict.answer,
        cautions=tuple(caution.code for caution in comparison.verdict.cautions),
        planned=tuple(_hold_against_plan(comparison, "\n".join(drafted))),
        start_seconds=tuple(round(start.start_seconds, 1) for start in comparison.starts),
        seconds=round(seconds, 1),
    )


def _hold_against_plan(comparison: Comparison, log: str) -> Iterator[PlannedAgainstMeasured]:
    """Compare the plan's memory with the engine's own lines and what its processes took."""
    memory = comparison.arms[1].plan.memory
    sizes = {item.name: item.size_bytes for item in memory.items}
    pool, per_token = memory.kv_pool_bytes, memory.kv_bytes_per_token
    weights = [sizes[name] for name in ("target weights", "drafter weights") if name in sizes]
    taken = [cell.memory_bytes for cell in _list_cells(comparison, "B")]
    loaded, tokens = LOADED.findall(log), KV_TOKENS.findall(log)

    def hold(what: Any, planned: Sequence[int | None], measured: int | None) -> Any:
        unit: Any = "tokens" if what == "cache tokens" else "bytes"
        known = None if None in planned else sum(filter(None, planned))
        return PlannedAgainstMeasured(what=what, unit=unit, planned=known, measured=measured)

    yield hold("memory", [*sizes.values(), pool], max(filter(None, taken), default=None))
    yield hold("weights", weights, round(float(loaded[-1]) * 2**30) if loaded else None)
    room = pool // per_token if pool and per_token else None
    yield hold("cache tokens", [room], int(tokens[-1].replace(",", "")) if tokens else None)


def _make_recipe(
    comparison: Comparison, host: Host, published: Published, today: date, *, lossless: bool
) -> Recipe:
    """Turn figures into a recipe with one line of evidence per kind and load."""
    plan = comparison.arms[1].plan
    machine = name_kind(host) or "unknown"
    engine = host.software.engine
    version = engine.version if engine else plan.engine_version
    settings = {name: getattr(plan.settings, name) for name in _SETTINGS}
    length = plan.speculation.length if plan.speculation else None
    common: dict[str, Any] = {
        "by": published.by,
        "source": SOURCE,
        "hardware": describe_hardware(host),
        "engine_version": f"vLLM {version}",
        "date": today.isoformat(),
    }
    return Recipe(
        name=published.recipe,
        title=f"{published.target.partition('/')[2]} with {published.drafter} on "
        f"{common['hardware']}",
        target=published.target,
        drafter=published.drafter,
        machines=(machine,),
        engine="vllm",
        engine_version=version,
        settings=RecipeSettings(
            draft_length=length.value if length else None,
            **{name: choice.value for name, choice in settings.items() if choice is not None},
        ),
        evidence=tuple(
            Evidence(**common, **_describe_finding(finding, comparison, lossless))
            for finding in comparison.verdict.pairs[0].findings
            if finding.kind is not None
        ),
    )


def describe_hardware(host: Host) -> str:
    """Return what a machine computes with."""
    names = [accelerator.name for accelerator in host.accelerators]
    if names:
        return f"{len(names)}x {names[0]}"
    count = host.processor.usable_threads
    threads = "1 thread" if count == 1 else f"{count} threads"
    return f"{threads} of {host.processor.model or 'a CPU'}"


def _describe_finding(
    finding: SpeedFinding, comparison: Comparison, lossless: bool
) -> dict[str, Any]:
    drafted, plain = (_average(comparison, arm, finding) for arm in "BA")
    ratio, tokens = finding.speed_up, comparison.conditions.max_tokens
    return {
        "workload": f"{finding.kind}, {tokens} tokens, {finding.prompts} prompts",
        "concurrency": finding.concurrency,
        "tokens_per_s": drafted.get("tokens_per_second"),
        "plain_tokens_per_s": plain.get("tokens_per_second"),
        "speedup": round(ratio.ratio, 3),
        "acceptance_length": drafted.get("tokens_per_step"),
        "acceptance_rate": drafted.get("acceptance_rate"),
        "note": f"{finding.outcome}, {ratio.low:.2f} to {ratio.high:.2f}; "
        f"text {'verified' if lossless else 'NOT verified'}",
    }


def _average(comparison: Comparison, arm: str, finding: SpeedFinding) -> dict[str, float]:
    place = finding.kind, finding.concurrency
    cells = [one for one in _list_cells(comparison, arm) if (one.kind, one.concurrency) == place]
    found = {}
    for name in ("tokens_per_second", "tokens_per_step", "acceptance_rate"):
        values = [getattr(cell, name) for cell in cells if getattr(cell, name) is not None]
        if values:
            found[name] = round(fmean(values), 3)
    return found


def _list_cells(comparison: Comparison, arm: str) -> list[BenchCell]:
    return [cell for start in comparison.starts if start.arm == arm for cell in start.cells]


def render_toml(recipe: Recipe) -> str:
    """Write a recipe as the catalogue keeps it."""
    document = recipe.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
    settings, evidence = document.pop("settings", {}), document.pop("evidence", [])
    parts = [("schema_version = 1", document), ("[settings]", settings)]
    parts += [("[[evidence]]", one) for one in evidence]
    # JSON's strings, numbers, booleans and lists are TOML's.
    return "\n".join(
        "\n".join([heading, *(f"{key} = {json.dumps(value)}" for key, value in table.items()), ""])
        for heading, table in parts
        if table
    )


def collect_evidence(
    host: Host,
    plans: Mapping[str, LaunchPlan],
    logs: Iterable[Path],
    environment: Mapping[str, str],
) -> Bundle:
    """Collect what there is of every attempt: machine, versions, plans, logs and their failures."""
    models = {name for plan in plans.values() for name in (plan.target, plan.drafter) if name}
    folders = {name: "[model]" for name in models if Path(name).exists()}
    bundle = Bundle(make_redactor(environment, folders))
    bundle.add("versions.json", "versions of Slipstream and the engine's parts", find_versions())
    machine = clean_record(host, bundle.redactor)
    bundle.add("machine.json", "the machine as `probe` describes it", machine)
    described = {name: describe_plan(plan) for name, plan in plans.items()}
    bundle.add("plans.json", "plans with the source of each setting", described)
    failures = dict[str, Any]()
    for log in sorted(logs):
        name = f"{log.parent.name}-{log.name}"
        text = log.read_text(errors="replace")
        lines = list_skeleton(text, bundle.redactor, is_whole=True)
        bundle.add(
            f"logs/{name}", "an engine's start, then only the source lines that logged", lines
        )
        if found := diagnose_file(log):
            failures[name] = [
                {
                    "signature": one.signature,
                    "cause": one.cause,
                    "meaning": bundle.redactor.clean(one.meaning),
                }
                for one in found
            ]
    bundle.add("failures.json", "known failures in the logs, refused flags among them", failures)
    return bundle


def add_figures(
    bundle: Bundle, contribution: Contribution, comparison: Comparison, certificate: Certificate
) -> None:
    document = contribution.model_dump(mode="json")
    bundle.add("contribution.json", "the recipe, and planned and measured", document)
    verdict = comparison.verdict.model_dump(mode="json", exclude={"cautions", "sentence"})
    verdict["cautions"] = list(contribution.cautions)
    starts = [_describe_start(start) for start in comparison.starts]
    figures = {"verdict": verdict, "starts": starts}
    bundle.add("comparison.json", "figures by start, kind and load", figures)
    checked = {"tolerance", "checks", "regrets", "counts"}
    findings = certificate.findings.model_dump(mode="json", include=checked)
    # The prompt that was sampled may be the user's own.
    findings["sampling"] = certificate.findings.sampling.model_dump(exclude={"prompt_ids"})
    findings["passed"] = certificate.passed
    bundle.add("certificate.json", "whether the text is the same", findings)


def _describe_start(start: Start) -> dict[str, Any]:
    """Return a start's figures, without its requests and the names of other processes."""
    document = start.model_dump(mode="json", exclude={"samples", "loads"})
    (document["machine"] or {}).pop("busiest", None)
    return document | {"cells": [cell.model_dump(mode="json") for cell in start.cells]}
