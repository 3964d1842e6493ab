"""The commands of the GPU lane say what the design says, and end when they are told to."""

import json
import os
import shlex
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from slipstream.errors import EngineError, InvalidInputError, MissingPartError
from slipstream.training import gpu_lane
from slipstream.training.gpu_lane import (
    Command,
    GpuJob,
    count_epochs,
    extraction_arguments,
    find_drafter,
    find_speculators,
    outline_command,
    prepare_command,
    run_command,
    states_command,
    train_command,
    write_draft_config,
    write_training_data,
)
from slipstream.training.settings import DrafterDesign, Method

DESIGN = DrafterDesign(
    layers=3, intermediate_size=1024, block_size=8, target_layer_ids=(2, 9, 28), mask_token_id=5
)


@pytest.fixture
def job(tmp_path: Path) -> GpuJob:
    return GpuJob(
        target="owner/target",
        responses=tmp_path / "responses.jsonl",
        folder=tmp_path / "run",
        design=DESIGN,
        epochs=6,
        learning_rate=6e-4,
        anchors=512,
        sequence_length=3072,
        endpoint="http://127.0.0.1:8000/v1",
        seed=7,
        speculators=Path("/there/bin/speculators"),
    )


def values_of(command: Sequence[str], flag: str) -> list[str]:
    """Return what follows a flag that stands there once, up to the next flag."""
    assert command.count(flag) == 1, f"{flag} in {shlex.join(command)}"
    values: list[str] = []
    for word in command[command.index(flag) + 1 :]:
        if word.startswith("--"):
            break
        values.append(word)
    return values


def answer(job: GpuJob, *names: str) -> None:
    rows = [
        {"id": name, "prompt_ids": [1, 2], "response_ids": [3, 4, at], "finish_reason": "stop"}
        for at, name in enumerate(names, 10)
    ]
    job.responses.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_only_the_chosen_responses_become_rows_and_only_their_responses_count(job: GpuJob) -> None:
    answer(job, "a", "b", "c")
    written = write_training_data(job, {"a", "c"}).read_text()
    rows = [json.loads(line) for line in written.splitlines()]
    assert rows == [
        {"input_ids": [1, 2, 3, 4, 10], "loss_mask": [0, 0, 1, 1, 1]},
        {"input_ids": [1, 2, 3, 4, 12], "loss_mask": [0, 0, 1, 1, 1]},
    ]
    assert len(write_training_data(job).read_text().splitlines()) == 3


def test_too_few_responses_are_refused_and_leave_no_rows(job: GpuJob) -> None:
    answer(job, "a", "b")
    with pytest.raises(InvalidInputError, match="holds 1 responses to train on, and 2 are needed"):
        write_training_data(job, {"b"})
    assert not job.rows.exists()


@pytest.mark.parametrize(
    ("steps", "gpus", "epochs"), [(1, 1, 1), (9, 1, 1), (10, 1, 2), (100, 1, 12), (100, 4, 50)]
)
def test_there_are_epochs_enough_for_every_step(
    job: GpuJob, steps: int, gpus: int, epochs: int
) -> None:
    """Ten rows fill one step each, and one in ten is kept aside."""
    job.folder.mkdir()
    row = json.dumps({"input_ids": [1] * 5000, "loss_mask": [1] * 5000})
    job.rows.write_text(f"{row}\n" * 10)
    assert count_epochs(replace(job, gpus=gpus), steps) == epochs


@pytest.mark.parametrize("method", ["dflash2", "dspark"])
def test_kin_of_dflash_is_trained_with_its_own_loss(job: GpuJob, method: Method) -> None:
    own = replace(job, design=DESIGN.model_copy(update={"method": method}))
    for command in (outline_command(own), train_command(own)):
        assert values_of(command, "--speculator-type") == [method]
        assert values_of(command, "--block-size") == ["8"]
        assert "--loss-fn" not in command
        assert "--per-position-loss-weight" not in command


def test_an_eagle3_head_is_trained_as_deep_as_it_drafts(job: GpuJob) -> None:
    design = DESIGN.model_copy(update={"method": "eagle3", "layers": 1, "mask_token_id": None})
    command = train_command(replace(job, design=design))
    assert values_of(command, "--speculator-type") == ["eagle3"]
    assert values_of(command, "--ttt-steps") == ["7"]
    assert {"--mask-token-id", "--block-size", "--loss-fn"}.isdisjoint(command)


def test_rows_are_prepared_anew_and_cut_to_length(job: GpuJob) -> None:
    command = prepare_command(job)
    assert command[:2] == ("/there/bin/speculators", "prepare-data")
    assert "--overwrite" in command
    assert values_of(command, "--model") == ["owner/target"]
    assert values_of(command, "--data") == [str(job.rows)]
    assert values_of(command, "--seq-length") == ["3072"]
    assert values_of(command, "--seed") == ["7"]


def test_the_server_hands_out_the_states_of_the_design_and_the_last_one(job: GpuJob) -> None:
    arguments = extraction_arguments(job, target_layers=30)
    (speculative,) = values_of(arguments, "--speculative-config")
    (transfer,) = values_of(arguments, "--kv-transfer-config")
    assert json.loads(speculative) == {
        "method": "extract_hidden_states",
        "num_speculative_tokens": 1,
        "draft_model_config": {"hf_config": {"eagle_aux_hidden_state_layer_ids": [2, 9, 28, 30]}},
    }
    assert json.loads(transfer)["kv_connector"] == "ExampleHiddenStatesConnector"
    assert "--no-enable-prefix-caching" in arguments


def test_states_are_written_where_training_reads_them_and_not_among_the_rows(job: GpuJob) -> None:
    states, training = states_command(job), train_command(job)
    assert states[:2] == ("/there/bin/speculators", "generate-offline-data")
    assert values_of(states, "--endpoint") == ["http://127.0.0.1:8000/v1"]
    assert values_of(states, "--output") == values_of(training, "--hidden-states-path")
    prepared = values_of(prepare_command(job), "--output")
    assert prepared == values_of(states, "--preprocessed-data")
    assert prepared == values_of(training, "--data-path")
    assert not Path(values_of(states, "--output")[0]).is_relative_to(prepared[0])
    assert values_of(training, "--on-missing") == ["raise"]


def test_every_draft_layer_has_full_attention(job: GpuJob) -> None:
    command = outline_command(job)
    assert "--dry-run" in command
    assert values_of(command, "--num-layers") == ["3"]
    assert values_of(command, "--full-attention-indices") == ["0", "1", "2"]


def test_the_draft_layers_are_those_of_the_outline_with_the_inner_size_of_the_design(
    job: GpuJob,
) -> None:
    job.outline.mkdir(parents=True)
    layers = {"model_type": "qwen3", "hidden_size": 64, "intermediate_size": 128}
    config = {"block_size": 8, "transformer_layer_config": layers}
    (job.outline / "config.json").write_text(json.dumps(config))
    assert json.loads(write_draft_config(job).read_text()) == layers | {"intermediate_size": 1024}


@pytest.mark.parametrize("render", [outline_command, train_command])
def test_nothing_of_the_design_is_left_to_speculators(
    job: GpuJob, render: Callable[[GpuJob], Command]
) -> None:
    words = render(job)
    assert values_of(words, "--speculator-type") == ["dflash"]
    assert values_of(words, "--target-layer-ids") == ["2", "9", "28"]
    assert values_of(words, "--block-size") == ["8"]
    assert values_of(words, "--mask-token-id") == ["5"]
    assert values_of(words, "--sliding-window-non-causal") == []


def test_training_weighs_positions_by_dpace_and_follows_the_job(job: GpuJob) -> None:
    command = train_command(job)
    assert command[:2] == ("/there/bin/speculators", "train")
    assert values_of(command, "--loss-fn") == ["ce"]
    assert values_of(command, "--per-position-loss-weight") == ["dpace"]
    assert values_of(command, "--lr") == ["0.0006"]
    assert values_of(command, "--epochs") == ["6"]
    assert values_of(command, "--max-anchors") == ["512"]
    assert values_of(command, "--total-seq-len") == ["3072"]
    assert values_of(command, "--draft-config") == [str(job.draft_config)]
    assert "--max-steps" not in command
    assert values_of(train_command(replace(job, steps=40)), "--max-steps") == ["40"]


def test_a_warm_start_takes_the_place_of_every_other_description_of_the_layers(job: GpuJob) -> None:
    command = train_command(replace(job, from_drafter=Path("/there/drafter")))
    assert values_of(command, "--from-pretrained") == ["/there/drafter"]
    excluded = {"--draft-config", "--num-layers", "--full-attention-indices", "--sliding-window"}
    assert excluded.isdisjoint(command)


def test_several_gpus_are_trained_on_by_the_torchrun_beside_speculators(job: GpuJob) -> None:
    alone, together = train_command(job), train_command(replace(job, gpus=4))
    launcher = "/there/bin/torchrun --standalone --nproc-per-node 4 -m speculators.train"
    assert shlex.join(together[:6]) == launcher
    assert together[6:] == alone[2:]


def test_the_best_drafter_is_found_behind_its_link(job: GpuJob) -> None:
    with pytest.raises(EngineError, match="left no drafter"):
        find_drafter(job)
    (job.checkpoints / "3").mkdir(parents=True)
    (job.checkpoints / "checkpoint_best").symlink_to("3")
    assert find_drafter(job) == (job.checkpoints / "3").resolve()


def put_command(path: Path) -> Path:
    path.parent.mkdir(parents=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def test_the_command_that_the_user_names_beats_the_one_in_the_cache(tmp_path: Path) -> None:
    environment = {"SLIPSTREAM_CACHE": str(tmp_path)}
    kept = put_command(tmp_path / "environments" / "speculators-0.9.0" / "bin" / "speculators")
    assert find_speculators(environment) == kept
    named = put_command(tmp_path / "mine" / "speculators")
    assert find_speculators(environment | {"SLIPSTREAM_SPECULATORS": str(named)}) == named


def test_without_speculators_the_hint_makes_its_environment(tmp_path: Path) -> None:
    cache = tmp_path / "my cache"
    with pytest.raises(MissingPartError) as caught:
        find_speculators({"SLIPSTREAM_CACHE": str(cache)})
    folder = f"'{cache}/environments/speculators-0.9.0"
    assert caught.value.hint == (
        f"{sys.executable} -m venv {folder}' && {folder}/bin/pip' install speculators==0.9.0"
    )


def test_a_named_command_that_is_not_there_is_named_in_the_error(tmp_path: Path) -> None:
    with pytest.raises(MissingPartError, match="no command /nowhere, as SLIPSTREAM_SPECULATORS"):
        find_speculators({"SLIPSTREAM_SPECULATORS": "/nowhere", "HOME": str(tmp_path)})


def test_what_a_command_says_is_added_to_the_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    for word in ("one", "two"):
        run_command(("sh", "-c", 'echo "$WORD"; echo aside >&2'), log, {"WORD": word})
    assert log.read_text() == "one\naside\ntwo\naside\n"


def test_a_command_that_fails_shows_its_last_words(tmp_path: Path) -> None:
    log = tmp_path / "log"
    script = "for number in $(seq 3000); do echo line $number; done; echo; exit 3"
    with pytest.raises(EngineError, match="sh -c ended with 3") as caught:
        run_command(("sh", "-c", script), log, os.environ)
    assert caught.value.details == tuple(f"line {number}" for number in range(2989, 3001))
    assert caught.value.hint == f"less +G {log}"


def test_a_command_that_is_not_there_is_a_missing_part(tmp_path: Path) -> None:
    with pytest.raises(MissingPartError, match="cannot run /nowhere/speculators: No such file"):
        run_command(("/nowhere/speculators", "train"), tmp_path / "log", {})


def interrupt_once_there(path: Path) -> None:
    """Send this process what Ctrl-C sends, as soon as a file is there."""

    def wait_and_send() -> None:
        while not path.exists() or not path.read_text().endswith("\n"):
            time.sleep(0.02)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    threading.Thread(target=wait_and_send, daemon=True).start()


def is_running(process: int) -> bool:
    """Return whether a process runs; one that nobody collected yet has ended."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


@pytest.mark.parametrize("trap", ["", "trap '' TERM; "])
def test_an_interrupt_ends_the_command_and_its_children_even_if_they_ignore_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trap: str
) -> None:
    monkeypatch.setattr(gpu_lane, "PATIENCE_SECONDS", 0.3)
    pids = tmp_path / "pids"
    script = f"{trap}sleep 60 & echo $$ $! > {pids}; wait; sleep 60"
    interrupt_once_there(pids)
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run_command(("sh", "-c", script), tmp_path / "log", os.environ)
    assert time.monotonic() - started < 50
    deadline = time.monotonic() + 30
    processes = [int(word) for word in pids.read_text().split()]
    while any(map(is_running, processes)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert [is_running(process) for process in processes] == [False, False]
