"""What to type instead of a plan that does not fit: commands that were tried and that work."""

from collections.abc import Callable, Iterator
from functools import cache
from itertools import islice

from slipstream.hardware import Host, list_machines, load_host
from slipstream.planning.plan import LaunchPlan
from slipstream.planning.settings import FLAGS
from slipstream.planning.settings.options import AFTER_DASHES, PlanOptions, read_engine_arguments
from slipstream.units import version_tuple

Replan = Callable[[Host, str, PlanOptions], LaunchPlan]
CODES = ("memory", "cache")
MOST_BUILDS = 3
COUNTS = (1, 2, 4, 8)
MOST_CONSUMER_CARDS = 4
SMALLER = "a smaller model: slipstream models"
DEMO = "slipstream demo"
# vLLM quantizes weights so as it loads them, from this compute capability on (Marlin below sm_89).
FP8, FP8_CAPABILITY = "fp8_per_tensor", (8, 0)


def name_alternatives(
    plan: LaunchPlan, host: Host, replan: Replan, builds: tuple[str, ...]
) -> LaunchPlan:
    """Return a refused plan whose faults of memory name what works, here and elsewhere."""
    if not any(fault.code in CODES for fault in plan.refusals):
        return plan
    here = next(_list_here(plan, host, replan, builds), None)
    elsewhere = next(_list_machines(plan, host, replan), None)
    # A command comes last: from its beginning on it can be pasted.
    found = sorted(filter(None, (here, elsewhere)), key=lambda one: one.startswith("slipstream "))
    hint = ", or ".join(found) or SMALLER
    return plan.model_copy(
        update={
            "refusals": tuple(
                fault.model_copy(update={"hint": hint}) if fault.code in CODES else fault
                for fault in plan.refusals
            )
        }
    )


def _list_here(
    plan: LaunchPlan, host: Host, replan: Replan, builds: tuple[str, ...]
) -> Iterator[str]:
    """Yield what fits on the same machine, what changes least first."""
    options, target = plan.options, plan.target
    engine = options.engine

    def works(changed: PlanOptions, name: str = target) -> LaunchPlan | None:
        replanned = replan(host, name, changed)
        return None if replanned.refusals else replanned

    if not host.accelerators:
        yield DEMO
    if engine.context is not None:
        free = options.model_copy(update={"engine": engine.change(context=None)})
        if (replanned := works(free)) is not None:
            raw = f"-- {FLAGS['context']}" if engine.context.because == AFTER_DASHES else None
            yield f"{raw or '--context'} {replanned.context}"
    for size in COUNTS[1:] if engine.tensor_parallel is not None else ():
        if size > engine.shards and works(_add(options, "--tensor-parallel-size", str(size))):
            yield f"-- --tensor-parallel-size {size}"
    for name in islice(builds, MOST_BUILDS):
        if works(options, name):
            yield f"slipstream plan {name}"
    capable = host.accelerators and version_tuple(plan.capability or "0.0") >= FP8_CAPABILITY
    quantized = _add(options, "--quantization", FP8)
    if capable and engine.quantization is None and works(quantized):
        yield f"-- --quantization {FP8}"
    if plan.speculation is not None and works(options.without_speculation()):
        yield "--no-speculation"


def _add(options: PlanOptions, *words: str) -> PlanOptions:
    return options.specify(read_engine_arguments(words, "user", AFTER_DASHES))


def _list_machines(plan: LaunchPlan, host: Host, replan: Replan) -> Iterator[str]:
    """Yield known machines that hold the model: more of this kind, then the smallest."""
    known = sorted((size, name) for name, size in _list_sizes())
    kind = plan.machine or "none"
    own = [name for _, name in known if name.startswith(f"{kind}x") or name.endswith(f"x-{kind}")]
    memory, count = plan.memory, plan.settings.shards if host.accelerators else 0
    least = max(memory.least_fixed_bytes, (memory.device_bytes or 0) * count)
    larger = [name for size, name in known if size > least]
    for name in dict.fromkeys([*(name for name in own if name in larger), *larger]):
        if not replan(load_host(name), plan.target, plan.options).refusals:
            yield f"--host {name}"


@cache
def _list_sizes() -> tuple[tuple[str, int], ...]:
    """Return the machines with NVIDIA accelerators, alone or as they are sold, and their memory."""
    sizes = {}
    for kind in list_machines():
        host = load_host(kind)
        if not host.accelerators or host.on_rocm or any(port.active for port in host.fabric):
            continue
        sizes[kind] = _count_bytes(host)
        if host.accelerators[0].memory_kind == "unified":
            sizes[f"2x-{kind}"] = 2 * sizes[kind]
        elif host.processor.architecture == "x86_64":
            most = MOST_CONSUMER_CARDS if kind.startswith("rtx") else COUNTS[-1]
            counts = (count for count in COUNTS[1:] if count <= most)
            sizes |= {f"{kind}x{count}": count * sizes[kind] for count in counts}
    return tuple(sizes.items())


def _count_bytes(host: Host) -> int:
    return host.machines * sum(one.memory_total_bytes or 0 for one in host.accelerators)
