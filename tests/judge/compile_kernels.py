"""Compiles the Triton kernels of our plans for GPUs that are not here, as one build launches them.

vLLM's code launches each kernel on CPU tensors (kernel_launches.py). Instead of running, the launch
is compiled by Triton and its ptxas for an architecture, and the memory that the kernel needs is
compared with what a thread block may have there. It shows neither results nor speed.

It runs in that build's environment. The job comes on stdin as JSON: `capability`; `cases`, if not
all are to be launched; `rows`, the file that gets a line of JSON per kernel; and `outcome`, the
file for the versions, which is written last. Its name is not `kernels`, which transformers would
import from here.
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, TextIO

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
import triton
import triton.language as tl
import vllm.triton_utils
from triton.backends.compiler import GPUTarget
from triton.language.extra import libdevice
from triton.runtime.jit import JITFunction

# The CPU build has the kernels, but does without Triton.
vllm.triton_utils.triton, vllm.triton_utils.tl = triton, tl
vllm.triton_utils.tldevice, vllm.triton_utils.HAS_TRITON = libdevice, True

from vllm.platforms import current_platform  # noqa: E402
from vllm.platforms.interface import DeviceCapability  # noqa: E402

from tests.judge import kernel_launches  # noqa: E402

# Bytes of shared memory that a thread block may have: CUDA C++ Programming Guide, "Technical
# Specifications per Compute Capability".
SHARED_KIB = {"8.0": 163, "8.6": 99, "8.9": 99, "9.0": 227, "10.0": 227, "10.3": 227, "11.0": 227}
SHARED_KIB |= {"12.0": 99, "12.1": 99}
TENSOR_MEMORY_COLUMNS = 512
# Of an RTX 5090. vLLM asks only where the capability is 12.0.
MULTIPROCESSORS = 170
Row = dict[str, Any]


class Compiler:
    """Triton's driver of one architecture, for which launches are compiled and then do not run."""

    def __init__(self, capability: str, lines: TextIO) -> None:
        major, minor = (int(part) for part in capability.split("."))
        self.capability, self.limit = capability, SHARED_KIB[capability] * 1024
        self.architecture, self.lines = 10 * major + minor, lines
        self.case, self.seen = "", set[int]()
        pretend(major, minor)
        triton.runtime.driver.set_active(self)
        run = JITFunction.run

        def compile_only(
            kernel: Any, *arguments: Any, grid: Any, warmup: bool, **named: Any
        ) -> None:
            began = time.monotonic()
            try:
                compiled = run(kernel, *arguments, grid=grid, warmup=True, **named)
            except Exception as fault:  # noqa: BLE001 - any fault is an outcome
                self.add(kernel.fn.__name__, began, fault=describe(fault))
                return
            if id(compiled) not in self.seen:
                self.seen.add(id(compiled))
                self.add(kernel.fn.__name__, began, **self.measure(compiled))

        JITFunction.run = compile_only

    def get_current_device(self) -> int:
        return self.architecture

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.architecture, 32)

    def launch(self, case: str) -> None:
        """Make the launches of a case."""
        self.case, began = case, time.monotonic()
        try:
            kernel_launches.make(case)
        except Exception as fault:  # noqa: BLE001 - any fault is an outcome
            self.add("launch", began, fault=describe(fault))

    def add(self, kernel: str, began: float, **found: Any) -> None:
        seconds = round(time.monotonic() - began, 1)
        row = {"capability": self.capability, "case": self.case, "kernel": kernel, "fault": None}
        self.lines.write(json.dumps(row | found | {"seconds": seconds}) + "\n")
        self.lines.flush()

    def measure(self, compiled: Any) -> Row:
        """Return what a kernel needs, with a fault if a thread block cannot have it."""
        needs = compiled.metadata
        columns = getattr(needs, "tmem_size", None) or 0
        fault = None
        if needs.shared > self.limit:
            fault = f"{needs.shared} bytes of shared memory, of {self.limit}"
        elif columns > TENSOR_MEMORY_COLUMNS:
            fault = f"{columns} columns of tensor memory, of {TENSOR_MEMORY_COLUMNS}"
        return {
            "warps": needs.num_warps,
            "stages": needs.num_stages,
            "shared": needs.shared,
            "fault": fault,
            **count_registers(compiled.asm["cubin"]),
        }


def count_registers(cubin: bytes) -> Row:
    """Return the registers of a thread, and the bytes that did not fit into them."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        words = (triton.knobs.nvidia.cuobjdump.path, "-res-usage", file.name)
        lines = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    pairs = (word.partition(":") for word in lines.split())
    counts = {name: int(count) for name, _, count in pairs if name in ("REG", "STACK")}
    return {"registers": counts["REG"], "stack": counts["STACK"]}


def pretend(major: int, minor: int) -> None:
    """Have vLLM see a GPU of this capability."""
    seen, platform = DeviceCapability(major, minor), type(current_platform)
    platform.get_device_capability = classmethod(lambda cls, device_id=0: seen)
    platform.get_device_name = classmethod(lambda cls, device_id=0: f"sm_{major}{minor}")
    platform.num_compute_units = classmethod(lambda cls, device_id=0: MULTIPROCESSORS)
    platform.is_cuda = platform.is_cuda_alike = lambda self: True
    platform.is_cpu = lambda self: False
    torch.cuda.get_device_capability = lambda device=None: (major, minor)


def describe(fault: Exception) -> str:
    """Return the last line of a fault, which has its reason."""
    lines = str(fault).strip().splitlines() or [""]
    return f"{type(fault).__name__}: {lines[-1].strip()[:300]}"


def main() -> None:
    job = json.load(sys.stdin)
    torch.set_num_threads(1)
    with Path(job["rows"]).open("w") as lines:
        compiler = Compiler(job["capability"], lines)
        for case in job.get("cases") or kernel_launches.list_cases(compiler.architecture):
            compiler.launch(case)
    builds = {"vllm": vllm.__version__, "triton": triton.__version__}
    Path(job["outcome"]).write_text(json.dumps(builds))


if __name__ == "__main__":
    main()
