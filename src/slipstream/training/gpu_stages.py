"""States and training on a machine with a GPU, by stock vLLM and speculators' own command.

None of this has run on a GPU yet: the commands were tried on a CPU as far as they go there.
"""

import json
import shutil
from dataclasses import replace
from pathlib import Path

from slipstream.atomic_files import write_atomically
from slipstream.serving.supervision.engine_process import choose_port, run_engine
from slipstream.training import gpu_lane
from slipstream.training.prompts import read_conversations
from slipstream.training.run import TrainRun
from slipstream.training.warm_start import convert_drafter
from slipstream.training.workshop import Figures, Workshop, plan_engine

AT_ONCE = 32
SEQUENCE_LENGTH = 4096


def extract_states(run: TrainRun, shop: Workshop) -> tuple[TrainRun, Figures]:
    """Extract the target's hidden states of every training response with vLLM."""
    port = choose_port(None)
    job = make_job(run, shop, endpoint=f"http://127.0.0.1:{port}/v1")
    conversations = read_conversations(shop.folder.prompts)
    trained = {row.id for row in conversations if not row.held_out}
    gpu_lane.write_training_data(job, trained)
    _run(shop, gpu_lane.prepare_command(job))
    plan = plan_engine(
        run.settings,
        shop,
        conversations,
        drafter=None,
        users=AT_ONCE,
        raw=gpu_lane.extraction_arguments(job, shop.target.layer_count or 0),
    )
    with run_engine(plan, log=shop.folder.engine_log, environment=shop.environment, port=port):
        _run(shop, gpu_lane.states_command(job))
    size = sum(file.stat().st_size for file in job.states.rglob("*") if file.is_file())
    return run, {"responses": len(trained), "bytes": size}


def train_drafter(run: TrainRun, shop: Workshop) -> tuple[TrainRun, Figures]:
    """Train with speculators, and take the drafter with the lowest loss."""
    job = make_job(run, shop, endpoint="")
    job = replace(job, epochs=gpu_lane.count_epochs(job, run.settings.schedule.steps))
    if job.from_drafter is None:
        _run(shop, gpu_lane.outline_command(job))
        gpu_lane.write_draft_config(job)
    _run(shop, gpu_lane.train_command(job))
    export_drafter(gpu_lane.find_drafter(job), shop.folder.drafter, shop.target_name)
    return run, {"steps": run.settings.schedule.steps}


def export_drafter(trained: Path, folder: Path, verifier: str) -> None:
    """Copy the files that vLLM loads, with the target's public name."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in trained.glob("*.safetensors"):
        shutil.copy2(file, folder)
    config = json.loads((trained / "config.json").read_text())
    config["speculators_config"]["verifier"]["name_or_path"] = verifier
    write_atomically(folder / "config.json", json.dumps(config, indent=2).encode())


def make_job(run: TrainRun, shop: Workshop, *, endpoint: str) -> gpu_lane.GpuJob:
    """Return a run's settings in the form that speculators takes."""
    settings, schedule = run.settings, run.settings.schedule
    target = shop.target_folder
    start = None
    if shop.start_folder is not None:
        start = convert_drafter(shop.start_folder, target, shop.folder.path / "from")
    return gpu_lane.GpuJob(
        target=str(target),
        responses=shop.folder.responses,
        folder=shop.folder.path / "speculators",
        design=settings.design,
        epochs=1,
        steps=schedule.steps,
        learning_rate=schedule.learning_rate,
        anchors=schedule.rows * schedule.anchors,
        sequence_length=SEQUENCE_LENGTH,
        endpoint=endpoint,
        gpus=len(shop.host.accelerators),
        seed=schedule.seed,
        from_drafter=start,
        speculators=gpu_lane.find_speculators(shop.environment),
    )


def _run(shop: Workshop, command: gpu_lane.Command) -> None:
    shop.report(" ".join(command[:2]))
    gpu_lane.run_command(command, shop.folder.path / "speculators.log", shop.environment)
