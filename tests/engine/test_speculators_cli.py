"""speculators' real command line takes what the GPU lane renders, and its converter our drafters.

There is no GPU here, so its trainer is stopped where it has built and saved the drafter.
"""

import json
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slipstream.checkpoints import read_checkpoint
from slipstream.errors import InvalidInputError
from slipstream.training.gpu import (
    Command,
    GpuJob,
    extraction_arguments,
    make_command,
    run_command,
    write_draft_config,
    write_training_data,
)
from slipstream.training.run import DrafterDesign, Method, Schedule
from slipstream.training.warm_start import convert_drafter
from tests.engine.arms.launch import engine_environment, run_script
from tests.unit.measuring.client.test_completions import run_server
from tests.untrained_drafter import DrafterShape, make_untrained_drafter

pytestmark = [pytest.mark.engine, pytest.mark.beside]

SPECULATORS = Path(sys.executable).with_name("speculators")
ON_CPU = ("--draft-attn-impl", "sdpa", "--loss-implementation", "eager", "--num-workers", "0")
OTHERS: tuple[Method, ...] = ("dflash2", "dspark", "eagle3")
# One process for several commands: importing speculators takes most of a command's time.
RUN_ALL = (
    "import json, sys\n"
    "from speculators.__main__ import app\n"
    "for command in json.loads(sys.argv[1]):\n"
    "    app(command, standalone_mode=False)\n"
)


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    cache = str(tmp_path_factory.mktemp("datasets"))
    return engine_environment() | {"HF_DATASETS_CACHE": cache, "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def native(target: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    shape = DrafterShape(layers=2, block_size=4, target_layer_ids=(1, 14, 27))
    return make_untrained_drafter(target, tmp_path_factory.mktemp("drafters") / "native", shape)


@pytest.fixture(scope="module")
def converted(native: Path, target: Path) -> Path:
    return convert_drafter(native, target, native.with_name("converted"))


@pytest.fixture(scope="module")
def job(
    target: Path,
    converted: Path,
    environment: dict[str, str],
    tmp_path_factory: pytest.TempPathFactory,
) -> GpuJob:
    """Return a job of which all is done that can be before the training itself."""
    folder = tmp_path_factory.mktemp("job")
    job = GpuJob(
        target=str(target),
        folder=folder,
        design=DrafterDesign(
            layers=2,
            intermediate_size=640,
            block_size=4,
            target_layer_ids=(2, 15, 28),
            mask_token_id=3,
        ),
        schedule=Schedule(steps=3, learning_rate=6e-4, rows=2, anchors=4, seed=7),
        epochs=2,
        sequence_length=24,
        speculators=SPECULATORS,
    )
    rows: list[dict[str, Any]] = [
        {
            "id": str(row),
            "prompt_ids": [1, 4093, 198],
            "response_ids": list(range(100, 110 + 5 * row)),
            "finish_reason": "stop",
        }
        for row in range(4)
    ]
    responses = folder / "responses.jsonl"
    responses.write_text("".join(json.dumps(row) + "\n" for row in rows))
    write_training_data(job, responses, {row["id"] for row in rows})
    warm = (*make_command(start_from(job, converted), "train"), *ON_CPU, "--dry-run")
    with run_server(partial(hand_out_states, folder)) as server:
        job = replace(job, endpoint=f"{server.url}/v1")
        commands = [make_command(job, "prepare-data"), make_command(job, "generate-offline-data")]
        drafters = [job, *(draft_by(job, method) for method in OTHERS)]
        commands += [*(make_command(one, "outline") for one in drafters), warm]
        run_all(commands, folder / "log", environment)
    for one in drafters:
        write_draft_config(one)
    return job


def draft_by(job: GpuJob, method: Method) -> GpuJob:
    """Return the job for another method, in a folder of its own with the same data."""
    changes: dict[str, Any] = {"method": method}
    if method == "eagle3":
        changes |= {"layers": 1, "mask_token_id": None}
    design = job.design.model_copy(update=changes)
    return replace(job, folder=job.folder / method, design=design)


def hand_out_states(folder: Path, body: dict[str, Any]) -> tuple[int, Any]:
    """Answer as vLLM with the stock connector does, with states that are all zero."""
    from safetensors.numpy import save_file

    tokens = body["prompt"]
    states: dict[str, Any] = {
        "hidden_states": np.zeros((len(tokens), 4, 576), np.float32),
        "token_ids": np.array(tokens, np.int64),
    }
    path = folder / f"{len(tokens)}.safetensors"
    save_file(states, path)
    choice = {"index": 0, "text": "", "finish_reason": "length", "prompt_token_ids": tokens}
    return 200, {"choices": [choice], "kv_transfer_params": {"hidden_states_path": str(path)}}


def start_from(job: GpuJob, drafter: Path) -> GpuJob:
    return replace(job, folder=job.folder / "warm", start=drafter)


def run_all(commands: list[Command], log: Path, environment: dict[str, str]) -> None:
    words = json.dumps([command[1:] for command in commands])
    run_command((sys.executable, "-c", RUN_ALL, words), log, environment)


def read_config(folder: Path) -> Any:
    return json.loads((folder / "config.json").read_text())


def read_rows(job: GpuJob) -> list[dict[str, Any]]:
    from pyarrow import ipc  # type: ignore[import-untyped]

    with ipc.open_stream(job.data / "data-00000-of-00001.arrow") as stream:
        rows: list[dict[str, Any]] = stream.read_all().to_pylist()
    return rows


def test_rows_are_stored_with_their_masks_and_cut_to_length(job: GpuJob) -> None:
    prompt = [1, 4093, 198]
    assert sorted(read_rows(job), key=lambda row: int(row["seq_len"])) == [
        {
            "input_ids": prompt + list(range(100, 97 + length)),
            "loss_mask": [0] * 3 + [1] * (length - 3),
            "seq_len": length,
        }
        for length in (13, 18, 23, 24)
    ]


def test_every_row_gets_the_states_of_its_own_tokens(job: GpuJob) -> None:
    from safetensors.numpy import load_file

    stored = [load_file(job.states / f"hs_{row}.safetensors") for row in range(4)]
    assert [part["token_ids"].tolist() for part in stored] == [
        row["input_ids"] for row in read_rows(job)
    ]


def test_the_drafter_that_is_trained_is_the_one_of_the_design(
    job: GpuJob, environment: dict[str, str]
) -> None:
    jobs = (job, *(draft_by(job, method) for method in OTHERS))
    commands = [(*make_command(one, "train"), *ON_CPU, "--dry-run") for one in jobs]
    run_all(commands, job.folder / "log", environment)
    for one in jobs:
        trained = one.folder / "checkpoints"
        assert read_config(trained)["speculators_model_type"] == one.design.method
        drafter = read_checkpoint(str(trained), tokenizer=False)
        assert drafter.draft is not None
        assert drafter.draft.layer_outputs == (1, 14, 27)
        if one.design.method != "eagle3":
            assert drafter.draft.longest_draft == one.design.draft_tokens
    trained = job.folder / "checkpoints"
    config = read_config(trained)
    layers = config["transformer_layer_config"]
    assert config["aux_hidden_state_layer_ids"] == [2, 15, 28]
    assert (config["block_size"], config["mask_token_id"]) == (4, 3)
    assert config["sliding_window_non_causal"] is True
    assert config["draft_vocab_size"] == layers["vocab_size"] == 49152
    assert layers["layer_types"] == ["full_attention"] * 2
    assert layers["num_hidden_layers"] == 2
    assert layers["intermediate_size"] == 640
    assert (layers["hidden_size"], layers["rope_parameters"]["rope_theta"]) == (576, 100000.0)
    # Embedding and head are the target's.
    assert read_shapes(trained)["fc.weight"] == (576, 3 * 576)
    assert {"embed_tokens.weight", "lm_head.weight"}.isdisjoint(read_shapes(trained))
    recorded = (trained / "run.yaml").read_text()
    for line in ("max_steps: 3", "epochs: 2", "lr: 0.0006", "max_anchors: 8", "seed: 7"):
        assert f"{line}\n" in recorded


def read_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    from slipstream.checkpoints.files import read_header

    return {tensor.name: tensor.shape for tensor in read_header(folder / "model.safetensors")}


def test_a_native_drafter_is_converted_whole_with_ids_one_higher(
    native: Path, converted: Path, target: Path
) -> None:
    config = read_config(converted)
    assert config["aux_hidden_state_layer_ids"] == [2, 15, 28]
    assert (config["block_size"], config["mask_token_id"]) == (4, 3)
    assert config["sliding_window_non_causal"] is True
    assert config["speculators_config"]["verifier"]["name_or_path"] == str(target)
    assert find_differences(native, converted) == []


def test_training_starts_from_the_converted_drafter(
    job: GpuJob, native: Path, converted: Path
) -> None:
    saved = start_from(job, converted).folder / "checkpoints"
    assert find_differences(native, saved) == []
    assert read_config(saved)["aux_hidden_state_layer_ids"] == [2, 15, 28]
    assert read_config(saved)["sliding_window_non_causal"] is True


def find_differences(one: Path, other: Path) -> list[str]:
    """Name the tensors that two checkpoints do not both hold, or not with the same values."""
    from safetensors.torch import load_file

    ours, theirs = (load_file(folder / "model.safetensors") for folder in (one, other))
    both = ours.keys() & theirs.keys()
    return sorted((ours.keys() ^ theirs.keys()) | {n for n in both if not ours[n].equal(theirs[n])})


def test_weights_of_another_shape_are_refused_in_speculators_own_words(
    target: Path, tmp_path: Path
) -> None:
    source = make_untrained_drafter(target, tmp_path / "native", DrafterShape())
    config = read_config(source) | {"num_key_value_heads": 5}
    (source / "config.json").write_text(json.dumps(config))
    with pytest.raises(InvalidInputError, match="speculators cannot convert") as caught:
        convert_drafter(source, target, tmp_path / "converted")
    assert any("size mismatch" in detail for detail in caught.value.details)
    assert not (tmp_path / "converted").exists()


def test_vllm_takes_the_arguments_of_the_extraction(job: GpuJob, tmp_path: Path) -> None:
    commands = [["--model", job.target, *extraction_arguments(job, 30)], ["--kv-transfers", "{}"]]
    outcome = run_script("parse_flags.py", {"commands": commands, "variables": []}, tmp_path)
    assert outcome["faults"][0] is None
    assert outcome["faults"][1] is not None
