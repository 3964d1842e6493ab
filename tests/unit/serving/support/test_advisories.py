"""A version has the advisories that were published for it, and the planned one has none."""

import pytest

from slipstream.engines import vllm
from slipstream.serving.support.advisories import find_advisories, load_advisories, parse_version


def name_advisories(version: str) -> set[str]:
    return {one.id for one in find_advisories(version)}


def test_the_version_that_plans_are_made_for_has_no_known_advisory() -> None:
    assert name_advisories(vllm.VERSION) == set()
    assert name_advisories("0.32.1+cu130") == set()


def test_a_vulnerability_lasts_from_its_first_version_to_the_one_before_its_fix() -> None:
    name = "CVE-2026-44223"
    held = {
        version
        for version in ("0.17.9", "0.18.0", "0.19.1", "0.20.0")
        if name in name_advisories(version)
    }
    assert held == {"0.18.0", "0.19.1"}


def test_every_advisory_is_held_by_some_version_and_named_once() -> None:
    known = load_advisories().advisories
    assert len({advisory.id for advisory in known}) == len(known)
    for advisory in known:
        assert parse_version(advisory.since) < parse_version(advisory.fixed) <= (0, 32, 0)


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("0.32.0", (0, 32, 0)),
        ("0.31.2rc1.dev5+g0ab", (0, 31, 2)),
        ("0.32.0+cpu", (0, 32, 0)),
        ("1.0", (1, 0, 0)),
        ("dev", (0, 0, 0)),
    ],
)
def test_a_version_is_read_whatever_build_it_names(text: str, version: tuple[int, ...]) -> None:
    assert parse_version(text) == version
