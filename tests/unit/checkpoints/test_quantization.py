"""How weights are stored is told in many ways, and read as one scheme."""

import pytest

from slipstream.checkpoints.reading import parse_quantization
from tests.unit.checkpoints.folders import Table


def group(bits: int, kind: str, **more: object) -> Table:
    return {
        "quant_method": "compressed-tensors",
        "config_groups": {"group_0": {"weights": {"num_bits": bits, "type": kind, **more}}},
    }


NVFP4_GROUP = group(4, "float", group_size=16) | {"format": "nvfp4-pack-quantized"}


MODELOPT = {"quant_method": "modelopt"}


@pytest.mark.parametrize(
    ("stated", "scheme"),
    [
        (MODELOPT | {"quant_algo": "NVFP4"}, "nvfp4"),
        ({"quant_method": "modelopt_fp4", "quant_algo": "NVFP4"}, "nvfp4"),
        (MODELOPT | {"quant_algo": "W4A16_NVFP4"}, "nvfp4"),
        (MODELOPT | {"quant_algo": "FP8"}, "fp8"),
        (MODELOPT | {"quant_algo": "W4A16_AWQ"}, "int4"),
        (MODELOPT, "other"),
        (NVFP4_GROUP, "nvfp4"),
        (group(4, "float"), "nvfp4"),
        (group(4, "float", group_size=32) | {"format": "mxfp4-pack-quantized"}, "mxfp4"),
        (group(4, "float", group_size=32), "mxfp4"),
        (group(8, "float"), "fp8"),
        (group(8, "int"), "int8"),
        (group(8, "int") | {"quant_method": "compressed_tensors"}, "int8"),
        (group(4, "int"), "int4"),
        (group(2, "int"), "other"),
        ({"quant_method": "compressed-tensors"}, "other"),
        ({"quant_method": "awq", "bits": 4}, "int4"),
        ({"quant_method": "awq"}, "int4"),
        ({"quant_method": "awq_marlin", "bits": 4}, "int4"),
        ({"quant_method": "gptq", "bits": 4}, "int4"),
        ({"quant_method": "gptq", "bits": 8}, "int8"),
        ({"quant_method": "gptq_marlin", "bits": 4}, "int4"),
        ({"quant_method": "auto-round", "bits": 4}, "int4"),
        ({"quant_method": "auto-round", "bits": 8}, "int8"),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8"),
        ({"quant_method": "FP8"}, "fp8"),
        ({"quant_method": "fbgemm_fp8"}, "fp8"),
        ({"quant_method": "mxfp4"}, "mxfp4"),
        ({"quant_method": "gpt_oss_mxfp4"}, "mxfp4"),
        ({"quant_method": "exl3", "bits": 4.0}, "other"),
    ],
)
def test_config_json_tells_the_scheme(stated: Table, scheme: str) -> None:
    found = parse_quantization({"quantization_config": stated}, {})
    assert found is not None
    assert (found.scheme, found.method) == (scheme, stated["quant_method"].lower())


NVFP4 = {"quant_algo": "NVFP4"}


@pytest.mark.parametrize(
    ("config", "extra", "found"),
    [
        ({}, {"producer": {}, "quantization": NVFP4}, ("nvfp4", "modelopt")),
        ({}, NVFP4, ("nvfp4", "modelopt")),
        (
            {"quantization_config": {"quant_method": "fp8"}},
            {"quantization": NVFP4},
            ("fp8", "fp8"),
        ),
        ({"compression_config": group(8, "int")}, {}, ("int8", "compressed-tensors")),
        (
            {"text_config": {"quantization_config": group(4, "int")}},
            {},
            ("int4", "compressed-tensors"),
        ),
        ({"quantization_config": {"bits": 4}}, {}, ("other", "unnamed")),
        ({}, {}, None),
        ({"quantization_config": None}, {}, None),
    ],
)
def test_it_is_found_where_it_is_told(
    config: Table, extra: Table, found: tuple[str, str] | None
) -> None:
    read = parse_quantization(config, extra)
    assert (read and (read.scheme, read.method)) == found
