"""Rules for the machine: memory share, executor, graphs, loader, nodes, the CPU's threads."""

from math import floor

from pydantic import JsonValue

from slipstream.engines.vllm_tables import read_multimodal
from slipstream.hardware.processor import show_cpu_list
from slipstream.planning.inputs import PlanInputs
from slipstream.planning.settings import FLAGS, Choice, EngineOptions

GIB = 1 << 30
# Of a unified memory this part stays with the system. Engines died on GB10 at a utilisation of
# 0.85 and ran at 0.75; a prefill took 23 GiB in 11 s (vllm#56824).
UNIFIED_HEADROOM = 0.20
DISCRETE_HEADROOM_BYTES = 2 * GIB
MOST_UTILIZATION = 0.92
CPU_HEADROOM_BYTES = 2 * GIB
FEW_THREADS = 4  # measured on 2; with more, vLLM's own binding of threads is the safer choice
CPU_CACHE_SHARE = 0.5
# From so many sequences in a step on, float32 is faster where bfloat16 is emulated.
EMULATED_ROWS = 3
MOST_IMAGES = 16
# A desktop takes less of a GPU.
MUCH_MEMORY_BYTES = GIB


def decide_utilization(inputs: PlanInputs) -> Choice[float] | None:
    """Choose the share of an accelerator's memory from what is free now and a headroom."""
    accelerator = inputs.accelerator
    if accelerator is None:
        return None
    total, available = accelerator.memory_total_bytes, accelerator.memory_available_bytes
    if total is None or available is None:
        return Choice(0.7, "default", "the free memory is unknown")
    if inputs.is_unified:
        headroom = int(total * UNIFIED_HEADROOM)
        why = f"{headroom / GIB:.0f} GiB are left to the system, which shares this memory"
    else:
        headroom = DISCRETE_HEADROOM_BYTES
        why = f"{available / GIB:.1f} of {total / GIB:.1f} GiB are free, 2 GiB are left free"
    why += describe_users(inputs)
    share = floor(100 * min((available - headroom) / total, MOST_UTILIZATION)) / 100
    ours = Choice(max(share, 0.05), "hardware", why)
    theirs = _find_most_advised(inputs)
    return theirs if theirs is not None and theirs.value < ours.value else ours


def _find_most_advised(inputs: PlanInputs) -> Choice[float] | None:
    """Return a recipe's share where more of it crashed, or was never tried on unified memory."""
    recipe, advice = inputs.recipe, inputs.local_advice
    if recipe is None or recipe.engine != "vllm" or advice.memory_utilization is None:
        return None
    if advice.crashed_above is None and not inputs.is_unified:
        return None
    why = advice.crashed_above or "no higher value was tested, and too much freezes the machine"
    return Choice(advice.memory_utilization, "recipe", f"recipe {recipe.name}: {why}")


def list_accelerator_remarks(inputs: PlanInputs) -> tuple[str, ...]:
    """Return what the probe remarked where it makes less of an accelerator than its name says."""
    lesser = any(one.is_slice or one.memory_total_bytes is None for one in inputs.accelerators)
    return inputs.host.remarks if lesser else ()


def describe_users(inputs: PlanInputs) -> str:
    """Name the processes that use much of the accelerators' memory, as the end of a sentence."""
    users = [user for one in inputs.accelerators for user in one.users]
    large = [
        f"{user.size_bytes / GIB:.1f} GiB by {user.name or 'a process'} (pid {user.pid})"
        for user in users
        if user.size_bytes is not None and user.size_bytes >= MUCH_MEMORY_BYTES
    ]
    return f"; in use: {', '.join(large)}" if large else ""


def decide_executor(inputs: PlanInputs) -> Choice[str] | None:
    """Run the worker as a process: only then does the engine notice a hang."""
    if inputs.on_cpu:
        return None
    why = "only a worker process has a time limit per step, which detects a hang"
    return Choice("mp", "default", why)


def decide_eager(inputs: PlanInputs) -> Choice[bool] | None:
    """Skip compilation where it is not worth its minutes."""
    if inputs.local_advice.eager:
        return inputs.from_recipe(True)
    if inputs.machine == "gb10" and inputs.options.goal in ("latency", "agent"):
        why = "on GB10 a start with compilation took 18 minutes instead of 9.5, and was no faster "
        return Choice(True, "hardware", f"{why}once warm (NVIDIA forum, DFlash on DGX Spark)")
    return None


def note_compilation(inputs: PlanInputs) -> str:
    cost = "about 110 s longer, for 1.4 times the speed, measured on two cores"
    note = f": {cost}" if inputs.on_cpu else "; later starts find it cached"
    return f"the engine compiles at its first start{note}; --enforce-eager after -- skips it"


def list_tensor_parallel(inputs: PlanInputs) -> tuple[int, ...]:
    """Return over how many accelerators the target may be spread, the fewest first.

    Only equal ones share a model, as many as divide its heads; those of other machines come last.
    """
    if _is_laid_out(inputs) or _follow_recipe(inputs) is not None or inputs.on_cpu:
        return (1,)
    accelerators = inputs.host.accelerators
    equal = sum(one.name == accelerators[0].name for one in accelerators)
    sizes = [1 << power for power in range(equal.bit_length())]
    if inputs.host.machines > 1:
        sizes.append(sizes[-1] * inputs.host.machines)
    return tuple(size for size in sizes if find_undivided(inputs, size) is None)


def find_undivided(inputs: PlanInputs, size: int) -> str | None:
    """Return whose heads a tensor-parallel size does not divide, None if it divides all."""
    for model in filter(None, (inputs.target, inputs.draft_model)):
        if model.attention_heads is not None and model.attention_heads % size:
            return f"{model.name} has {model.attention_heads} attention heads"
        for part in model.layers or ():
            # Fewer heads than ranks are kept by several of them.
            heads = part.key_value_heads if part.kind in ("full", "sliding") else None
            if heads is not None and max(heads, size) % min(heads, size):
                return f"{model.name} has {heads} key-value heads"
    return None


def _is_laid_out(inputs: PlanInputs) -> bool:
    given = inputs.fixed
    sizes = (given.tensor_parallel, given.pipeline_parallel, given.data_parallel)
    return any((*sizes, given.nodes, given.node_rank))


def decide_parallel(inputs: PlanInputs, size: int, shortage: str) -> EngineOptions:
    """Choose the parallel sizes for so many accelerators; `shortage` says why not fewer."""
    if _is_laid_out(inputs):
        return EngineOptions()
    if size == 1:
        return _follow_recipe(inputs) or EngineOptions()
    here = len(inputs.host.accelerators)
    link = inputs.host.accelerators[0].link
    over = {"nvlink": ", joined by NVLink", "pcie": ", joined by PCIe: slower than NVLink"}
    why = f"{shortage}{over.get(link or '', '')}"
    spread = EngineOptions(tensor_parallel=Choice(size, "hardware", why))
    return spread if size <= here else spread.override(_join_machines(inputs.host.machines))


def _join_machines(count: int) -> EngineOptions:
    return EngineOptions(
        nodes=Choice(count, "hardware", f"one copy of the model on {count} machines"),
        node_rank=Choice(
            0, "default", "this machine is the head node; the others have ranks from 1"
        ),
    )


def _follow_recipe(inputs: PlanInputs) -> EngineOptions | None:
    """Return the sizes of a recipe for this kind of machine, if that many accelerators are here."""
    recipe, host = inputs.recipe, inputs.host
    if recipe is None or not inputs.recipe_fits_machine:
        return None
    linked = host.machines > 1 or any(port.active for port in host.fabric)
    if recipe.nodes > 1:
        size = inputs.from_recipe(recipe.nodes)
        joined = _join_machines(recipe.nodes)
        return EngineOptions(tensor_parallel=size).override(joined) if linked else None
    size = inputs.from_recipe(recipe.settings.tensor_parallel)
    if size is None or not 1 < size.value <= len(host.accelerators):
        return None
    return EngineOptions(tensor_parallel=size)


def note_idle(inputs: PlanInputs) -> tuple[str, ...]:
    """Say what to do with accelerators that the plan leaves free."""
    given, here = inputs.fixed, len(inputs.host.accelerators)
    copies = given.data_parallel.value if given.data_parallel else 1
    used = given.shards * copies
    spare = here - used
    if inputs.on_cpu or spare <= 0 or copies > 1:
        return ()
    more = here // given.shards
    how = f"-- --data-parallel-size {more} serves {more} copies behind one address"
    return (f"{spare} of {here} accelerators stay free" + (f": {how}" if more > 1 else ""),)


def decide_quantization(inputs: PlanInputs) -> Choice[str] | None:
    """Quantize weights as they are loaded where a recipe for this kind of machine does."""
    if inputs.target.quantized or inputs.on_cpu:
        return None
    return inputs.from_recipe(inputs.local_advice.quantization)


def decide_dtype(inputs: PlanInputs) -> Choice[str] | None:
    """Choose the dtype on a CPU without bfloat16 instructions; elsewhere the checkpoint's is best.

    There a step over one row is bound by memory, and one over several by the conversion of its
    operands: one sequence alone decodes fastest in bfloat16, drafts and batches in float32.
    """
    emulated = inputs.on_cpu and inputs.host.processor.has_bfloat16 is False
    stored = inputs.target.quantization
    if not emulated or (stored is not None and stored.scheme != "int8"):
        return None
    users = inputs.fixed.sequences
    if inputs.method is not None:
        rows = "verifying drafts multiplies several rows, whose operands would be converted first"
    elif users is not None and users.value >= EMULATED_ROWS:
        rows = f"a step of {users.value} sequences takes less in float32"
    else:
        return None
    return Choice("float32", "hardware", f"no bfloat16 instructions here: {rows}")


def decide_loader(inputs: PlanInputs) -> Choice[str]:
    """Load safetensors, nothing that could run code; by a recipe's loader if it is installed."""
    advised = inputs.from_recipe(inputs.local_advice.loader)
    why = "the engine would fall back to pickled weights"
    if advised is None:
        return Choice("safetensors", "default", why)
    if advised.value in inputs.host.software.packages:
        return advised
    return Choice("safetensors", "default", f"{why}; its recipe's {advised.value} is not installed")


def takes_images(inputs: PlanInputs) -> bool:
    """Return whether the model sees, by its configuration or by vLLM's own list of classes."""
    target = inputs.target
    named = any(kind in ("vision", "image", "video") for kind in target.modalities or ())
    return named or (not target.modalities and _has_media_class(inputs))


def _has_media_class(inputs: PlanInputs) -> bool:
    return inputs.target.architecture in read_multimodal(inputs.engine_version)


def decide_modalities(inputs: PlanInputs) -> Choice[dict[str, JsonValue]] | None:
    """Serve text only unless images are requested: drafters are trained on text."""
    if not inputs.target.modalities and not _has_media_class(inputs):
        return None
    limits: dict[str, JsonValue] = {"image": 0, "video": 0, "audio": 0}
    if inputs.options.images and takes_images(inputs):
        why = f"up to {MOST_IMAGES} per request, as clients resend earlier ones with every turn; "
        why += "drafters are trained on text, so fewer drafts are accepted after images"
        return Choice(limits | {"image": MOST_IMAGES}, "user", why)
    how = "--images" if takes_images(inputs) else f"{FLAGS['media_limits']} after --"
    why = "drafters are trained on text, and fetching media on request is a risk"
    return Choice(limits, "checkpoint", f"{why}; {how} allows images")


def decide_environment(inputs: PlanInputs) -> dict[str, Choice[str]]:
    if inputs.on_cpu:
        return _decide_cpu_environment(inputs)
    variables: dict[str, Choice[str]] = {}
    if inputs.draft is not None:
        why = "a drafter that needs V2 must not fall back to V1 and lose acceptance"
        variables["VLLM_USE_V2_MODEL_RUNNER"] = Choice("1", "default", why)
    obsolete = inputs.recipe.obsolete if inputs.recipe else ()
    for name, value in inputs.local_advice.environment.items():
        advised = inputs.from_recipe(value)
        if advised and not any(name in old.what for old in obsolete):
            variables[name] = advised
    return variables


def _decide_cpu_environment(inputs: PlanInputs) -> dict[str, Choice[str]]:
    cpus = inputs.host.processor.cpus
    variables: dict[str, Choice[str]] = {}
    if (library := inputs.host.software.openmp_library) is not None:
        why = "drafts ran twice as fast on Intel's OpenMP as on GNU's (vllm#44191); on two "
        variables["LD_PRELOAD"] = Choice(library, "hardware", f"{why}threads equally fast")
    if not cpus:
        return variables
    limit = inputs.host.processor.quota_cpus
    quota = "" if limit is None else f"; the container may use {limit:g} CPUs"
    if shares_one_process(inputs):
        why = (
            "the model runs in the engine's own process, so no core busy-waits on a queue: a step "
        )
        why += "takes 0.6 to 0.75 of the time on two threads (experiments/measure-cpu-settings)"
        variables["VLLM_ENABLE_V1_MULTIPROCESSING"] = Choice("0", "hardware", why)
        why = f"every thread computes while the scheduler waits{quota}"
        variables["OMP_NUM_THREADS"] = Choice(str(len(cpus)), "hardware", why)
        return variables
    why = f"{len(cpus)} threads: the last is left to the scheduler, which keeps it busy{quota}"
    bound = show_cpu_list(cpus[:-1] or cpus)
    return {**variables, "VLLM_CPU_OMP_THREADS_BIND": Choice(bound, "hardware", why)}


def shares_one_process(inputs: PlanInputs) -> bool:
    """Return whether the model runs in the engine's own process: on few threads of one node.

    On a small machine the queue of a worker process would keep a core busy.
    """
    processor = inputs.host.processor
    few = processor.cpus is not None and len(processor.cpus) <= FEW_THREADS
    alone = inputs.fixed.nodes is None or inputs.fixed.nodes.value == 1
    return inputs.on_cpu and few and alone and (processor.numa_nodes or 1) == 1
