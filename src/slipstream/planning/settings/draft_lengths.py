"""Among which draft lengths the engine's scheduler may choose, and why.

Runner V1 drafts any length. Runner V2 does, too, where nothing is recorded; else it has graphs for
the lengths that occur in the plan's schedule, each at every batch (`_init_candidates` in
v1/worker/gpu/cudagraph_utils.py). There a shorter length saves verification, and 0 the drafter's
pass from 0.33 on. A schedule cost 6 to 22 % on an H100 (vllm#49548), so a plan has one where it was
measured to pay, or on request.
"""

from collections.abc import Sequence
from typing import Any

from slipstream.engines.vllm_tables import is_since
from slipstream.planning.inputs import PlanInputs
from slipstream.planning.settings import SCHEDULE, Choice, EngineSettings

ADAPTIVE = "enable_adaptive_verification"
SCHEDULER = "--scheduler-cls"
STEERED = "slipstream.vllm_plugin.steering.scheduler.make"
VARIABLE = "SLIPSTREAM_DRAFT_LENGTH"
# Up to about so many tokens a step takes as long as reading the weights: an H100 computes 295 times
# per byte that it reads.
FREE_TOKENS = 256
UNMEASURED = "whether steering pays here is not measured (slipstream tune, or --steer)"
# Whose drafts may be of any length.
_ANY_LENGTH = ("dflash",)
_GRAPH_TOKENS = 512
_BLACKWELL_GRAPH_TOKENS = 1024


def find_obstacle(settings: EngineSettings) -> str | None:
    """Return why the draft length stays as planned, whatever the machine."""
    speculation, copies = settings.speculation, settings.data_parallel
    if speculation is None:
        return "nothing is drafted"
    if speculation.method.value not in _ANY_LENGTH:
        return f"{speculation.method.value} drafts one length"
    if copies is not None and copies.value > 1:
        return "the ranks of a data-parallel engine must draft the same length"
    if (adaptive := speculation.rest.get(ADAPTIVE)) is not None and adaptive.value:
        return f"{ADAPTIVE} chooses what is verified, and would conflict with steering"
    scheduler = settings.rest.get(SCHEDULER)
    if scheduler is not None and scheduler.value != STEERED:
        return f"{SCHEDULER} is not slipstream's scheduler"
    return None


def find_adaptive_obstacle(inputs: PlanInputs, settings: EngineSettings) -> str | None:
    """Return why vLLM would not start with adaptive verification.

    Its own checks are `_validate_adaptive_verification` in config/vllm.py, `_verify_args` in
    config/speculative.py and `maybe_create_adaptive_verification_manager` on runner V2.
    """
    stages, speculation = settings.pipeline_parallel, settings.speculation
    if speculation is None:
        return "nothing is drafted"
    if inputs.runner == "V1":
        return "it needs runner V2, and a CPU has V1"
    if (lora := settings.rest.get("--enable-lora")) is not None and lora.value:
        return "it cannot be combined with --enable-lora"
    if not records_steps(settings):
        return "it needs graphs of whole steps, and this plan has none"
    if stages is not None and stages.value > 1:
        return "it cannot be combined with pipeline parallelism"
    if inputs.target.is_hybrid:
        return "recurrent layers need the length of every draft before the step"
    argmax = speculation.rest.get("use_local_argmax_reduction")
    if argmax is not None and argmax.value and speculation.method.value != "dspark":
        return "use_local_argmax_reduction leaves no probabilities to estimate acceptance from"
    return None


def records_steps(settings: EngineSettings) -> bool:
    """Return whether whole steps are recorded: piecewise graphs are for any length."""
    mode = settings.compilation.value.get("cudagraph_mode") if settings.compilation else None
    return not settings.is_eager and mode not in ("PIECEWISE", "NONE")


def list_recorded(inputs: PlanInputs, settings: EngineSettings) -> tuple[int, ...]:
    """List the lengths that graphs are captured for, the longest first; none where none are."""
    if inputs.on_cpu or settings.speculation is None or not records_steps(settings):
        return ()
    if (given := inputs.fixed.drafting.rest.get(SCHEDULE)) is not None:
        return read_lengths(given.value)
    longest, sequences, steer = (
        settings.draft_length,
        settings.sequences,
        find_steer(inputs, settings),
    )
    if steer is None or not steer.value or find_obstacle(settings) or sequences is None:
        return (longest,)
    return space_lengths(longest, sequences.value, inputs.engine_version)


def find_steer(inputs: PlanInputs, settings: EngineSettings) -> Choice[bool] | None:
    """Return whether to steer with graphs: as requested, or else as measured here."""
    if (steer := inputs.options.steer) is not None and steer.source == "user":
        return steer
    if decide_adaptive(inputs, settings):
        return None
    return inputs.find_verdict("steered", settings)


def decide_adaptive(inputs: PlanInputs, settings: EngineSettings) -> dict[str, Choice[Any]]:
    """Verify adaptively where that was measured to pay and nothing else was requested."""
    options, verdict = inputs.options, inputs.find_verdict("adaptive", settings)
    if ADAPTIVE in inputs.fixed.drafting.rest or SCHEDULE in inputs.fixed.drafting.rest:
        return {}
    requested = options.steer is not None and options.steer.source == "user"
    refused = find_obstacle(settings) or find_adaptive_obstacle(inputs, settings)
    if verdict is None or not verdict.value or requested or refused:
        return {}
    return {ADAPTIVE: verdict}


def explain_adaptive(inputs: PlanInputs, settings: EngineSettings) -> str | None:
    """Say why adaptive verification is not planned where vLLM has it; None elsewhere."""
    if find_obstacle(settings) or find_adaptive_obstacle(inputs, settings):
        return None
    if (steer := inputs.options.steer) is not None and steer.source == "user":
        return "steering was requested"
    verdict = inputs.find_verdict("adaptive", settings)
    unmeasured = f"not measured here: slipstream tune {inputs.target.name}"
    return unmeasured if verdict is None else verdict.because


def space_lengths(longest: int, sequences: int, version: str) -> tuple[int, ...]:
    """Return a few lengths; 0 only where it saves the drafter's pass."""
    spaced = sorted({longest, longest // 2, longest // 4} - {0}, reverse=True)
    return (*spaced, *((0,) if is_since(version, "0.33") else ()))[: max(1, sequences - 1)]


def decide_schedule(inputs: PlanInputs, settings: EngineSettings) -> dict[str, Choice[Any]]:
    """Record graphs for some lengths if that is requested; the ranges are where steering begins."""
    lengths = list_recorded(inputs, settings)
    given, steer = inputs.fixed.drafting.rest, find_steer(inputs, settings)
    if SCHEDULE in given or len(lengths) < 2 or settings.sequences is None or steer is None:
        return {}
    why = (
        f"{steer.because}; graphs are captured for {show(lengths)}, one of which is chosen per step"
    )
    ranges = make_schedule(lengths, settings.sequences.value)
    return {SCHEDULE: Choice(ranges, steer.source, why)}


def make_schedule(lengths: Sequence[int], sequences: int) -> list[list[int]]:
    """Return ranges of batches: the longest drafts that cost no more than reading the weights.

    Every length occurs, since only then it is recorded; one that would not, and 0, in a batch just
    below the largest, which is what a full server runs: it keeps drafting until steps are measured.
    """
    drafting = [one for one in lengths if one]
    chosen = [
        next((one for one in drafting if batch * (one + 1) <= FREE_TOKENS), drafting[-1])
        for batch in range(1, sequences + 1)
    ]
    lacking = [one for one in lengths if one not in chosen]
    chosen[sequences - 1 - len(lacking) : sequences - 1] = lacking
    ranges: list[list[int]] = []
    for batch, length in enumerate(chosen, 1):
        if ranges and ranges[-1][2] == length:
            ranges[-1][1] = batch
        else:
            ranges.append([batch, batch, length])
    return ranges


def read_lengths(schedule: object) -> tuple[int, ...]:
    """Return the lengths of a schedule, the longest first."""
    ranges = schedule if isinstance(schedule, list) else []
    return tuple(sorted({one[2] for one in ranges}, reverse=True))


def count_graphs(inputs: PlanInputs, settings: EngineSettings, lengths: Sequence[int]) -> int:
    """Count the graphs of a start: one for each size of a step, and one for each length's."""
    sequences = settings.sequences.value if settings.sequences else 1
    whole = sequences * (settings.draft_length + 1)
    blackwell = inputs.capability_major == 10
    most = min(2 * whole, _BLACKWELL_GRAPH_TOKENS if blackwell else _GRAPH_TOKENS)
    sizes = [one for one in (1, 2, 4, *range(8, 256, 8), *range(256, 1025, 16)) if one <= most]
    recorded = len(sizes)
    for length in lengths:
        requests = {-(-size // (length + 1)) for size in sizes}
        fitting = [one for one in requests if one * (length + 1) <= min(most, whole)]
        recorded += sum(one <= sequences for one in fitting)
    return recorded


def describe_lengths(
    settings: EngineSettings,
    *,
    on_cpu: bool,
    fixed: Choice[str] | None,
    steer: Choice[bool] | None,
) -> str | None:
    """Say whether the length is steered, fixed, or waits to be measured; None without drafts."""
    speculation, longest = settings.speculation, settings.draft_length
    if speculation is None or speculation.length is None:
        return None
    if (obstacle := fixed.because if fixed else find_obstacle(settings)) is not None:
        return f"fixed at {longest}: {obstacle}"
    if on_cpu or not records_steps(settings):
        return f"steered, any from 0 to {longest}"
    if (schedule := speculation.rest.get(SCHEDULE)) is not None:
        return f"steered among {show(read_lengths(schedule.value))}"
    return f"fixed at {longest}: {steer.because if steer else UNMEASURED}"


def show(lengths: Sequence[int]) -> str:
    *others, last = map(str, lengths)
    return f"{', '.join(others)} and {last}" if others else last
