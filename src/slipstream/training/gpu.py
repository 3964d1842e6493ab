"""States and training on a GPU: stock vLLM and speculators' command, each a process of its own.

speculators has its own environment, since its pins and vLLM's overlap today and may not
tomorrow. Two of its defaults are never left to it: draft layers that slide over 2048 tokens,
and a drafter that is not called non-causal, which vLLM 0.32 serves causal even where it was
trained in both directions (https://github.com/vllm-project/vllm/pull/56692).

None of this has run on a GPU yet: the commands were tried on a CPU as far as they go there.
"""

import json
import math
import os
import shlex
import shutil
import sys
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from slipstream.atomic_files import write_atomically
from slipstream.errors import EngineError, InvalidInputError, MissingPartError
from slipstream.serving.supervision.engine_process import (
    choose_port,
    end_group,
    name_end,
    read_reasons,
    run_engine,
    start_group,
)
from slipstream.training.prompts import read_conversations
from slipstream.training.responses import read_responses
from slipstream.training.run import DrafterDesign, Figures, Schedule, TrainRun
from slipstream.training.warm_start import convert_drafter
from slipstream.training.workspace import Workspace
from slipstream.user_folders import slipstream_cache

VERSION = "0.9.0"
VARIABLE = "SLIPSTREAM_SPECULATORS"
CONCURRENT_REQUESTS = 32
SEQUENCE_LENGTH = 4096
FEWEST_ROWS = 2  # one to train on, one to validate with
TRAINED_SHARE = 0.9
# speculators gives itself 120 s to save a checkpoint once it is told to end.
PATIENCE_SECONDS = 130

Command = tuple[str, ...]
Options = dict[str, object]
Step = Literal["prepare-data", "generate-offline-data", "outline", "train"]


@dataclass(frozen=True, slots=True)
class GpuJob:
    """What speculators is to do, on what, and in which folder; `endpoint` ends in /v1.

    The schedule's steps end an epoch early, and speculators still takes one step in each that is
    left, so `epochs` should be what `count_epochs` says.
    """

    target: str
    folder: Path
    design: DrafterDesign
    schedule: Schedule
    endpoint: str = ""
    epochs: int = 1
    gpus: int = 1
    sequence_length: int = SEQUENCE_LENGTH
    start: Path | None = None
    speculators: Path = Path("speculators")

    @property
    def rows(self) -> Path:
        return self.folder / "rows.jsonl"

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def states(self) -> Path:
        """Return the folder of the hidden states; `prepare-data` wants none inside its own."""
        return self.folder / "states"


def extract_states(run: TrainRun, space: Workspace) -> tuple[TrainRun, Figures]:
    """Extract the target's hidden states of every training response with vLLM."""
    port = choose_port(None)
    job = replace(make_job(run, space), endpoint=f"http://127.0.0.1:{port}/v1")
    conversations = read_conversations(space.folder.prompts)
    trained = {row.id for row in conversations if not row.held_out}
    write_training_data(job, space.folder.responses, trained)
    _run(space, make_command(job, "prepare-data"))
    raw = extraction_arguments(job, space.target.layer_count or 0)
    plan = space.plan_engine(
        run.settings, conversations, drafter=None, users=CONCURRENT_REQUESTS, raw=raw
    )
    with run_engine(plan, log=space.folder.engine_log, environment=space.environment, port=port):
        _run(space, make_command(job, "generate-offline-data"))
    size = sum(file.stat().st_size for file in job.states.rglob("*") if file.is_file())
    return run, {"responses": len(trained), "bytes": size}


def train_drafter(run: TrainRun, space: Workspace) -> tuple[TrainRun, Figures]:
    """Train with speculators, and take the drafter with the lowest loss."""
    job = make_job(run, space)
    job = replace(job, epochs=count_epochs(job))
    if job.start is None:
        _run(space, make_command(job, "outline"))
        write_draft_config(job)
    _run(space, make_command(job, "train"))
    export_drafter(job, space.folder.drafter, space.target_name)
    return run, {"steps": run.settings.schedule.steps}


def make_job(run: TrainRun, space: Workspace) -> GpuJob:
    start, target = space.start_folder, space.target_folder
    return GpuJob(
        target=str(target),
        folder=space.folder.path / "speculators",
        design=run.settings.design,
        schedule=run.settings.schedule,
        gpus=len(space.host.accelerators),
        start=start and convert_drafter(start, target, space.folder.path / "from"),
        speculators=find_speculators(space.environment),
    )


def make_command(job: GpuJob, step: Step) -> Command:
    """Return the command of a step; `train` goes on after the last epoch that was saved.

    The outline is the drafter untrained: it shows its layers and whether it can be built.
    """
    program: Command = (str(job.speculators), "train" if step == "outline" else step)
    if step == "train" and job.gpus > 1:
        many = ("--standalone", "--nproc-per-node", str(job.gpus))
        program = (str(job.speculators.with_name("torchrun")), *many, "-m", "speculators.train")
    return (*program, *_render(_list_options(job)[step]))


def _list_options(job: GpuJob) -> dict[Step, Options]:
    """Return the options of every step; None leaves one out, and True stands alone."""
    folder, design, schedule = job.folder, job.design, job.schedule
    # Other methods keep their authors' loss. speculators weighs by D-PACE only with plain
    # cross-entropy, and cannot start from the target's layers, as training on a CPU does.
    ours = design.method == "dflash"
    blocks = design.method != "eagle3"
    # With `--from-pretrained` this only goes on record.
    drafter: Options = {
        "--speculator-type": design.method,
        "--verifier-name-or-path": job.target,
        "--target-layer-ids": design.target_layer_ids,
        "--seed": schedule.seed,
        "--ttt-steps": None if blocks else design.draft_tokens,
        "--block-size": design.block_size if blocks else None,
        "--mask-token-id": design.mask_token_id,
        "--sliding-window-non-causal": True if blocks else None,
    }
    return {
        "prepare-data": {
            "--overwrite": True,
            "--model": job.target,
            "--data": job.rows,
            "--output": job.data,
            "--seq-length": job.sequence_length,
            "--seed": schedule.seed,
        },
        "generate-offline-data": {
            "--endpoint": job.endpoint,
            "--preprocessed-data": job.data,
            "--output": job.states,
            "--validate-outputs": True,
            "--fail-on-error": True,
        },
        "outline": drafter
        | {
            "--dry-run": True,
            "--num-layers": design.layers,
            "--full-attention-indices": tuple(range(design.layers)),
            "--save-path": folder / "outline",
        },
        "train": drafter
        | {
            "--draft-config": None if job.start else folder / "draft-layers.json",
            "--from-pretrained": job.start,
            "--data-path": job.data,
            "--hidden-states-path": job.states,
            "--on-missing": "raise",
            "--train-data-ratio": TRAINED_SHARE,
            "--loss-fn": "ce" if ours else None,
            "--per-position-loss-weight": "dpace" if ours else None,
            "--lr": schedule.learning_rate,
            "--epochs": job.epochs,
            "--max-steps": schedule.steps,
            "--max-anchors": schedule.rows * schedule.anchors,
            "--total-seq-len": job.sequence_length,
            "--save-path": folder / "checkpoints",
            "--log-dir": folder / "logs",
        },
    }


def _render(options: Options) -> Command:
    words: list[str] = []
    for name, value in options.items():
        if value is not None:
            values = value if isinstance(value, tuple) else () if value is True else (value,)
            words += [name, *map(str, values)]
    return tuple(words)


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


def write_training_data(job: GpuJob, responses: Path, ids: Container[str]) -> None:
    """Write these responses for `prepare-data`, which takes them without a server."""
    rows = [row for row in read_responses(responses) if row.id in ids]
    if len(rows) < FEWEST_ROWS:
        raise InvalidInputError(
            f"{responses} holds {len(rows)} responses to train on, and {FEWEST_ROWS} are needed",
            hint="add prompts",
        )
    job.folder.mkdir(parents=True, exist_ok=True)
    lines = [
        {
            "input_ids": (*row.prompt_ids, *row.response_ids),
            "loss_mask": [0] * len(row.prompt_ids) + [1] * len(row.response_ids),
        }
        for row in rows
    ]
    write_atomically(job.rows, "".join(f"{json.dumps(line)}\n" for line in lines).encode())


def count_epochs(job: GpuJob) -> int:
    """Count the passes over the rows in which all steps are sure to be taken."""
    with job.rows.open() as file:
        lengths = [len(json.loads(line)["input_ids"]) for line in file]
    tokens = sum(min(length, job.sequence_length) for length in lengths) * TRAINED_SHARE
    fewest = max(1, int(tokens / (job.sequence_length * job.gpus)))
    return math.ceil(job.schedule.steps / fewest)


def write_draft_config(job: GpuJob) -> None:
    """Take the draft layers of the outline, with the inner size of the design.

    speculators has no flag for it, and a file in place of the flags for everything else.
    """
    outline = json.loads((job.folder / "outline" / "config.json").read_text())
    layers = {
        **outline["transformer_layer_config"],
        "intermediate_size": job.design.intermediate_size,
    }
    write_atomically(job.folder / "draft-layers.json", json.dumps(layers, indent=2).encode())


def export_drafter(job: GpuJob, folder: Path, verifier: str) -> None:
    """Copy what vLLM loads of the drafter with the lowest loss, with the target's public name."""
    best = job.folder / "checkpoints" / "checkpoint_best"
    if not best.is_dir():
        raise EngineError(
            f"speculators left no drafter with a finite loss in {best.parent}",
            hint="train again with a lower learning rate",
        )
    folder.mkdir(parents=True, exist_ok=True)
    for file in best.glob("*.safetensors"):
        shutil.copy2(file, folder)
    config = json.loads((best / "config.json").read_text())
    config["speculators_config"]["verifier"]["name_or_path"] = verifier
    write_atomically(folder / "config.json", json.dumps(config, indent=2).encode())


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
        f"the command {command} is not installed" + (f", as {VARIABLE} names it" if named else ""),
        hint=" && ".join(shlex.join(step) for step in steps),
    )


def _run(space: Workspace, command: Command) -> None:
    space.report(" ".join(command[:2]))
    run_command(command, space.folder.path / "speculators.log", space.environment)


def run_command(command: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
    """Run a command with its output added to the log; whatever ends this ends all it started."""
    # Its processes import nothing from the working directory.
    process = start_group(command, {**environment, "PYTHONSAFEPATH": "1"}, log)
    try:
        code = process.wait()
    finally:
        end_group(process, grace_seconds=PATIENCE_SECONDS)
    if code != 0:
        raise EngineError(
            f"{shlex.join(command[:2])} {name_end(code)}",
            details=read_reasons(log),
            hint=f"less +G {shlex.quote(str(log))}",
        )
