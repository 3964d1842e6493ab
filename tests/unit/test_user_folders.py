"""The folders follow the environment in the order that their owners promise."""

from pathlib import Path

import pytest

from slipstream.user_folders import model_cache, recipe_overlay, slipstream_cache


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
        ({"HOME": "/h", "HF_HOME": "/f", "HUGGINGFACE_HUB_CACHE": "/c"}, "/c"),
    ],
)
def test_the_hubs_cache(environment: dict[str, str], expected: str) -> None:
    assert model_cache(environment) == Path(expected)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"HOME": "/h"}, "/h/.config/slipstream/recipes"),
        ({"HOME": "/h", "XDG_CONFIG_HOME": ""}, "/h/.config/slipstream/recipes"),
        ({"HOME": "/h", "XDG_CONFIG_HOME": "/x"}, "/x/slipstream/recipes"),
        ({"HOME": "/h", "XDG_CACHE_HOME": "/x"}, "/h/.config/slipstream/recipes"),
        ({}, f"{Path.home()}/.config/slipstream/recipes"),
        ({"XDG_CONFIG_HOME": "~/x"}, f"{Path.home()}/x/slipstream/recipes"),
    ],
)
def test_our_own_recipes(environment: dict[str, str], expected: str) -> None:
    assert recipe_overlay(environment) == Path(expected)
