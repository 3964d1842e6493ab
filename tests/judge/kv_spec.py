"""vLLM's own account of what a model keeps of a token and of a sequence, on one rank.

Runs inside any vLLM environment, on a CPU build or a CUDA build without a device, and imports
nothing of ours. A job comes on stdin as JSON, `{"cases": {name: {"folder": ..., "tensor_parallel":
1, "context": 4096, "engine": {...}}}}` with further engine arguments, and the account goes to
stdout, or to the file that the job names as `outcome`. Of the folder only config.json is read.

The model's real class is built on the meta device, and every layer is asked for its
`get_kv_cache_spec`, as the engine does; the engine's own grouping of these specs gives what it
would reserve for a sequence. Three things differ from a start: the parallel groups are stand-ins of
the asked size, so a rank of eight needs no other seven; streams and buffers of a GPU are stand-ins,
too; and what the weights are quantized to is left out of the config, since the cache does not
depend on it and a build may lack the kernels.
"""

import contextlib
import json
import os
import sys
import tempfile
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
import vllm
from vllm.config import set_current_vllm_config
from vllm.distributed import parallel_state
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.model_loader.utils import initialize_model
from vllm.model_executor.models import ModelRegistry, registry
from vllm.platforms import current_platform
from vllm.utils.torch_utils import set_default_torch_dtype
from vllm.v1.core import kv_cache_utils
from vllm.v1.kv_cache_interface import MambaSpec
from vllm.v1.worker.gpu.attn_utils import get_kv_cache_spec

CONTEXT = 4096
POOL_BYTES = 1 << 40
QUANTIZED = ("quantization_config", "compression_config")
GROUPS = ("_WORLD", "_TP", "_ETP", "_DCP", "_PP", "_DP", "_EP", "_EPLB", "_PCP")


def stand_in_groups(tensor_parallel: int) -> Any:
    """Let vLLM believe that it is the first of so many ranks."""
    sizes = {"_WORLD": tensor_parallel, "_TP": tensor_parallel, "_EP": tensor_parallel}
    groups: dict[str, Any] = {name: make_group(sizes.get(name, 1)) for name in GROUPS}
    return mock.patch.multiple(parallel_state, create=True, **groups)


def make_group(size: int) -> SimpleNamespace:
    return SimpleNamespace(
        world_size=size,
        rank_in_group=0,
        rank=0,
        local_rank=0,
        ranks=list(range(size)),
        is_first_rank=True,
        is_last_rank=True,
        device_group=SimpleNamespace(size=lambda: size, rank=lambda: 0),
        cpu_group=SimpleNamespace(size=lambda: size, rank=lambda: 0),
        device_communicator=None,
        unique_name="stand-in",
    )


class StandIn:
    """A stream or an event of a GPU that is not there."""

    def __init__(self, *_arguments: Any, **_options: Any) -> None: ...


@contextlib.contextmanager
def stand_in_device() -> Iterator[None]:
    """Let model classes create streams and buffers where there is no GPU, and read numbers."""
    read, meta = torch.Tensor.item, torch.device("meta")
    with contextlib.ExitStack() as stack:
        for name in ("Stream", "Event"):
            stack.enter_context(mock.patch.object(torch.cuda, name, StandIn))
        stack.enter_context(mock.patch.object(torch.cuda, "current_device", return_value=meta))
        stack.enter_context(
            mock.patch.object(torch.Tensor, "item", lambda one: 0.0 if one.is_meta else read(one))
        )
        stack.enter_context(
            mock.patch.multiple(
                current_platform, create=True, device_type="meta", current_device=lambda: meta
            )
        )
        yield


def copy_config(folder: Path, copy: Path) -> None:
    """Copy the config without its quantization and, where vLLM has a class for it, as text only.

    Towers for images and sound keep no cache, and need packages that not every build has.
    """
    config = json.loads((folder / "config.json").read_text())
    text, names = config.get("text_config") or {}, config.get("architectures") or [""]
    family = str(text.get("model_type")).removesuffix("_text").title()
    plain = names[0].replace("ForConditionalGeneration", "ForCausalLM")
    known = ModelRegistry.get_supported_archs()
    found = [name for name in (plain, f"{family}ForCausalLM") if name in known]
    if text and found:
        config = {"dtype": "bfloat16", **text, "architectures": found[:1]}
    for key in QUANTIZED:
        config.pop(key, None)
        (config.get("text_config") or {}).pop(key, None)
    (copy / "config.json").write_text(json.dumps(config))


def build(folder: Path, case: dict[str, Any]) -> tuple[Any, dict[str, Any], int, int]:
    """Build the model without memory; return config, specs, block and bytes of a sequence."""
    engine = EngineArgs(
        model=str(folder),
        dtype="bfloat16",
        max_model_len=case.get("context", CONTEXT),
        skip_tokenizer_init=True,
        enforce_eager=True,
        load_format="dummy",
        enable_prefix_caching=False,
        **case.get("engine", {}),
    )
    config = engine.create_engine_config()
    if "async_scheduling" in case:
        config.scheduler_config.async_scheduling = case["async_scheduling"]
    config.parallel_config.tensor_parallel_size = case["tensor_parallel"]
    with stand_in_groups(case["tensor_parallel"]), set_current_vllm_config(config):
        with stand_in_device(), set_default_torch_dtype(torch.bfloat16), torch.device("meta"):
            initialize_model(config)
        specs, asked = get_kv_cache_spec(config), config.cache_config.block_size
        return config, specs, asked, count_sequence_bytes(config)


def count_sequence_bytes(config: Any) -> int:
    """Count what the engine reserves for a sequence of full length, with its padding."""
    current_platform.update_block_size_for_backend(config)
    config.cache_config.kv_cache_layout = "LBNHC"
    specs = [get_kv_cache_spec(config)]
    if hasattr(kv_cache_utils, "get_kv_cache_configs"):
        (pool,) = kv_cache_utils.get_kv_cache_configs(config, specs, [POOL_BYTES])
    else:
        from vllm.v1.core import kv_cache_planning as planning  # from 0.33.0 on

        groups = planning.get_global_kv_cache_groups(config, specs)
        (pool,) = planning.get_kv_cache_configs(config, specs, [POOL_BYTES], groups)
    fit = kv_cache_utils.get_max_concurrency_for_kv_cache_config(config, pool)
    block_bytes = max(tensor.size for tensor in pool.kv_cache_tensors) // pool.num_blocks
    return int(block_bytes * round(pool.num_blocks / fit))


def describe(case: dict[str, Any]) -> dict[str, Any]:
    """Add up what one rank keeps of a token in all attention layers, and of a sequence's states."""
    with tempfile.TemporaryDirectory() as copy:
        copy_config(Path(case["folder"]), Path(copy))
        config, specs, asked, sequence = build(Path(copy), case)
    states = [spec for spec in specs.values() if isinstance(spec, MambaSpec)]
    attention = [spec for spec in specs.values() if not isinstance(spec, MambaSpec)]
    kinds: dict[str, int] = {}
    for spec in specs.values():
        kinds[type(spec).__name__] = kinds.get(type(spec).__name__, 0) + 1
    return {
        "token_bytes": sum(spec.page_size_bytes // spec.block_size for spec in attention),
        "windowed_token_bytes": sum(
            spec.page_size_bytes // spec.block_size for spec in attention if find_window(spec)
        ),
        "windows": sorted({find_window(spec) or 0 for spec in attention}),
        "state_bytes": sum(count_state_bytes(spec) for spec in states),
        "layers": kinds,
        "sequence_bytes": sequence,
        "asked_block_tokens": asked,
        "block_tokens": config.cache_config.block_size,
        "in_flight_tokens": config.max_in_flight_tokens,
    }


def find_window(spec: Any) -> int | None:
    window = getattr(spec, "sliding_window", None) or getattr(spec, "attention_chunk_size", None)
    return window if isinstance(window, int) else None


def count_state_bytes(spec: Any) -> int:
    """Count the states, one more for each draft token, before they are padded to a page."""
    one = sum(
        torch.Size(shape).numel() * dtype.itemsize
        for shape, dtype in zip(spec.shapes, spec.dtypes, strict=True)
    )
    return int(one * (1 + spec.num_speculative_blocks))


def main() -> None:
    job = json.load(sys.stdin)
    # A process for each architecture would protect a GPU that is not used here.
    registry._run_in_subprocess = lambda call: call()
    account: dict[str, Any] = {"vllm": vllm.__version__, "cases": {}}
    for name, case in job["cases"].items():
        try:
            account["cases"][name] = describe(case)
        except Exception as fault:  # noqa: BLE001 - one architecture that fails must not hide others
            last = traceback.format_exception(fault)[-4:]
            account["cases"][name] = {"error": f"{type(fault).__name__}: {fault}", "trace": last}
    text = json.dumps(account)
    if outcome := job.get("outcome"):
        Path(outcome).write_text(text)
    else:
        print(text)  # noqa: T201 - this is the program's output


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    main()
