"""The folders follow the environment in the order that their owners promise."""

from pathlib import Path

import pytest

from slipstream.user_folders import model_cache, slipstream_cache


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"HOME": "/h"}, "/h/.cache/slipstream"),
        ({"HOME": "/h", "XDG_CACHE_HOME": "/x"}, "/x/slipstream"),
        ({"HOME": "/h", "XDG_CACHE_HOME": "/x", "SLIPSTREAM_CACHE": "/s"}, "/s"),
    ],
)
def test_our_cache(environment: dict[str, str], expected: str) -> None:
    assert slipstream_cache(environment) == Path(expected)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"HOME": "/h"}, "/h/.cache/huggingface/hub"),
        ({"HOME": "/h", "XDG_CACHE_HOME": "/x"}, "/x/huggingface/hub"),
        ({"HOME": "/h", "HF_HOME": "/f"}, "/f/hub"),
        ({"HOME": "/h", "HF_HOME": "/f", "HF_HUB_CACHE": "/c"}, "/c"),
    ],
)
def test_the_hubs_cache(environment: dict[str, str], expected: str) -> None:
    assert model_cache(environment) == Path(expected)
