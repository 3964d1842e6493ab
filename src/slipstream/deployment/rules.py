"""Rules that turn a plan into a deployment: pure, one `decide_*` per figure."""

import os
import re
from math import ceil, prod
from pathlib import PurePosixPath
from typing import Literal

from slipstream.checkpoints.hub import is_commit
from slipstream.deployment.deployment import Deployment, DeploymentOptions
from slipstream.errors import InvalidInputError
from slipstream.hardware.processor import parse_cpu_list
from slipstream.planning.plan import LaunchPlan
from slipstream.planning.settings import Choice
from slipstream.serving.run import Terms
from slipstream.serving.served_plan import PORT
from slipstream.serving.supervision.engine_life import START_WITHIN_SECONDS
from slipstream.serving.supervision.engine_process import require_accepted

GIB = 1 << 30
HUB_PATH = "/var/cache/models"
UNIFIED = ("gb10", "jetson-thor")
# Paths and processor numbers of the machine that the plan was made on mean nothing in a pod.
MACHINE_VARIABLES = ("LD_PRELOAD", "VLLM_CPU_OMP_THREADS_BIND")
_CERTIFICATE = "--ssl-certfile"
# A DGX Spark's start of 20 GB, compiled and not (NVIDIA forum, DFlash on DGX Spark).
_SPARK_SECONDS, _SPARK_COMPILE_SECONDS, _SPARK_BYTES = 570, 510, 20_000_000_000
_CPU_SECONDS, _CPU_COMPILE_SECONDS = 60, 110
# Imports and set-up, graphs and compilation, and the slowest network volume that is worth having.
_GPU_SECONDS, _GPU_COMPILE_SECONDS, _VOLUME_BYTES_PER_S = 120, 300, 100_000_000
SHORTEST_START = 300
HOST_BYTES = 16 * GIB


def make_deployment(plan: LaunchPlan, options: DeploymentOptions) -> Deployment:
    """Return what a cluster has to know of a plan; one that a pod cannot serve is refused."""
    require_accepted(plan)
    _require_servable(plan)
    source, path = decide_source(plan)
    pod_plan, left_out = leave_out_machine(plan)
    highest = options.highest_replicas
    if highest is not None and highest < options.replicas:
        raise InvalidInputError(
            f"--max-replicas {highest} is less than --replicas {options.replicas}",
            hint=f"--max-replicas {options.replicas * 2}",
        )
    return Deployment(
        name=options.name or name_release(plan),
        image=options.read_image(),
        fleet=options.fleet,
        group=options.group,
        plan=pod_plan,
        replicas=Choice(options.replicas, "user", "--replicas")
        if options.replicas > 1
        else Choice(1, "default", "the default; --replicas sets it"),
        highest_replicas=None
        if highest is None
        else Choice(highest, "user", "requested; scaled by queue, batch and goodput"),
        machines=decide_machines(plan),
        gpus=decide_gpus(plan),
        nodes=decide_nodes(plan),
        processors=decide_processors(plan),
        memory_bytes=decide_memory(plan),
        port=plan.settings.port or Choice(PORT, "default", "vLLM's default"),
        start_seconds=decide_start(plan),
        drain_seconds=Choice(Terms().drain_seconds, "default", "the default of slipstream serve")
        if options.drain_seconds is None
        else Choice(options.drain_seconds, "user", "requested"),
        source=source,
        weights_path=path,
        storage_bytes=decide_storage(plan) if source.value == "hub" else None,
        # Requests that wait for each replica, or are in its engine, that ask for another one.
        queue=_share_sequences(plan, 1, "a quarter"),
        batch=_share_sequences(plan, 3, "three quarters"),
        left_out=left_out,
        warnings=tuple(_warn(plan, options, source.value)),
    )


def _require_servable(plan: LaunchPlan) -> None:
    if plan.settings.uds is not None:
        raise InvalidInputError(
            "the plan listens at a Unix socket, which no Service reaches",
            hint="without --uds: slipstream plan TARGET",
        )
    if _CERTIFICATE in plan.settings.rest:
        raise InvalidInputError(
            "the plan has a certificate of this machine, which the pod does not",
            hint=f"TLS ends at the ingress; without {_CERTIFICATE}: slipstream plan TARGET",
        )
    if plan.machine is not None and plan.machine.startswith("apple"):
        raise InvalidInputError(
            f"the plan is for {plan.machine}, and the images are for Linux",
            hint="slipstream deploy kubernetes TARGET --host gb10",
        )


def name_release(plan: LaunchPlan) -> str:
    """Return a name for the release from the name that clients call the model by."""
    served = plan.settings.list_served_names()[0].rpartition("/")[2].lower()
    name = re.sub(r"[^a-z0-9]+", "-", served).strip("-")[:40].rstrip("-")
    return name if name[:1].isalpha() else f"model-{name}"[:40].rstrip("-")


def leave_out_machine(plan: LaunchPlan) -> tuple[LaunchPlan, Choice[tuple[str, ...]] | None]:
    """Return the plan without what holds only on the machine that it was made on."""
    names = tuple(name for name in MACHINE_VARIABLES if name in plan.environment)
    if not names:
        return plan, None
    because = "left out: a path or a list of processors of the planning machine"
    return plan.change_variables(dict.fromkeys(names)), Choice(names, "default", because)


def decide_source(plan: LaunchPlan) -> tuple[Choice[Literal["hub", "folder"]], str]:
    """Say whether the weights are fetched, and where they lie in the pod."""
    models = [model for model in (plan.settings.model.value, plan.drafter) if model is not None]
    folders = [model for model in models if PurePosixPath(model).is_absolute()]
    if not folders:
        return Choice("hub", "user", "names on the hub, fetched once into a volume"), HUB_PATH
    if len(folders) < len(models):
        raise InvalidInputError(
            "one model is a folder and the other a hub name",
            details=tuple(models),
            hint="name both by folder, or both by hub name",
        )
    path = os.path.commonpath([str(PurePosixPath(folder).parent) for folder in folders])
    if path == "/" or not re.fullmatch(r"(/[A-Za-z0-9_][A-Za-z0-9_.-]*)+", path):
        raise InvalidInputError(
            f"{' and '.join(folders)} have no folder in common that a volume can take",
            hint="put both below one folder, as /models/target and /models/drafter",
        )
    because = f"folders in {path}, where your volume claim is mounted"
    return Choice("folder", "user", because), path


def decide_machines(plan: LaunchPlan) -> Choice[int]:
    """Return how many pods share one copy of the model."""
    return plan.settings.nodes or Choice(1, "default", "one machine holds the model")


def decide_gpus(plan: LaunchPlan) -> Choice[int]:
    if plan.capability is None:
        return Choice(0, "hardware", f"the plan is for {plan.machine or 'a CPU'}")
    settings = plan.settings
    parallel = (settings.tensor_parallel, settings.pipeline_parallel, settings.data_parallel)
    machines = decide_machines(plan).value
    sizes = [size for size in parallel if size is not None]
    because = " x ".join(f"{size.value} ({size.because})" for size in sizes)
    return Choice(
        ceil(prod(size.value for size in sizes) / machines),
        sizes[0].source if sizes else "default",
        f"ranks {because}, over {machines} pods" if sizes else "the model is on one",
    )


def decide_nodes(plan: LaunchPlan) -> Choice[dict[str, str]] | None:
    """Keep a plan on the kind of accelerator that it was made for."""
    if plan.capability is None:
        return None
    major, _, minor = plan.capability.partition(".")
    labels = {"nvidia.com/gpu.compute.major": major, "nvidia.com/gpu.compute.minor": minor or "0"}
    because = f"planned for {plan.machine}; the labels are GPU feature discovery's"
    return Choice(labels, "hardware", because)


def decide_processors(plan: LaunchPlan) -> Choice[int]:
    if plan.capability is not None:
        return Choice(4, "default", "the server, the scheduler, a worker and the tokenizer")
    bound = plan.environment.get("VLLM_CPU_OMP_THREADS_BIND")
    if bound is not None and (cpus := parse_cpu_list(bound.value)):
        return Choice(len(cpus) + 1, "hardware", "as many as the plan computes on, plus one")
    if (threads := plan.environment.get("OMP_NUM_THREADS")) is not None:
        return Choice(int(threads.value), "hardware", threads.because)
    return Choice(8, "default", "not in the plan")


def decide_memory(plan: LaunchPlan) -> Choice[int]:
    """Return the memory of the machine to ask for; no limit is set (vllm#56824)."""
    usable = plan.memory.usable_bytes
    if plan.capability is None or plan.machine in UNIFIED:
        if usable is None:
            return Choice(HOST_BYTES, "default", "the plan's memory is unknown")
        shared = "the accelerator uses the machine's memory" if plan.capability else "on a CPU"
        return Choice(usable, "hardware", f"the plan's usable memory: {shared}")
    return Choice(HOST_BYTES, "default", "processes and page cache beside the accelerator's own")


def decide_start(plan: LaunchPlan) -> Choice[int]:
    """Return how long a start may take: twice what is expected, as others load meanwhile."""
    most, read_bytes = int(START_WITHIN_SECONDS), _sum_weights(plan)
    if read_bytes is None:
        because = "the weights' size is unknown: the supervisor's own limit"
        return Choice(most, "default", because)
    eager = plan.settings.eager is not None and plan.settings.eager.value
    if plan.capability is None:
        base, compiling, rate = _CPU_SECONDS, _CPU_COMPILE_SECONDS, float(_VOLUME_BYTES_PER_S)
        basis = "measured on two cores"
    elif plan.machine == "gb10":
        base, compiling = _GPU_SECONDS, _SPARK_COMPILE_SECONDS
        rate = _SPARK_BYTES / (_SPARK_SECONDS - _GPU_SECONDS)
        basis = "20 GB took a DGX Spark 9.5 minutes, 18 compiled (NVIDIA forum)"
    else:
        base, compiling, rate = _GPU_SECONDS, _GPU_COMPILE_SECONDS, float(_VOLUME_BYTES_PER_S)
        basis = "an allowance: 100 MB/s from a volume"
    expected = base + read_bytes / rate + (0 if eager else compiling)
    seconds = min(most, max(SHORTEST_START, ceil(2 * expected / 60) * 60))
    how = "eager" if eager else "compiled"
    return Choice(seconds, "hardware", f"twice {expected:.0f} s, {how}; {basis}")


def decide_storage(plan: LaunchPlan) -> Choice[int]:
    """Return a volume for two sets of weights, so that an upgrade finds room beside the old."""
    shard_bytes = _sum_weights(plan)
    if shard_bytes is None:
        return Choice(512 * GIB, "default", "the weights' size is unknown")
    # The budget is one shard's.
    size, storage = shard_bytes * plan.settings.shards, 64 * GIB
    while storage < 2.2 * size:
        storage *= 2
    because = f"{size / GIB:.1f} GiB of weights, twice; doubled from 64, as claims cannot shrink"
    return Choice(storage, "checkpoint", because)


def _sum_weights(plan: LaunchPlan) -> int | None:
    sizes = [item.size_bytes for item in plan.memory.items if item.name.endswith(" weights")]
    known = [size for size in sizes if size is not None]
    return sum(known) if sizes and len(known) == len(sizes) else None


def _share_sequences(plan: LaunchPlan, quarters: int, called: str) -> Choice[int]:
    if plan.sequences is None:
        because = "the plan leaves the sequences to the engine"
        return Choice(4 * quarters, "default", because)
    because = f"{called} of the plan's {plan.sequences} sequences"
    return Choice(max(1, plan.sequences * quarters // 4), "default", because)


def _warn(plan: LaunchPlan, options: DeploymentOptions, source: str) -> list[str]:
    """List what the operator should know before it is applied."""
    warnings = [fault.message for fault in plan.warnings]
    speculation = plan.speculation
    revisions = [plan.settings.revision]
    if speculation is not None and speculation.drafter is not None:
        revisions.append(speculation.revision)
    if source == "hub" and not all(is_commit(one.value if one else None) for one in revisions):
        warnings.append(
            "no commit is pinned, so a replica that starts later may get other weights: "
            "slipstream plan TARGET -- --revision COMMIT --speculative-config.revision COMMIT"
        )
    if not options.read_image().digest:
        warnings.append("the image has a tag and no digest: --image REPOSITORY:TAG@sha256:...")
    if decide_machines(plan).value > 1:
        warnings.append(
            "LeaderWorkerSet, its controller and a network between the machines are needed"
        )
    return warnings
