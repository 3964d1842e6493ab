"""The page's colours can be read, by day and by night, and no drawing lacks its style."""

import re
from importlib.resources import files

import pytest

from slipstream.reporting.measuring.comparison import render_comparison_html
from tests.unit.reporting.page_reading import find_drawings
from tests.unit.reporting.records import make_comparison

STYLE = (files("slipstream.reporting") / "page.css").read_text()
LIGHT, DARK = (
    dict(re.findall(r"--(\w+): (#\w{6})", block))
    for block in re.findall(r":root \{(.*?)\}", STYLE, re.DOTALL)[:2]
)


def find_luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("palette", [LIGHT, DARK], ids=["light", "dark"])
@pytest.mark.parametrize("ground", ["page", "well"])
@pytest.mark.parametrize("name", ["ink", "soft", *"abcdefgh", "warn", "bad"])
def test_text_has_the_contrast_that_wcag_asks_for(
    palette: dict[str, str], ground: str, name: str
) -> None:
    values = sorted(find_luminance(palette[key]) for key in (ground, name))
    assert (values[1] + 0.05) / (values[0] + 0.05) >= 4.5


def test_both_palettes_have_the_same_colours() -> None:
    assert LIGHT.keys() == DARK.keys()


def test_every_class_of_a_drawing_has_a_style() -> None:
    drawings = find_drawings(render_comparison_html(make_comparison(failing=0.06, rounds=1)))
    drawings += find_drawings(render_comparison_html(make_comparison(tuple("abcdefgh"), rounds=1)))
    used = {
        name
        for drawing in drawings
        for part in drawing.iter()
        for name in (part.get("class") or "").split()
    }
    assert used - set(re.findall(r"\.([a-z]+)", STYLE)) == {"faster"}
