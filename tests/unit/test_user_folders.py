"""The folders follow the environment in the order that their owners promise."""

from collections.abc import Callable
from pathlib import Path

import pytest

from slipstream.user_folders import model_cache, recipe_overlay, slipstream_cache


@pytest.mark.parametrize(
    ("find", "environment", "expected"),
    [
        (slipstream_cache, {"HOME": "/h"}, "/h/.cache/slipstream"),
        (slipstream_cache, {"HOME": "/h", "XDG_CACHE_HOME": "/x"}, "/x/slipstream"),
        (slipstream_cache, {"XDG_CACHE_HOME": "/x", "SLIPSTREAM_CACHE": "/s"}, "/s"),
        (model_cache, {"HOME": "/h"}, "/h/.cache/huggingface/hub"),
        (model_cache, {"HOME": "/h", "XDG_CACHE_HOME": "/x"}, "/x/huggingface/hub"),
        (model_cache, {"HOME": "/h", "HF_HOME": "/f"}, "/f/hub"),
        (model_cache, {"HF_HOME": "/f", "HF_HUB_CACHE": "/c"}, "/c"),
        (model_cache, {"HF_HOME": "/f", "HUGGINGFACE_HUB_CACHE": "/c"}, "/c"),
        (recipe_overlay, {"HOME": "/h"}, "/h/.config/slipstream/recipes"),
        (recipe_overlay, {"HOME": "/h", "XDG_CONFIG_HOME": ""}, "/h/.config/slipstream/recipes"),
        (recipe_overlay, {"HOME": "/h", "XDG_CONFIG_HOME": "/x"}, "/x/slipstream/recipes"),
        (recipe_overlay, {"HOME": "/h", "XDG_CACHE_HOME": "/x"}, "/h/.config/slipstream/recipes"),
        (recipe_overlay, {}, f"{Path.home()}/.config/slipstream/recipes"),
        (recipe_overlay, {"XDG_CONFIG_HOME": "~/x"}, f"{Path.home()}/x/slipstream/recipes"),
    ],
)
def test_a_folder_follows_the_environment(
    find: Callable[[dict[str, str]], Path], environment: dict[str, str], expected: str
) -> None:
    assert find(environment) == Path(expected)
