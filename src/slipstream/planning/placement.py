"""Rules for the machine: memory share, executor, graphs, loader, nodes, the CPU's threads."""

from collections.abc import Iterator
from math import floor

from slipstream.planning.plan import Decision
from slipstream.planning.situation import Choice, Situation

GIB = 1 << 30
# Of a unified memory this part stays with the system. Engines died on GB10 at a utilisation of
# 0.85 and ran at 0.75; a prefill took 23 GiB in 11 s (vllm#56824).
UNIFIED_HEADROOM = 0.20
DISCRETE_HEADROOM_BYTES = 2 * GIB
MOST_UTILIZATION = 0.92
CPU_HEADROOM_BYTES = 2 * GIB
FEW_THREADS = 4  # measured on 2; with more, vLLM's own binding of threads is the safer choice
CPU_CACHE_SHARE = 0.5


def decide_utilization(situation: Situation) -> Choice[float] | None:
    """Choose the share of an accelerator's memory from what is free now and a headroom."""
    accelerator = situation.accelerator
    if accelerator is None:
        return None
    if situation.wishes.memory_utilization is not None:
        return situation.from_wish("memory_utilization", situation.wishes.memory_utilization)
    total, available = accelerator.memory_total_bytes, accelerator.memory_available_bytes
    if total is None or available is None:
        return Choice(0.7, "default", "how much memory is free could not be told")
    if situation.is_unified:
        headroom = int(total * UNIFIED_HEADROOM)
        why = f"{headroom / GIB:.0f} GiB stay with the system, which shares this memory"
    else:
        headroom = DISCRETE_HEADROOM_BYTES
        why = f"{available / GIB:.1f} of {total / GIB:.1f} GiB are free, 2 GiB stay so"
    share = floor(100 * min((available - headroom) / total, MOST_UTILIZATION)) / 100
    return Choice(max(share, 0.05), "hardware", why)


def decide_executor(situation: Situation) -> Choice[str] | None:
    """Run the worker as a process: only then does the engine notice a hang."""
    if situation.on_cpu:
        return None
    return Choice(
        "mp", "default", "only a worker process has a time limit on a step, which ends a hang"
    )


def decide_eager(situation: Situation) -> Choice[bool] | None:
    """Skip compilation where it is asked for, or buys nothing for its minutes."""
    if "--enforce-eager" in situation.wishes.raw:
        return situation.from_wish("raw", True)
    if situation.recipe_fits_machine and situation.advice.eager:
        return situation.from_recipe(True)
    if situation.machine == "gb10" and situation.wishes.goal == "latency":
        return Choice(
            True,
            "hardware",
            "on GB10 compiling took 18 instead of 9.5 minutes to start and gave nothing once "
            "warm (NVIDIA forum, DFlash on DGX Spark)",
        )
    return None


def note_compilation(situation: Situation) -> str:
    """Say what compiling costs at the start, where it was not skipped."""
    if situation.on_cpu:
        cost = "about 110 s more for 1.4 times the speed, measured on two cores"
    else:
        cost = "a DGX Spark took 18 instead of 9.5 minutes; later starts find it cached"
    return f"the engine compiles at its first start: {cost}; --enforce-eager after -- skips it"


def decide_nodes(situation: Situation) -> list[Decision]:
    """Spread a recipe for several linked machines over them."""
    if situation.recipe is None or not situation.recipe_fits_machine:
        return []
    if situation.recipe.nodes == 1:
        return _decide_tensor_parallel(situation)
    nodes = situation.recipe.nodes
    choices = {
        "--tensor-parallel-size": situation.from_recipe(nodes),
        "--nnodes": Choice(nodes, "recipe", f"one copy of the model lies on {nodes} machines"),
        "--node-rank": Choice(0, "default", "this machine leads; the others take 1 and up"),
    }
    return [choice.as_decision(flag) for flag, choice in choices.items()]


def _decide_tensor_parallel(situation: Situation) -> list[Decision]:
    wanted = situation.advice.tensor_parallel or 1
    if wanted == 1:
        return []
    return [situation.from_recipe(wanted).as_decision("--tensor-parallel-size")]


def decide_loader(situation: Situation) -> Choice[str]:
    """Load safetensors and nothing that could run code; a recipe may name a faster loader."""
    if situation.recipe_fits_machine and situation.advice.loader:
        return situation.from_recipe(situation.advice.loader)
    return Choice("safetensors", "default", "the engine would fall back to pickled weights")


def decide_modalities(situation: Situation) -> Choice[str] | None:
    """Serve text only unless asked otherwise: drafts are, and media URLs are a hole."""
    if not situation.target.modalities:
        return None
    return Choice(
        '{"image": 0, "video": 0, "audio": 0}',
        "checkpoint",
        "drafts are made for text only, and fetching media on request is a risk; "
        "--limit-mm-per-prompt after -- allows it",
    )


def decide_environment(situation: Situation) -> list[Decision]:
    """Set the few things that the engine reads from its environment only."""
    if situation.on_cpu:
        return _decide_cpu_environment(situation)
    decisions = []
    if situation.draft is not None:
        decisions.append(
            Choice(
                "1",
                "default",
                "a drafter that needs V2 must not fall back to V1 and lose its acceptance",
            ).as_decision("VLLM_USE_V2_MODEL_RUNNER")
        )
    recipe = situation.recipe
    if recipe is not None and situation.recipe_fits_machine:
        decisions += [
            situation.from_recipe(value).as_decision(name)
            for name, value in situation.advice.environment.items()
            if not any(name in old.what for old in recipe.obsolete)
        ]
    return decisions


def _decide_cpu_environment(situation: Situation) -> list[Decision]:
    threads = situation.host.processor.usable_threads
    decisions = []
    if (library := situation.host.software.openmp_library) is not None:
        decisions.append(
            Choice(
                library,
                "hardware",
                "drafts ran twice as fast on Intel's OpenMP as on GNU's (vllm#44191); on two "
                "threads the same",
            ).as_decision("LD_PRELOAD")
        )
    if threads is None:
        return decisions
    if shares_one_process(situation):
        return [*decisions, *_share_one_process(threads)]
    bound = Choice(
        f"0-{threads - 2}",
        "hardware",
        f"{threads} threads: the last is left to the scheduler, which spins",
    )
    return [*decisions, bound.as_decision("VLLM_CPU_OMP_THREADS_BIND")]


def shares_one_process(situation: Situation) -> bool:
    """Say whether the model is to run in the engine's own process: on few threads of one node."""
    processor = situation.host.processor
    few = processor.usable_threads is not None and processor.usable_threads <= FEW_THREADS
    return situation.on_cpu and few and (processor.numa_nodes or 1) == 1


def _share_one_process(threads: int) -> Iterator[Decision]:
    """Spare a small machine the worker process, for whose queue a whole core spins."""
    yield Choice(
        "0",
        "hardware",
        "the model runs in the engine's own process, so no core spins for a queue: a step takes "
        "0.6 to 0.75 of the time on two threads (scripts/measure-cpu-settings)",
    ).as_decision("VLLM_ENABLE_V1_MULTIPROCESSING")
    yield Choice(
        str(threads), "hardware", "every thread computes; the scheduler waits meanwhile"
    ).as_decision("OMP_NUM_THREADS")
