"""How weights are stored is told in many ways, and read as one scheme."""

import pytest

from slipstream.checkpoints.quantization import parse_quantization
from tests.unit.checkpoints.folders import Table


def group(bits: int, kind: str, **more: object) -> Table:
    return {
        "quant_method": "compressed-tensors",
        "config_groups": {"group_0": {"weights": {"num_bits": bits, "type": kind, **more}}},
    }


NVFP4_GROUP = group(4, "float", group_size=16) | {"format": "nvfp4-pack-quantized"}


@pytest.mark.parametrize(
    ("stated", "scheme"),
    [
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "nvfp4"),
        ({"quant_method": "modelopt_fp4", "quant_algo": "NVFP4"}, "nvfp4"),
        ({"quant_method": "modelopt", "quant_algo": "W4A16_NVFP4"}, "nvfp4"),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, "fp8"),
        ({"quant_method": "modelopt", "quant_algo": "W4A16_AWQ"}, "int4"),
        ({"quant_method": "modelopt"}, "other"),
        (NVFP4_GROUP, "nvfp4"),
        (group(4, "float"), "nvfp4"),
        (group(8, "float"), "fp8"),
        (group(8, "int"), "int8"),
        (group(4, "int"), "int4"),
        (group(2, "int"), "other"),
        ({"quant_method": "compressed-tensors"}, "other"),
        ({"quant_method": "awq", "bits": 4}, "int4"),
        ({"quant_method": "awq"}, "int4"),
        ({"quant_method": "gptq", "bits": 4}, "int4"),
        ({"quant_method": "gptq", "bits": 8}, "int8"),
        ({"quant_method": "auto-round", "bits": 4}, "int4"),
        ({"quant_method": "auto-round", "bits": 8}, "int8"),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8"),
        ({"quant_method": "FP8"}, "fp8"),
        ({"quant_method": "mxfp4"}, "mxfp4"),
        ({"quant_method": "exl3", "bits": 4.0}, "other"),
    ],
)
def test_config_json_tells_the_scheme(stated: Table, scheme: str) -> None:
    found = parse_quantization({"quantization_config": stated}, {})
    assert found is not None
    assert (found.scheme, found.method) == (scheme, stated["quant_method"].lower())


@pytest.mark.parametrize(
    "extra",
    [
        {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4"}},
        {"quant_algo": "NVFP4"},
    ],
)
def test_modelopts_own_file_tells_it_where_config_json_is_silent(extra: Table) -> None:
    found = parse_quantization({}, extra)
    assert found is not None
    assert (found.scheme, found.method) == ("nvfp4", "modelopt")


def test_config_json_goes_before_modelopts_own_file() -> None:
    config = {"quantization_config": {"quant_method": "fp8"}}
    found = parse_quantization(config, {"quantization": {"quant_algo": "NVFP4"}})
    assert found is not None
    assert found.scheme == "fp8"


def test_the_older_key_of_compressed_tensors_is_read() -> None:
    found = parse_quantization({"compression_config": group(8, "int")}, {})
    assert found is not None
    assert found.scheme == "int8"


def test_a_method_without_a_name_is_called_unnamed() -> None:
    found = parse_quantization({"quantization_config": {"bits": 4}}, {})
    assert found is not None
    assert (found.scheme, found.method) == ("other", "unnamed")


def test_weights_that_nobody_quantized_have_no_scheme() -> None:
    assert parse_quantization({}, {}) is None
    assert parse_quantization({"quantization_config": None}, {}) is None


def test_compressed_tensors_in_groups_of_32_are_mxfp4() -> None:
    stated = group(4, "float", group_size=32) | {"format": "mxfp4-pack-quantized"}
    found = parse_quantization({"quantization_config": stated}, {})
    assert found is not None
    assert found.scheme == "mxfp4"


def test_a_multimodal_model_may_say_it_in_its_text_config() -> None:
    found = parse_quantization({"text_config": {"quantization_config": group(4, "int")}}, {})
    assert found is not None
    assert found.scheme == "int4"


@pytest.mark.parametrize(
    ("stated", "scheme"),
    [
        ({"quant_method": "gptq_marlin", "bits": 4}, "int4"),
        ({"quant_method": "awq_marlin", "bits": 4}, "int4"),
        ({"quant_method": "gpt_oss_mxfp4"}, "mxfp4"),
        ({"quant_method": "fbgemm_fp8"}, "fp8"),
        (group(8, "int") | {"quant_method": "compressed_tensors"}, "int8"),
    ],
)
def test_other_names_of_a_method_mean_the_same(stated: Table, scheme: str) -> None:
    found = parse_quantization({"quantization_config": stated}, {})
    assert found is not None
    assert found.scheme == scheme
