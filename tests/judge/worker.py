"""Feeds command lines to one build of vLLM: its parser, its engine config, its selector.

It runs in that build's environment and imports nothing of ours. A job comes on stdin as JSON, for
every machine a list of `{"key": ..., "argv": [...], "environment": {...}}`; one line of JSON per
plan goes to the file that is the only argument. What vLLM itself prints is left to stderr.

Imports take most of the time, so vLLM is imported once and every machine gets a fork of that
process, in which all that was remembered of the first machine is forgotten. For the same reason
classes of models are inspected in the process itself, which vLLM does in another one.
"""

import copy
import functools
import gc
import json
import logging
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import vllm
from vllm.config import set_current_vllm_config
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.model_executor.models import registry
from vllm.usage.usage_lib import UsageContext
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.v1.attention.selector import get_attn_backend

if tuple(int(part) for part in vllm.__version__.split(".")[:2]) >= (0, 33):
    from vllm.entrypoints.common.cli_args import make_arg_parser, validate_parsed_serve_args
else:
    from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args

# Methods whose drafter is read in one pass without a causal mask.
ONE_PASS = ("dflash", "dflash2", "dspark")
# The stubs have no device, which these say in several ways.
EXPECTED = ("NUMA", "No CUDA runtime", "cuda_fusion", "Found no NVIDIA driver")


class Warnings(logging.Handler):
    """Keeps what vLLM warns of."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if not any(part in text for part in EXPECTED):
            self.texts.append(shorten(text))


def shorten(text: str) -> str:
    """Return the first sentences without folders and addresses, which differ from run to run."""
    text = re.sub(r"/\S*/(\w[\w.-]*--)", r"\1", " ".join(text.split()))
    return re.sub(r"0x[0-9a-f]+", "0x", text)[:300]


@contextmanager
def variables(environment: dict[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(environment)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def judge(argv: list[str], warned: Warnings) -> dict[str, Any]:
    """Build the engine's config from a command line; say what it chose or why it refused."""
    warned.texts.clear()
    try:
        parsed = make_arg_parser(FlexibleArgumentParser()).parse_args(argv)
        validate_parsed_serve_args(parsed)
    except (SystemExit, Exception) as fault:  # noqa: BLE001 - any fault is an outcome
        return {"outcome": "not parsed", "reason": shorten(f"{type(fault).__name__}: {fault}")}
    try:
        engine = AsyncEngineArgs.from_cli_args(parsed)
        config = engine.create_engine_config(usage_context=UsageContext.OPENAI_API_SERVER)
    except (SystemExit, Exception) as fault:  # noqa: BLE001 - any fault is an outcome
        reason = shorten(f"{type(fault).__name__}: {fault}")
        return {"outcome": "refused", "reason": reason, "warnings": list(warned.texts)}
    return {
        "outcome": "built",
        "warnings": list(warned.texts),
        "context": config.model_config.max_model_len,
        "graphs": str(config.compilation_config.cudagraph_mode).rpartition(".")[2],
        "prefix_caching": config.cache_config.enable_prefix_caching,
        "async_scheduling": config.scheduler_config.async_scheduling,
        "target": choose_for_target(config),
        "drafter": choose_for_drafter(config),
        "recorded": count_recorded(config),
    }


def count_recorded(config: Any) -> dict[str, int] | None:
    """Count the graphs of whole steps by draft length, where a schedule has several."""
    speculative, mode = config.speculative_config, config.compilation_config.cudagraph_mode
    if speculative is None or not speculative.num_speculative_tokens_per_batch_size or not mode:
        return None
    from vllm.v1.worker.gpu.cudagraph_utils import CudaGraphManager

    manager = CudaGraphManager.__new__(CudaGraphManager)
    vars(manager).update(
        vllm_config=config,
        max_num_reqs=config.scheduler_config.max_num_seqs,
        compilation_config=config.compilation_config,
        cudagraph_mode=mode,
        decode_query_len=speculative.num_speculative_tokens + 1,
        varlen_decode=False,
        ubatch_runner=None,
        lora_capture_cases=[0],
        _candidates={},
        _capture_descs={},
    )
    manager._init_candidates()
    counted: Counter[str] = Counter()
    for graphs in manager._capture_descs.values():
        for graph in graphs:
            uniform = graph.uniform_token_count
            counted[str(uniform - 1) if uniform else "any"] += 1
    return dict(counted)


def choose_for_target(config: Any) -> dict[str, str]:
    """Return the backend of every kind of attention layer, by width and window."""
    model = config.model_config
    return {
        f"{width}{' window' if window else ''}": choose(
            config,
            head_size=width,
            dtype=model.dtype,
            kv_cache_dtype=config.cache_config.cache_dtype,
            use_mla=model.use_mla,
            has_sink=model.architecture == "GptOssForCausalLM",
            use_mm_prefix=bool(model.is_mm_prefix_lm),
            num_heads=model.get_num_attention_heads(config.parallel_config),
            has_sliding_window=window,
        )
        for width, window in sorted(list_layer_kinds(model))
    }


def list_layer_kinds(model: Any) -> set[tuple[int, bool]]:
    """Return the widths of heads, each with whether these layers have a window."""
    text = model.hf_text_config
    kinds = getattr(text, "layer_types", None) or []
    if not kinds:
        return {(model.get_head_size(), bool(getattr(text, "sliding_window", None)))}
    architecture = model.model_arch_config
    return {
        (architecture[at].head_size, "sliding" in kind)
        for at, kind in enumerate(kinds[: architecture.total_num_hidden_layers])
        if "attention" in kind and "linear" not in kind
    }


def choose_for_drafter(config: Any) -> dict[str, Any] | None:
    """Return the drafter's backend as planned, and as vLLM would choose it by itself."""
    speculative = config.speculative_config
    if speculative is None or speculative.method not in ONE_PASS:
        return None
    draft = speculative.draft_model_config
    stored = speculative.kv_cache_dtype or config.cache_config.cache_dtype
    shape = {"head_size": draft.get_head_size(), "dtype": draft.dtype, "kv_cache_dtype": stored}
    asked, named = speculative.attention_backend, {"kv_dtype": stored}
    for name, backend in (("planned", asked), ("automatic", None)):
        own = copy.copy(config)
        own.attention_config = copy.copy(config.attention_config)
        own.attention_config.use_non_causal = True
        own.attention_config.backend = backend
        named[name] = choose(own, **shape)
    return named


def choose(config: Any, **shape: Any) -> str:
    try:
        with set_current_vllm_config(config):
            return str(get_attn_backend(**shape).get_name())
    except Exception as fault:  # noqa: BLE001 - any fault is an outcome
        # Some backends ask the device itself, which a stub is not.
        needs_device = "forked subprocess" in str(fault) or "NVIDIA driver" in str(fault)
        return "needs a device" if needs_device else shorten(f"{type(fault).__name__}: {fault}")


def list_caches() -> list[Any]:
    """Return every cache that may hold an answer of the first machine."""
    caches = [one for one in gc.get_objects() if type(one) is functools._lru_cache_wrapper]
    modules = ("vllm.", "flashinfer.", "torch.cuda")
    return [one for one in caches if str(getattr(one, "__module__", "")).startswith(modules)]


def judge_machine(machine: str, plans: list[dict[str, Any]], out: Path) -> None:
    os.environ["FAKE_GPU"] = machine
    warned = Warnings()
    logging.getLogger("vllm").addHandler(warned)
    with out.open("a") as lines:
        for plan in plans:
            began = time.monotonic()
            with variables(plan["environment"]):
                found = judge(plan["argv"], warned)
            seconds = round(time.monotonic() - began, 1)
            lines.write(json.dumps({"key": plan["key"], **found, "seconds": seconds}) + "\n")
            lines.flush()


def warm_up(plans: list[dict[str, Any]]) -> None:
    """Judge one plan of every model, so that what they import is there for all machines."""
    first = {plan["argv"][1]: plan for plan in reversed(plans)}
    for plan in first.values():
        with variables(plan["environment"]):
            judge(plan["argv"], Warnings())


def main() -> None:
    registry._run_in_subprocess = lambda inspect: inspect()
    job = json.load(sys.stdin)
    warm_up([plan for plans in job.values() for plan in plans])
    caches = list_caches()
    gc.freeze()
    for machine, plans in job.items():
        if (child := os.fork()) == 0:
            torch.cuda._cached_device_count = None
            for cache in caches:
                cache.cache_clear()
            judge_machine(machine, plans, Path(sys.argv[1]))
            os._exit(0)
        os.waitpid(child, 0)


if __name__ == "__main__":
    main()
