"""Machines that cannot serve are refused with the reason and a way out."""

import pytest

from slipstream.errors import UnsupportedHostError
from slipstream.hardware import list_machines, load_host, require_supported
from slipstream.hardware.support import find_obstacle


def test_an_apple_laptop_is_refused_politely() -> None:
    with pytest.raises(UnsupportedHostError) as caught:
        require_supported(load_host("apple-laptop"))
    assert caught.value.message == ("Apple M4 Max runs darwin, and vLLM runs DFlash on Linux only")
    assert caught.value.hint


@pytest.mark.parametrize("name", [name for name in list_machines() if name != "apple-laptop"])
def test_every_other_machine_can_serve(name: str) -> None:
    assert find_obstacle(load_host(name)) is None


def test_an_old_cpu_without_an_accelerator_is_refused_by_the_feature_it_lacks() -> None:
    host = load_host("cpu-server")
    old = host.model_copy(update={"processor": host.processor.model_copy(update={"features": ()})})
    with pytest.raises(UnsupportedHostError, match="lacks avx2"):
        require_supported(old)


def test_a_cpu_that_vllm_has_no_build_for_is_refused() -> None:
    host = load_host("cpu-server")
    processor = host.processor.model_copy(update={"architecture": "riscv64", "model": None})
    with pytest.raises(UnsupportedHostError, match="no CPU build for riscv64"):
        require_supported(host.model_copy(update={"processor": processor}))
