"""The engine that the stages of training plan for themselves."""

from dataclasses import replace
from pathlib import Path

import pytest

from slipstream.hardware import load_host
from slipstream.training.workshop import plan_engine
from tests.unit.training.pieces import SETTINGS, converse, open_workshop


def find_dtype(folder: Path, machine: str, *features: str) -> str | None:
    """Return the dtype of the engine that answers prompts on a machine with these instructions."""
    host = load_host(machine)
    processor = host.processor.model_copy(update={"features": features})
    shop = replace(open_workshop(folder), host=host.model_copy(update={"processor": processor}))
    plan = plan_engine(SETTINGS, shop, [converse("Count the rows.")], drafter=None, users=128)
    decision = plan.find("--dtype")
    return decision.value if decision else None


def test_prompts_are_answered_in_float32_where_bfloat16_is_emulated(tmp_path: Path) -> None:
    assert find_dtype(tmp_path, "cpu-server", "avx2", "avx512f") == "float32"


@pytest.mark.parametrize(
    ("features", "dtype"),
    [(("avx2", "avx512f"), "float32"), (("avx512f", "amx_bf16"), "bfloat16"), ((), "bfloat16")],
)
def test_training_computes_in_what_the_processor_has(
    tmp_path: Path, features: tuple[str, ...], dtype: str
) -> None:
    host = load_host("cpu-server")
    processor = host.processor.model_copy(update={"features": features})
    shop = replace(open_workshop(tmp_path), host=host.model_copy(update={"processor": processor}))
    assert shop.dtype == dtype


@pytest.mark.parametrize(("machine", "feature"), [("cpu-server", "amx_bf16"), ("h100", "avx2")])
def test_elsewhere_prompts_are_answered_in_the_checkpoints_dtype(
    tmp_path: Path, machine: str, feature: str
) -> None:
    assert find_dtype(tmp_path, machine, feature) is None
