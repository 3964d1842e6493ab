"""Other settings that may matter, each tried in its own start at the chosen draft length.

A schedule of draft lengths is only worth trying where the model says so, dtype, processes and
threads only on a CPU. What bounds a step's tokens (`--max-num-seqs`,
`--max-num-batched-tokens`) follows from the model and needs no start.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import log

from slipstream.hardware.processor import parse_cpu_list, show_cpu_list
from slipstream.planning.plan import LaunchPlan
from slipstream.planning.settings import Choice
from slipstream.records import Record
from slipstream.tuning.acceptance import DraftAcceptance
from slipstream.tuning.application import set_drafts, set_eager, set_variables
from slipstream.tuning.experiment import EngineStart
from slipstream.tuning.profile import SpeedProfile, predict_served, read_served
from slipstream.tuning.step_time import StepPoint

LEAST_GAIN = 0.05
IN_ENGINE = "VLLM_ENABLE_V1_MULTIPROCESSING"
THREADS = "OMP_NUM_THREADS"
BINDING = "VLLM_CPU_OMP_THREADS_BIND"


@dataclass(frozen=True, slots=True)
class Variant:
    """A setting to try: what it is, the start that tries it, and the plan with it."""

    what: str
    start: EngineStart
    change: Callable[[LaunchPlan, str], LaunchPlan]


class Trial(Record):
    """A setting that was tried, and the share of time that it saved."""

    what: str
    concurrency: int
    seconds_per_token: float
    seconds_per_token_before: float
    needed: float
    adopted: bool

    @property
    def gain(self) -> float:
        """Return by which share the plan before took longer."""
        return self.seconds_per_token_before / self.seconds_per_token - 1

    @property
    def verdict(self) -> str:
        """Return what came of it, in a sentence."""
        much = f"{abs(self.gain):.1%} {'less' if self.gain >= 0 else 'more'} time per token"
        ending = "taken" if self.adopted else f"not adopted, it needs {self.needed:.0%} to tell"
        return f"{self.what}: {much} at concurrency {self.concurrency}, {ending}"


def list_variants(
    plan: LaunchPlan, profile: SpeedProfile, others: Mapping[str, LaunchPlan]
) -> list[Variant]:
    """List what may be faster than the chosen plan, the likeliest first.

    `others` are plans for the same target with another method each.
    """
    return [
        *_vary_schedule(profile),
        *_vary_method(profile, others),
        *_vary_compilation(plan, profile),
        *_vary_dtype(plan, profile),
        *_vary_threads(plan, profile),
    ]


def judge_trial(
    variant: Variant,
    profile: SpeedProfile,
    factor: float,
    points: Sequence[StepPoint],
    acceptance: Sequence[DraftAcceptance],
) -> Trial:
    """Compare a variant with the plan before it, at the same batches.

    That one was served at its own loads; what the model is off there is taken to be so here, and
    `factor` is what earlier variants left of its time.
    """
    model = profile.model
    predicted = predict_served(model, points, profile.choice.draft_length)
    before = predicted * (1 + profile.off_by) * factor
    found = read_served(model, points, acceptance)
    needed = max(LEAST_GAIN, 2 * model.steps.spread)
    return Trial(
        what=variant.what,
        concurrency=variant.start.concurrencies[0],
        seconds_per_token=found,
        seconds_per_token_before=before,
        needed=needed,
        adopted=log(before / found) > needed,
    )


def _vary_schedule(profile: SpeedProfile) -> Iterator[Variant]:
    ranges = profile.choice.schedule
    if not ranges:
        return
    length = profile.choice.draft_length
    schedule = tuple((one.first, one.last, one.draft_length) for one in ranges)
    gains = ", ".join(f"{one.gain:.0%} from {one.first} on" for one in ranges[1:])
    yield Variant(
        f"shorter drafts in larger batches (predicted to win {gains})",
        EngineStart(length, (ranges[-1].last,), schedule),
        lambda plan, because: set_drafts(plan, length, schedule, because),
    )


def _vary_method(profile: SpeedProfile, others: Mapping[str, LaunchPlan]) -> Iterator[Variant]:
    """Try each method as planned, and then with drafts of half that length."""
    load = (profile.choice.concurrency,)
    for part in (1, 2):
        for method, plan in others.items():
            planned = plan.speculation.length if plan.speculation else None
            length = planned.value // part if planned else 0
            if part > 1 and not length:
                continue
            what = f"{method}, {length} drafted tokens" if length else method
            yield Variant(
                what,
                EngineStart(length, load, method=method),
                partial(_take_method, plan, length),
            )


def _take_method(other: LaunchPlan, length: int, _: LaunchPlan, because: str) -> LaunchPlan:
    if length:
        return set_drafts(other, length, (), because)
    return other.model_copy(update={"notes": (*other.notes, f"tuned: {because}")})


def _vary_compilation(plan: LaunchPlan, profile: SpeedProfile) -> Iterator[Variant]:
    eager = plan.settings.eager is not None and plan.settings.eager.value
    choice = profile.choice
    yield Variant(
        "compiled" if eager else "without compilation",
        EngineStart(choice.draft_length, (choice.concurrency,)),
        lambda plan, because: set_eager(plan, not eager, because),
    )


def _vary_dtype(plan: LaunchPlan, profile: SpeedProfile) -> Iterator[Variant]:
    """Return the plan with the other dtype; on a CPU its instructions decide which is faster."""
    host, dtype, choice = profile.conditions.host, plan.settings.dtype, profile.choice
    if host is None or host.accelerators:
        return
    other = "bfloat16" if dtype is not None and dtype.value == "float32" else "float32"
    yield Variant(
        f"in {other}",
        EngineStart(choice.draft_length, (choice.concurrency,)),
        lambda plan, because: plan.change(dtype=Choice(other, "measured", because)),
    )


def _vary_threads(plan: LaunchPlan, profile: SpeedProfile) -> Iterator[Variant]:
    """Return the plan with the other place of computing: the engine's process, or a worker."""
    variables = plan.environment
    alone, bound, threads = (variables.get(one) for one in (IN_ENGINE, BINDING, THREADS))
    host = profile.conditions.host
    cpus = (host.processor.cpus if host else None) or ()
    changes: dict[str, str | None]
    if alone and threads:
        what = "a worker process"
        binding = show_cpu_list(cpus[: int(threads.value)] or range(int(threads.value)))
        changes = {IN_ENGINE: None, THREADS: None, BINDING: binding}
    elif bound and (count := _count_threads(bound.value, cpus)):
        what = "no worker process"
        changes = {IN_ENGINE: "0", THREADS: str(count), BINDING: None}
    else:
        return
    choice = profile.choice
    yield Variant(
        what,
        EngineStart(choice.draft_length, (choice.concurrency,)),
        lambda plan, because: set_variables(plan, changes, because),
    )


def _count_threads(binding: str, cpus: tuple[int, ...]) -> int | None:
    """Count the machine's CPUs, or else those of a binding and the one that it leaves out.

    None for a binding that is not a list, such as `auto`, or one list for each of several workers.
    """
    bound = parse_cpu_list(binding)
    return None if bound is None else len(cpus) or len(bound) + 1
