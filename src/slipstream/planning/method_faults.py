"""Faults of a drafting method: with the drafter, the target and other engine settings."""

from collections.abc import Iterator

from slipstream.checkpoints.pairing import Fault
from slipstream.engines.vllm_methods import METHODS, Method
from slipstream.planning.settings import EngineSettings
from slipstream.planning.situation import Situation


def find_method_faults(situation: Situation, settings: EngineSettings) -> Iterator[Fault]:
    """Return the faults of a plan's method."""
    if (method := situation.method) is None:
        return
    yield from _find_other_family(situation, method)
    yield from _find_missing_heads(situation, method)
    if method.package is not None:
        yield Fault(
            code="package",
            verdict="warn",
            message=f"{method.name} needs {method.package} where the engine is installed",
            hint=f"pip install {method.package}",
        )
    yield from _find_stages(situation, settings)
    yield from _find_scheduling_ahead(situation, settings, method)


def _find_other_family(situation: Situation, method: Method) -> Iterator[Fault]:
    """Refuse a drafter that was trained for another method."""
    draft, drafter = situation.draft, situation.drafter
    if draft is None or drafter is None or method.needs == "model":
        return
    if METHODS[draft.family].engine_name != method.engine_name:
        yield Fault(
            code="method",
            verdict="refuse",
            message=f"{drafter.name} drafts by {draft.family}, and {method.name} was asked for",
            hint=f"--method {draft.family}",
        )


def _find_missing_heads(situation: Situation, method: Method) -> Iterator[Fault]:
    target = situation.target
    if method.needs != "heads" or situation.assistant is not None or target.predicting_layers:
        return
    known = target.predicting_layers is not None
    told = "has no MTP layers" if known else "may have no MTP layers: its files are not here"
    yield Fault(
        code="mtp-layers",
        verdict="refuse" if known else "warn",
        message=f"{target.name} {told}",
        hint=f"slipstream plan {target.name} --method ngram",
    )


def _find_stages(situation: Situation, settings: EngineSettings) -> Iterator[Fault]:
    stages = settings.pipeline_parallel
    if stages is not None and stages.value > 1 and situation.runner == "V1":
        yield Fault(
            code="pipeline",
            verdict="refuse",
            message="vLLM drafts over pipeline stages on its V2 runner only, and this machine "
            "runs V1",
            hint=f"slipstream plan {situation.target.name} --method plain",
        )


def _find_scheduling_ahead(
    situation: Situation, settings: EngineSettings, method: Method
) -> Iterator[Fault]:
    """Refuse asynchronous scheduling with a method that proposes on the CPU (config/vllm.py)."""
    wanted = settings.rest.get("--async-scheduling")
    name = method.name_for(on_cpu=situation.on_cpu)
    if wanted is not None and wanted.value and name in ("ngram", "suffix"):
        yield Fault(
            code="async-scheduling",
            verdict="refuse",
            message=f"vLLM does not schedule ahead with {name}",
            hint="leave --async-scheduling out",
        )
