"""The tuned plan, and other settings that may matter, each tried in a start at the chosen load.

Every change of a plan has the source `measured` and its figures. A schedule of draft lengths is
only worth trying where the model says so, dtype, processes and threads only on a CPU. What bounds
a step's tokens (`--max-num-seqs`, `--max-num-batched-tokens`) follows from the model and needs no
start.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import log
from typing import Literal, TypeVar

from pydantic import JsonValue

from slipstream.errors import InvalidInputError
from slipstream.hardware import Host
from slipstream.hardware.processor import parse_cpu_list, show_cpu_list
from slipstream.planning.plan import LaunchPlan
from slipstream.planning.settings import SCHEDULE, Choice, draft_lengths
from slipstream.planning.settings.draft_lengths import make_schedule
from slipstream.planning.steering_verdicts import Way
from slipstream.records import Record
from slipstream.tuning.acceptance import DraftAcceptance
from slipstream.tuning.experiment import EngineStart
from slipstream.tuning.profile import SpeedProfile, predict_served, read_served
from slipstream.tuning.speed_model import StepPoint

LEAST_GAIN = 0.05
STEERED: Literal["steered"] = "steered"
ADAPTIVE: Literal["adaptive"] = "adaptive"
IN_ENGINE = "VLLM_ENABLE_V1_MULTIPROCESSING"
THREADS = "OMP_NUM_THREADS"
BINDING = "VLLM_CPU_OMP_THREADS_BIND"
_ENDS = {
    "limits": "the largest batch that keeps the time per token",
    "throughput": "more sequences do not increase the throughput",
}
Value = TypeVar("Value")


def apply_profile(plan: LaunchPlan, plain: LaunchPlan, profile: SpeedProfile) -> LaunchPlan:
    """Return the plan with the chosen draft length, or the plain one if no drafts are best.

    A limit that holds only up to some concurrency becomes the most sequences of a step, and so
    does the concurrency beyond which there are no more tokens per second.
    """
    choice = profile.choice
    because = "; ".join(choice.reasons)
    if not choice.draft_length:
        note = f"tuned: no drafts, because {because}"
        return plain.model_copy(update={"notes": (*plain.notes, note)})
    tuned = set_drafts(plan, choice.draft_length, (), because)
    sequences, batched = plan.sequences or 0, plan.settings.batched_tokens
    if profile.goal.name in _ENDS and sequences > choice.concurrency:
        sequences = choice.concurrency
        tuned = tuned.change(
            sequences=_measure(sequences, f"{_ENDS[profile.goal.name]}; {because}")
        )
    least = sequences * (choice.draft_length + 1)
    if batched is not None and batched.value < least:
        why = f"{sequences} sequences x {choice.draft_length + 1} tokens to verify (vllm#53970)"
        tuned = tuned.change(batched_tokens=_measure(least, why))
    return tuned


def set_drafts(
    plan: LaunchPlan, length: int, schedule: Sequence[tuple[int, int, int]], because: str
) -> LaunchPlan:
    """Return the plan with this draft length, and this schedule of it by batch or none."""
    speculation = plan.speculation
    if speculation is None:
        raise InvalidInputError(
            f"the plan for {plan.target} does not draft",
            hint=f"slipstream plan {plan.target} --drafter NAME",
        )
    rest = {key: choice for key, choice in speculation.rest.items() if key != SCHEDULE}
    if schedule:
        ranges: JsonValue = [list(one) for one in schedule]
        rest[SCHEDULE] = _measure(ranges, because)
    changed = speculation.model_copy(update={"length": _measure(length, because), "rest": rest})
    return plan.change(speculation=changed)


def _measure(value: Value, because: str) -> Choice[Value]:
    return Choice(value, "measured", because)


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


def evaluate_trial(
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


def list_variants(
    plan: LaunchPlan, profile: SpeedProfile, others: Mapping[str, LaunchPlan]
) -> list[Variant]:
    """List what may be faster than the chosen plan, the likeliest first.

    `others` are plans for the same target with another method each.
    """
    return [
        *_vary_schedule(profile),
        *_vary_steering(plan, profile),
        *_vary_method(profile, others),
        *_vary_settings(plan, profile),
    ]


def _vary_schedule(profile: SpeedProfile) -> Iterator[Variant]:
    ranges, length = profile.choice.schedule, profile.choice.draft_length
    if ranges:
        schedule = tuple((one.first, one.last, one.draft_length) for one in ranges)
        gains = ", ".join(f"{one.gain:.0%} from {one.first} on" for one in ranges[1:])
        yield Variant(
            f"shorter drafts in larger batches (predicted to win {gains})",
            EngineStart(length, (ranges[-1].last,), schedule),
            lambda plan, because: set_drafts(plan, length, schedule, because),
        )


def _vary_steering(plan: LaunchPlan, profile: SpeedProfile) -> Iterator[Variant]:
    """On a GPU with graphs, let our scheduler choose the length, or vLLM what it verifies."""
    choice, host = profile.choice, profile.conditions.host
    if host is None or not choice.draft_length:
        return
    most = profile.model.max_sequences
    loads = tuple(sorted({1, choice.concurrency, most}))
    lengths = draft_lengths.space_lengths(choice.draft_length, most, plan.engine_version)
    ranges = [(first, last, length) for first, last, length in make_schedule(lengths, most)]
    for way in list_ways(plan, host):
        if way == STEERED:
            yield Variant(
                f"{STEERED} among {draft_lengths.show(lengths)}",
                EngineStart(choice.draft_length, loads, tuple(ranges), method=way),
                lambda plan, because: set_drafts(plan, choice.draft_length, ranges, because),
            )
        else:
            yield Variant(
                f"{ADAPTIVE} verification by vLLM",
                EngineStart(choice.draft_length, loads, method=way),
                _verify_adaptively,
            )


def list_ways(plan: LaunchPlan, host: Host) -> tuple[Way, ...]:
    """List how verification may follow the load where graphs are captured, to be measured."""
    settings, stages = plan.settings, plan.settings.pipeline_parallel
    recorded = host.accelerators and draft_lengths.records_steps(settings)
    one_stage = stages is None or stages.value == 1
    if not recorded or not one_stage or draft_lengths.find_obstacle(settings):
        return ()
    return (STEERED, ADAPTIVE) if plan.adaptive_verification else (STEERED,)


def find_way(trial: Trial) -> Way | None:
    """Return the way that a trial is about."""
    ways: tuple[Way, ...] = (STEERED, ADAPTIVE)
    return next((way for way in ways if trial.what.startswith(way)), None)


def leave_out_verdicts(plan: LaunchPlan) -> LaunchPlan:
    """Return the plan without what an earlier `tune` found, which is measured again."""
    if (speculation := plan.speculation) is None:
        return plan
    ways = (SCHEDULE, draft_lengths.ADAPTIVE)
    measured = [key for key in ways if _is_measured(speculation.rest.get(key))]
    rest = {key: one for key, one in speculation.rest.items() if key not in measured}
    left = plan.change(speculation=speculation.change(rest=rest))
    if draft_lengths.ADAPTIVE in measured:
        left = left.model_copy(update={"adaptive_verification": "it is measured again"})
    return left


def _is_measured(choice: Choice[JsonValue] | None) -> bool:
    return choice is not None and choice.source == "measured"


def _verify_adaptively(plan: LaunchPlan, because: str) -> LaunchPlan:
    assert plan.speculation is not None
    rest = {key: one for key, one in plan.speculation.rest.items() if key != SCHEDULE}
    rest[draft_lengths.ADAPTIVE] = _measure(True, because)
    return plan.change(speculation=plan.speculation.change(rest=rest))


def _vary_method(profile: SpeedProfile, others: Mapping[str, LaunchPlan]) -> Iterator[Variant]:
    """Try each method as planned, and then with drafts of half that length."""
    load = (profile.choice.concurrency,)
    for part in (1, 2):
        for method, plan in others.items():
            planned = plan.speculation.length if plan.speculation else None
            length = planned.value // part if planned else 0
            if part == 1 or length:
                yield Variant(
                    f"{method}, {length} drafted tokens" if length else method,
                    EngineStart(length, load, method=method),
                    partial(_take_method, plan, length),
                )


def _take_method(other: LaunchPlan, length: int, _: LaunchPlan, because: str) -> LaunchPlan:
    if length:
        return set_drafts(other, length, (), because)
    return other.model_copy(update={"notes": (*other.notes, f"tuned: {because}")})


def _vary_settings(plan: LaunchPlan, profile: SpeedProfile) -> Iterator[Variant]:
    """Vary compilation and, on a CPU, the dtype and where it computes: its instructions decide."""
    host, settings, choice = profile.conditions.host, plan.settings, profile.choice
    start = EngineStart(choice.draft_length, (choice.concurrency,))
    eager = settings.eager is not None and settings.eager.value
    yield Variant(
        "compiled" if eager else "without compilation",
        start,
        lambda plan, because: plan.change(eager=None if eager else _measure(True, because)),
    )
    if host is not None and not host.accelerators:
        other = "bfloat16" if settings.dtype and settings.dtype.value == "float32" else "float32"
        yield Variant(
            f"in {other}",
            start,
            lambda plan, because: plan.change(dtype=_measure(other, because)),
        )
    if changes := _move_worker(plan, host):
        yield Variant(
            "no worker process" if changes[BINDING] is None else "a worker process",
            start,
            lambda plan, because: plan.change_variables(
                {
                    name: None if value is None else _measure(value, because)
                    for name, value in changes.items()
                }
            ),
        )


def _move_worker(plan: LaunchPlan, host: Host | None) -> dict[str, str | None]:
    """Return the variables of the other place of computing: the engine's process, or a worker.

    None is for a variable to take out. Nothing is changed for a binding that is not a list, such as
    `auto`, or one list for each of several workers.
    """
    alone, bound, threads = (plan.environment.get(name) for name in (IN_ENGINE, BINDING, THREADS))
    cpus = (host.processor.cpus if host else None) or ()
    if alone and threads:
        count = int(threads.value)
        return {
            IN_ENGINE: None,
            THREADS: None,
            BINDING: show_cpu_list(cpus[:count] or range(count)),
        }
    listed = parse_cpu_list(bound.value) if bound else None
    if listed is None:
        return {}
    # A binding leaves one CPU out.
    return {IN_ENGINE: "0", THREADS: str(len(cpus) or len(listed) + 1), BINDING: None}
