"""What a recipe rests on, as an archive for strangers: figures and shapes, no texts and no names.

A start that failed is evidence, too: its known failures are named, and there is no recipe.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from slipstream.engines.installed import find_versions
from slipstream.hardware import Host
from slipstream.measuring.comparing.comparison import Comparison
from slipstream.measuring.contribution import Contribution
from slipstream.measuring.verifying.certificate import Certificate
from slipstream.planning.plan import LaunchPlan
from slipstream.serving.supervision.causes.diagnosis import diagnose_file
from slipstream.serving.support.bundle import Bundle, clean_record, describe_plan
from slipstream.serving.support.redaction import list_skeleton, make_redactor


def begin_evidence(
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
    bundle.add("machine.json", "the machine as `probe` sees it", machine)
    described = {name: describe_plan(plan) for name, plan in plans.items()}
    bundle.add("plans.json", "plans with the source of each setting", described)
    failures = dict[str, Any]()
    for log in sorted(logs):
        name = f"{log.parent.name}-{log.name}"
        text = log.read_text(errors="replace")
        lines = list_skeleton(text, bundle.redactor, is_whole=True)
        bundle.add(f"logs/{name}", "an engine's start, then only where it logged", lines)
        failures[name] = [
            {
                "signature": one.signature,
                "cause": one.cause,
                "meaning": bundle.redactor.clean(one.meaning),
            }
            for one in diagnose_file(log)
        ]
    found = {name: list_ for name, list_ in failures.items() if list_}
    bundle.add("failures.json", "known failures in the logs, refused flags among them", found)
    return bundle


def add_figures(
    bundle: Bundle, contribution: Contribution, comparison: Comparison, certificate: Certificate
) -> None:
    """Add what was measured."""
    document = contribution.model_dump(mode="json")
    bundle.add("contribution.json", "the recipe, and planned against measured", document)
    verdict = comparison.verdict.model_dump(mode="json", exclude={"cautions", "sentence"})
    verdict["cautions"] = list(contribution.cautions)
    reports = [report.model_dump(mode="json") for report in comparison.reports]
    for report in reports:
        # It names a process of somebody's.
        (report["machine"] or {}).pop("busiest", None)
    figures = {"verdict": verdict, "reports": reports}
    bundle.add("comparison.json", "figures by start, kind and load", figures)
    checked = {"tolerance", "checks", "regrets", "sampling", "counts"}
    findings = certificate.findings.model_dump(mode="json", include=checked)
    findings["passed"] = certificate.passed
    bundle.add("certificate.json", "whether the text is the same", findings)
