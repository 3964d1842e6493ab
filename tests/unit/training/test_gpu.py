"""The GPU lane asks speculators for what the design says, and takes the best that it leaves.

That speculators and vLLM take these commands is tested with their own parsers, in tests/engine.
"""

import json
import os
import signal
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from slipstream.errors import EngineError, InvalidInputError, MissingPartError
from slipstream.hardware import load_host
from slipstream.training import gpu
from slipstream.training.gpu import (
    Command,
    GpuJob,
    Step,
    count_epochs,
    export_drafter,
    extraction_arguments,
    find_speculators,
    make_command,
    make_job,
    run_command,
    train_drafter,
    write_draft_config,
    write_training_data,
)
from slipstream.training.run import Schedule
from slipstream.training.workspace import Workspace
from tests.unit.training.pieces import DESIGN, RUN, open_workspace

STEPS: tuple[Step, ...] = ("outline", "train")


@pytest.fixture
def job(tmp_path: Path) -> GpuJob:
    return GpuJob(
        target="owner/target",
        folder=tmp_path / "run",
        design=DESIGN,
        schedule=Schedule(steps=40, learning_rate=6e-4, rows=2, anchors=256, seed=7),
        epochs=6,
        sequence_length=3072,
        speculators=Path("/there/bin/speculators"),
    )


def read_options(job: GpuJob, step: Step) -> dict[str, list[str]]:
    """Return the values of every option of a command, each of which stands there once."""
    options: dict[str, list[str]] = {}
    for word in make_command(job, step)[2:]:
        if word.startswith("--"):
            assert word not in options
            options[word] = []
        else:
            options[list(options)[-1]].append(word)
    return options


def test_design_and_schedule_are_given_and_nothing_is_left_to_speculators(job: GpuJob) -> None:
    outline, train = (" ".join((*make_command(job, step), "")) for step in STEPS)
    design = ["--speculator-type dflash ", "--target-layer-ids 2 9 15 21 28 ", "--block-size 4 "]
    design += ["--mask-token-id 3 ", "--sliding-window-non-causal --"]
    assert [words for words in design if words not in outline or words not in train] == []
    assert "--full-attention-indices 0 1 2 " in outline
    schedule = ["--loss-fn ce ", "--per-position-loss-weight dpace ", "--lr 0.0006 "]
    schedule += ["--max-steps 40 ", "--epochs 6 ", "--seed 7 "]
    schedule += ["--max-anchors 512 ", "--total-seq-len 3072 "]
    assert [words for words in schedule if words not in train] == []
    assert ("--dry-run" in outline, "--dry-run" in train) == (True, False)


def test_every_step_reads_what_the_one_before_it_wrote(job: GpuJob) -> None:
    steps: tuple[Step, ...] = ("prepare-data", "generate-offline-data", "train")
    prepare, states, train = (read_options(job, step) for step in steps)
    assert prepare["--data"] == [str(job.rows)]
    assert prepare["--output"] == states["--preprocessed-data"] == train["--data-path"]
    assert states["--output"] == train["--hidden-states-path"] == [str(job.states)]
    assert not job.states.is_relative_to(prepare["--output"][0])
    assert train["--on-missing"] == ["raise"]
    assert prepare["--seq-length"] == train["--total-seq-len"]


@pytest.mark.parametrize("method", ["dflash2", "dspark", "eagle3"])
def test_other_methods_keep_their_own_loss(job: GpuJob, method: str) -> None:
    changes = {"layers": 1, "mask_token_id": None} if method == "eagle3" else {}
    design = DESIGN.model_copy(update={"method": method, **changes})
    options = read_options(replace(job, design=design), "train")
    assert options["--speculator-type"] == [method]
    assert options.keys().isdisjoint({"--loss-fn", "--per-position-loss-weight"})
    block = {"--block-size", "--mask-token-id", "--sliding-window-non-causal"}
    assert (block & options.keys() == set()) is (method == "eagle3")
    assert options.get("--ttt-steps") == (["3"] if method == "eagle3" else None)


def test_a_warm_start_describes_no_layers_and_several_gpus_take_torchrun(job: GpuJob) -> None:
    alone = make_command(job, "train")
    assert "--from-pretrained" not in alone
    options = read_options(replace(job, start=Path("/there/drafter")), "train")
    assert options["--from-pretrained"] == ["/there/drafter"]
    assert options.keys().isdisjoint({"--draft-config", "--num-layers", "--full-attention-indices"})
    together = make_command(replace(job, gpus=4), "train")
    launcher = "/there/bin/torchrun --standalone --nproc-per-node 4 -m speculators.train"
    assert together == (*launcher.split(), *alone[2:])
    assert make_command(replace(job, gpus=4), "outline") == make_command(job, "outline")


def test_the_server_hands_out_the_states_of_the_design_and_the_last_one(job: GpuJob) -> None:
    _, speculative, _, transfer, *rest = extraction_arguments(job, target_layers=30)
    config = json.loads(speculative)["draft_model_config"]["hf_config"]
    assert config == {"eagle_aux_hidden_state_layer_ids": [2, 9, 15, 21, 28, 30]}
    assert json.loads(transfer)["kv_connector"] == "ExampleHiddenStatesConnector"
    assert rest == ["--no-enable-prefix-caching"]


def test_only_responses_of_training_become_rows(job: GpuJob, tmp_path: Path) -> None:
    responses = tmp_path / "responses.jsonl"
    rows = [
        {"id": name, "prompt_ids": [1, 2], "response_ids": [3, at], "finish_reason": "stop"}
        for at, name in enumerate("abc", 10)
    ]
    responses.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(InvalidInputError, match="holds 1 responses to train on, and 2 are needed"):
        write_training_data(job, responses, {"b"})
    assert not job.rows.exists()
    write_training_data(job, responses, {"a", "c"})
    assert [json.loads(line) for line in job.rows.read_text().splitlines()] == [
        {"input_ids": [1, 2, 3, 10], "loss_mask": [0, 0, 1, 1]},
        {"input_ids": [1, 2, 3, 12], "loss_mask": [0, 0, 1, 1]},
    ]


@pytest.mark.parametrize(
    ("steps", "gpus", "epochs"), [(1, 1, 1), (9, 1, 1), (10, 1, 2), (100, 1, 12), (100, 4, 50)]
)
def test_there_are_epochs_enough_for_every_step(
    job: GpuJob, steps: int, gpus: int, epochs: int
) -> None:
    """Ten rows fill one step each, and one in ten is kept aside."""
    job.folder.mkdir()
    job.rows.write_text(json.dumps({"input_ids": [1] * 5000}) + "\n")
    job.rows.write_text(job.rows.read_text() * 10)
    schedule = job.schedule.model_copy(update={"steps": steps})
    assert count_epochs(replace(job, gpus=gpus, schedule=schedule)) == epochs


def test_the_draft_layers_are_those_of_the_outline_with_the_inner_size_of_the_design(
    job: GpuJob,
) -> None:
    (job.folder / "outline").mkdir(parents=True)
    layers = {"model_type": "qwen3", "hidden_size": 64, "intermediate_size": 128}
    config = {"block_size": 8, "transformer_layer_config": layers}
    (job.folder / "outline" / "config.json").write_text(json.dumps(config))
    write_draft_config(job)
    (written,) = read_options(job, "train")["--draft-config"]
    expected = layers | {"intermediate_size": DESIGN.intermediate_size}
    assert json.loads(Path(written).read_text()) == expected


def leave_checkpoint(job: GpuJob, weights: bytes = b"weights") -> None:
    """Leave what speculators does after its best epoch, with the state of its optimizer."""
    folder = job.folder / "checkpoints" / "3"
    verifier = {"name_or_path": "/home/me/models/target", "architectures": ["A"]}
    config = {"block_size": 4, "speculators_config": {"algorithm": "dflash", "verifier": verifier}}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(weights)
    (folder / "optimizer_state_dict.pt").write_bytes(b"large")
    best = folder.with_name("checkpoint_best")
    best.unlink(missing_ok=True)
    best.symlink_to("3")


def test_only_what_the_engine_loads_is_exported_under_the_targets_name(
    job: GpuJob, tmp_path: Path
) -> None:
    folder = tmp_path / "drafter"
    with pytest.raises(EngineError, match="left no drafter"):
        export_drafter(job, folder, "Qwen/Qwen3-8B")
    for weights in (b"weights", b"better"):
        leave_checkpoint(job, weights)
        export_drafter(job, folder, "Qwen/Qwen3-8B")
        assert {file.name for file in folder.iterdir()} == {"config.json", "model.safetensors"}
        assert (folder / "model.safetensors").read_bytes() == weights
    config = json.loads((folder / "config.json").read_text())
    verifier = {"name_or_path": "Qwen/Qwen3-8B", "architectures": ["A"]}
    assert config["speculators_config"] == {"algorithm": "dflash", "verifier": verifier}


def put_command(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def test_the_command_that_the_user_names_beats_the_one_in_the_cache(tmp_path: Path) -> None:
    environment = {"SLIPSTREAM_CACHE": str(tmp_path / "my cache")}
    with pytest.raises(MissingPartError) as caught:
        find_speculators(environment)
    folder = f"'{tmp_path}/my cache/environments/speculators-0.9.0"
    assert caught.value.hint == (
        f"{sys.executable} -m venv {folder}' && {folder}/bin/pip' install speculators==0.9.0"
    )
    kept = put_command(Path(f"{folder[1:]}/bin/speculators"))
    assert find_speculators(environment) == kept
    named = put_command(tmp_path / "mine" / "speculators")
    assert find_speculators(environment | {"SLIPSTREAM_SPECULATORS": str(named)}) == named
    with pytest.raises(MissingPartError, match="/nowhere is not installed, as SLIPSTREAM_SPEC"):
        find_speculators(environment | {"SLIPSTREAM_SPECULATORS": "/nowhere"})


@pytest.fixture
def space(tmp_path: Path) -> Workspace:
    """Open a workspace on a machine with three GPUs, where speculators is."""
    host = load_host("h100")
    command = put_command(tmp_path / "speculators")
    return replace(
        open_workspace(tmp_path / "run"),
        host=host.model_copy(update={"accelerators": host.accelerators * 3}),
        target_folder=tmp_path / "snapshots" / "0a1b2c",
        environment={"SLIPSTREAM_SPECULATORS": str(command)},
    )


@pytest.mark.parametrize("warm", [False, True])
def test_training_leaves_the_best_drafter_for_the_engine(
    warm: bool, space: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "convert_drafter", lambda *_: Path("converted"))
    space = replace(space, start_folder=tmp_path if warm else None)
    job = make_job(RUN, space)
    assert (job.gpus, job.design, job.start) == (3, DESIGN, Path("converted") if warm else None)
    job.folder.mkdir(parents=True)
    job.rows.write_text('{"input_ids": [1, 2, 3]}\n')
    done: list[Command] = []

    def run(command: Command, *_: object) -> None:
        done.append(command)
        if "--dry-run" in command:
            (job.folder / "outline").mkdir()
            (job.folder / "outline" / "config.json").write_text('{"transformer_layer_config": {}}')
        else:
            leave_checkpoint(job)

    monkeypatch.setattr(gpu, "run_command", run)
    _, figures = train_drafter(RUN, space)
    assert figures == {"steps": RUN.settings.schedule.steps}
    assert ["--dry-run" in command for command in done] == ([False] if warm else [True, False])
    # Three tokens are less than a step, so every step is an epoch of its own.
    assert done[-1][done[-1].index("--epochs") + 1] == "100"
    config = json.loads((space.folder.drafter / "config.json").read_text())
    assert config["speculators_config"]["verifier"]["name_or_path"] == "Qwen/Qwen3-8B"


def test_a_commands_output_is_added_to_the_log_and_its_failure_quoted(tmp_path: Path) -> None:
    log = tmp_path / "log"
    for word in ("one", "two"):
        run_command(("sh", "-c", 'echo "$WORD"; echo aside >&2'), log, os.environ | {"WORD": word})
    assert log.read_text() == "one\naside\ntwo\naside\n"
    with pytest.raises(EngineError, match="sh -c ended with exit code 3") as caught:
        run_command(("sh", "-c", "echo ValueError: no data; exit 3"), log, os.environ)
    assert caught.value.details == ("ValueError: no data",)
    with pytest.raises(EngineError, match="ended with") as caught:
        run_command(("/nowhere/torchrun", "train"), log, os.environ)
    assert "/nowhere/torchrun" in caught.value.details[-1]


def interrupt_once_there(path: Path) -> None:
    """Send this process what Ctrl-C sends, as soon as a file is there."""

    def wait_and_send() -> None:
        while not path.exists() or not path.read_text().endswith("\n"):
            time.sleep(0.02)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    threading.Thread(target=wait_and_send, daemon=True).start()


@pytest.mark.parametrize("trap", ["", "trap '' TERM; "])
def test_an_interrupt_ends_the_command_and_its_children_even_if_they_ignore_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trap: str
) -> None:
    monkeypatch.setattr(gpu, "PATIENCE_SECONDS", 0.3)
    pids = tmp_path / "pids"
    script = f"{trap}sleep 60 & echo $$ $! > {pids}; wait; sleep 60"
    interrupt_once_there(pids)
    with pytest.raises(KeyboardInterrupt):
        run_command(("sh", "-c", script), tmp_path / "log", os.environ)
    deadline = time.monotonic() + 30
    left = [Path(f"/proc/{pid}") for pid in pids.read_text().split()]
    while any(process.exists() for process in left) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert [process for process in left if process.exists()] == []
