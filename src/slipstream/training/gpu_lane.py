"""Training on a GPU: stock vLLM and speculators' command line, each a process of its own.

speculators has its own environment, since its pins and vLLM's overlap today and may not
tomorrow. Two of its defaults are never left to it: draft layers that slide over 2048 tokens,
and a drafter that is not called non-causal, which vLLM 0.32 serves causal even where it was
trained in both directions (https://github.com/vllm-project/vllm/pull/56692).
"""

import json
import math
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Container, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipstream.atomic_files import write_atomically
from slipstream.errors import EngineError, InvalidInputError, MissingPartError
from slipstream.training.responses import read_responses
from slipstream.training.settings import DrafterDesign
from slipstream.user_folders import slipstream_cache

VERSION = "0.9.0"
VARIABLE = "SLIPSTREAM_SPECULATORS"
FEWEST_ROWS = 2  # one to train on, one to validate with
TRAINED_SHARE = 0.9
# speculators gives itself 120 s to save a checkpoint once it is told to end.
PATIENCE_SECONDS = 130
TAIL_BYTES, TAIL_LINES = 8192, 12

Command = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class GpuJob:
    """What is trained on what, and where everything lies; `endpoint` ends in /v1.

    `steps` ends an epoch early, and speculators still takes one step in each that is left, so
    `epochs` should be what `count_epochs` says.
    """

    target: str
    responses: Path
    folder: Path
    design: DrafterDesign
    epochs: int
    learning_rate: float
    anchors: int
    sequence_length: int
    endpoint: str
    gpus: int = 1
    seed: int = 0
    steps: int | None = None
    from_drafter: Path | None = None
    speculators: Path = Path("speculators")

    @property
    def rows(self) -> Path:
        """Return the file of tokens and loss masks."""
        return self.folder / "rows.jsonl"

    @property
    def data(self) -> Path:
        """Return the folder of the prepared rows."""
        return self.folder / "data"

    @property
    def states(self) -> Path:
        """Return the folder of the hidden states; `prepare-data` wants none inside its own."""
        return self.folder / "states"

    @property
    def outline(self) -> Path:
        """Return the folder of the untrained drafter that tells what speculators derives."""
        return self.folder / "outline"

    @property
    def draft_config(self) -> Path:
        """Return the file that describes the draft layers."""
        return self.folder / "draft-layers.json"

    @property
    def checkpoints(self) -> Path:
        """Return the folder of the trained drafters, one an epoch."""
        return self.folder / "checkpoints"


def write_training_data(job: GpuJob, ids: Container[str] | None = None) -> Path:
    """Write responses for `prepare-data`, which takes them without a server; `ids` selects."""
    job.folder.mkdir(parents=True, exist_ok=True)
    partial = job.rows.with_suffix(".partial")
    count = 0
    with partial.open("w") as file:
        for row in read_responses(job.responses):
            if ids is None or row.id in ids:
                tokens = (*row.prompt_ids, *row.response_ids)
                mask = [0] * len(row.prompt_ids) + [1] * len(row.response_ids)
                file.write(json.dumps({"input_ids": tokens, "loss_mask": mask}) + "\n")
                count += 1
    if count < FEWEST_ROWS:
        raise InvalidInputError(
            f"{job.responses} holds {count} responses to train on, and {FEWEST_ROWS} are needed",
            hint="give it more prompts",
        )
    return partial.replace(job.rows)


def count_epochs(job: GpuJob, steps: int) -> int:
    """Count the passes over the rows in which so many steps are sure to be taken."""
    with job.rows.open() as file:
        lengths = [len(json.loads(line)["input_ids"]) for line in file]
    tokens = sum(min(length, job.sequence_length) for length in lengths) * TRAINED_SHARE
    fewest = max(1, int(tokens / (job.sequence_length * job.gpus)))
    return math.ceil(steps / fewest)


def prepare_command(job: GpuJob) -> Command:
    """Return the command that cuts rows to length and stores them for speculators."""
    return (
        *(str(job.speculators), "prepare-data", "--overwrite"),
        *("--model", job.target),
        *("--data", str(job.rows), "--output", str(job.data)),
        *("--seq-length", str(job.sequence_length), "--seed", str(job.seed)),
    )


def extraction_arguments(job: GpuJob, target_layers: int) -> Command:
    """Make the server of a plain plan hand out hidden states, the last one for the loss.

    The plan's context must exceed `sequence_length`: a token is generated for every row.
    Cached prefixes would be skipped, and their states with them.
    """
    states = [*job.design.target_layer_ids, target_layers]
    speculative = {
        "method": "extract_hidden_states",
        "num_speculative_tokens": 1,
        "draft_model_config": {"hf_config": {"eagle_aux_hidden_state_layer_ids": states}},
    }
    transfer = {
        "kv_connector": "ExampleHiddenStatesConnector",
        "kv_role": "kv_producer",
        # Beside the states, so that every file is moved there and never copied.
        "kv_connector_extra_config": {"shared_storage_path": str(job.folder / "handed-over")},
    }
    return (
        *("--speculative-config", json.dumps(speculative)),
        *("--kv-transfer-config", json.dumps(transfer)),
        "--no-enable-prefix-caching",
    )


def states_command(job: GpuJob) -> Command:
    """Return the command that computes the states of every row; finished rows are skipped."""
    return (
        *(str(job.speculators), "generate-offline-data", "--endpoint", job.endpoint),
        *("--preprocessed-data", str(job.data), "--output", str(job.states)),
        *("--validate-outputs", "--fail-on-error"),
    )


def outline_command(job: GpuJob) -> Command:
    """Build the drafter untrained, which shows its draft layers and whether it can be built."""
    layers = [str(layer) for layer in range(job.design.layers)]
    return (
        *(str(job.speculators), "train", "--dry-run", *_design_arguments(job)),
        *("--num-layers", str(job.design.layers), "--full-attention-indices", *layers),
        *("--save-path", str(job.outline)),
    )


def write_draft_config(job: GpuJob) -> Path:
    """Take the draft layers of the outline, with the inner size of the design.

    speculators has no flag for it, and a file in place of the flags for everything else.
    """
    config: dict[str, Any] = json.loads((job.outline / "config.json").read_text())
    layers = config["transformer_layer_config"]
    layers["intermediate_size"] = job.design.intermediate_size
    write_atomically(job.draft_config, json.dumps(layers, indent=2).encode())
    return job.draft_config


def train_command(job: GpuJob) -> Command:
    """Return the training command; an interrupted run continues after its last epoch."""
    start = (
        ("--draft-config", str(job.draft_config))
        if job.from_drafter is None
        else ("--from-pretrained", str(job.from_drafter))
    )
    limit = () if job.steps is None else ("--max-steps", str(job.steps))
    return (
        *(*_launcher(job), *_design_arguments(job), *start),
        *("--data-path", str(job.data), "--hidden-states-path", str(job.states)),
        *("--on-missing", "raise", "--train-data-ratio", str(TRAINED_SHARE)),
        *_loss_arguments(job),
        *("--lr", str(job.learning_rate), "--epochs", str(job.epochs), *limit),
        *("--max-anchors", str(job.anchors), "--total-seq-len", str(job.sequence_length)),
        *("--save-path", str(job.checkpoints), "--log-dir", str(job.folder / "logs")),
    )


def find_drafter(job: GpuJob) -> Path:
    """Return the trained drafter with the lowest loss on the rows that were kept for it."""
    best = job.checkpoints / "checkpoint_best"
    if not best.is_dir():
        raise EngineError(
            f"speculators left no drafter with a finite loss in {job.checkpoints}",
            hint="train again with a lower learning rate",
        )
    return best.resolve()


def find_speculators(environment: Mapping[str, str]) -> Path:
    """Find the command: named by the user, or in the environment that Slipstream keeps for it."""
    folder = slipstream_cache(environment) / "environments" / f"speculators-{VERSION}"
    named = environment.get(VARIABLE)
    command = Path(named).expanduser() if named else folder / "bin" / "speculators"
    if os.access(command, os.X_OK) and command.is_file():
        return command
    steps = (
        (sys.executable, "-m", "venv", str(folder)),
        (str(folder / "bin" / "pip"), "install", f"speculators=={VERSION}"),
    )
    raise MissingPartError(
        f"there is no command {command}" + (f", as {VARIABLE} names it" if named else ""),
        hint=" && ".join(shlex.join(step) for step in steps),
    )


def run_command(command: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
    """Run a command with its output in the log; an interrupt ends all that it started."""
    try:
        with log.open("ab") as file:
            child = subprocess.Popen(
                command,
                # Its processes import nothing from the working directory.
                env={**environment, "PYTHONSAFEPATH": "1"},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
    except OSError as fault:
        raise MissingPartError(
            f"cannot run {command[0]}: {fault.strerror}", hint=f"set {VARIABLE} to the command"
        ) from fault
    try:
        code = child.wait()
    except BaseException:
        _end_group(child)
        raise
    if code != 0:
        raise EngineError(
            f"{shlex.join(command[:2])} ended with {code}",
            details=_read_tail(log),
            hint=f"less +G {shlex.quote(str(log))}",
        )


def _launcher(job: GpuJob) -> Command:
    if job.gpus == 1:
        return (str(job.speculators), "train")
    torchrun = str(job.speculators.with_name("torchrun"))
    many = ("--standalone", "--nproc-per-node", str(job.gpus))
    return (torchrun, *many, "-m", "speculators.train")


def _loss_arguments(job: GpuJob) -> Command:
    """Return the loss arguments; other methods keep their authors' loss."""
    if job.design.method != "dflash":
        return ()
    return ("--loss-fn", "ce", "--per-position-loss-weight", "dpace")


def _design_arguments(job: GpuJob) -> Command:
    """Return what the drafter is; with `--from-pretrained` this only goes on record."""
    ids = [str(layer) for layer in job.design.target_layer_ids]
    common = (
        *("--speculator-type", job.design.method, "--verifier-name-or-path", job.target),
        *("--target-layer-ids", *ids, "--seed", str(job.seed)),
    )
    if job.design.method == "eagle3":
        return (*common, "--ttt-steps", str(job.design.draft_tokens))
    return (
        *common,
        *("--block-size", str(job.design.block_size)),
        *("--mask-token-id", str(job.design.mask_token_id), "--sliding-window-non-causal"),
    )


def _end_group(child: subprocess.Popen[bytes]) -> None:
    """Ask the command's group to end, and kill it after a while or a second interrupt."""
    try:
        with suppress(ProcessLookupError, subprocess.TimeoutExpired):
            os.killpg(child.pid, signal.SIGTERM)
            child.wait(PATIENCE_SECONDS)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def _read_tail(log: Path) -> tuple[str, ...]:
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - TAIL_BYTES))
        lines = file.read().decode(errors="replace").splitlines()
    return tuple(line.rstrip() for line in lines if line.strip())[-TAIL_LINES:]
