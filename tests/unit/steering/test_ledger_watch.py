"""Drifts in traffic as it is: found where they are, named, and not where there are none.

`experiments/simulate-guardian` does the same with 200 runs of 20,000 requests.
"""

from collections.abc import Iterable
from typing import Any

import pytest

from slipstream.steering import ledger_watch
from slipstream.steering.guardian import Drift, Family
from slipstream.steering.ledger import LedgerLine
from slipstream.steering.ledger_watch import FORMS, LedgerWatch, observe
from tests.unit.steering import simulated as simulation
from tests.unit.steering.lines import make

CALM = 2000


def watch(lines: Iterable[LedgerLine], watch: LedgerWatch | None = None) -> list[tuple[int, Drift]]:
    watching = watch or LedgerWatch()
    return [(n, drift) for n, line in enumerate(lines) for drift in watching.add(line)]


def generate(
    seed: int, requests: int, drift: simulation.Drift = simulation.QUIET
) -> Iterable[LedgerLine]:
    return simulation.Traffic(seed).generate(requests, CALM, drift)


def test_quiet_runs_have_no_drift() -> None:
    assert [watch(generate(seed, 3000)) for seed in (1, 2)] == [[], []]


def test_another_mix_of_kinds_is_no_drift() -> None:
    drift = simulation.DRIFTS["another mix of kinds"]
    assert watch(generate(3, CALM + 1500, drift)) == []


@pytest.mark.parametrize(
    ("name", "family", "within"),
    [
        ("noise drafter", "first position", 200),
        ("acceptance -50 %", "first position", 800),
    ],
)
def test_a_planted_fall_of_acceptance_is_found(name: str, family: str, within: int) -> None:
    found = watch(generate(4, CALM + within, simulation.DRIFTS[name]))
    assert found
    number, drift = found[0]
    assert number >= CALM
    assert (drift.family, drift.where, drift.decay) == (family, "all requests", None)
    assert drift.after < 0.6 * drift.before


def test_a_slowed_engine_is_found_by_its_steps_and_not_by_its_drafts() -> None:
    found = watch(generate(5, CALM + 800, simulation.Drift(step=1.5)))
    assert found
    assert {drift.family for _, drift in found} <= {"step seconds", "first token seconds"}
    assert found[0][1].after / found[0][1].before == pytest.approx(1.5, abs=0.1)
    assert "the time of a step rose from" in found[0][1].describe()


@pytest.mark.parametrize("copies", [[0.0], [0.0, 1.0]])
def test_another_load_is_no_drift_where_it_decides_what_is_verified(copies: list[float]) -> None:
    prices = (0.5, 0.05) if len(copies) == 1 else (0.05,)
    traffic = simulation.CutTraffic(3, prices, 1500)
    traffic.copies = copies
    lines = list(traffic.generate(3000, 3000, simulation.QUIET))
    assert watch(lines) == []
    # The figures of drafts that are not cut would call it one.
    assert watch(line.model_copy(update={"expected": None}) for line in lines)


@pytest.mark.parametrize(
    ("honest", "family"), [(False, "expected acceptance"), (True, "first position")]
)
def test_a_worse_drafter_is_found_whether_it_says_so_or_not(honest: bool, family: str) -> None:
    traffic = simulation.CutTraffic(2, (0.05, 0.5), 200, honest=honest)
    found = watch(traffic.generate(2000, 1500, simulation.DRIFTS["acceptance -50 %"]))
    assert found
    number, drift = found[0]
    assert (number >= 1500, drift.family) == (True, family)
    assert drift.after < 0.75 * drift.before


def ask(count: int, accepted: int, **changes: Any) -> list[LedgerLine]:
    """Return requests with 20 drafts each, of which about so many had their first token accepted.

    What time they took says nothing.
    """
    line = {"drafts": 20, "drafted": 140, "first_seconds": None, "prompt_tokens": 99} | changes
    return [make(accepted=[max(0, accepted + 1 - n % 2 * 2), 0], **line) for n in range(count)]


def mix(*parts: list[LedgerLine]) -> list[LedgerLine]:
    return [line for together in zip(*parts, strict=True) for line in together]


def test_a_fall_in_one_kind_is_named_with_that_kind() -> None:
    calm = mix(ask(400, 14, kind="code"), ask(400, 9, kind="prose"))
    fall = mix(ask(400, 7, kind="code"), ask(400, 9, kind="prose"))
    watching = LedgerWatch()
    assert watch(calm, watching) == []
    found = watch(fall, watching)
    assert {drift.where.split(",")[0] for _, drift in found} == {"code"}
    first = next(drift for _, drift in found if drift.family == "first position")
    assert first.before == pytest.approx(0.7, abs=0.02)
    assert first.after == pytest.approx(0.35, abs=0.02)
    assert (
        "code, context 0 to 1k: acceptance of the first position fell from 70%" in first.describe()
    )


def test_one_keys_traffic_is_named_as_such() -> None:
    watching = LedgerWatch()
    assert watch(mix(ask(400, 14, key="ann"), ask(400, 14, key="bob")), watching) == []
    found = watch(
        mix(ask(400, 2, key="ann"), ask(400, 14, key="bob"), ask(400, 1, key="ann")), watching
    )
    assert found
    assert {(drift.decay, drift.key) for _, drift in found} == {("traffic of one key", "ann")}
    assert "only the requests of key ann changed" in found[0][1].describe()


def test_a_collapse_in_long_contexts_has_a_name_whether_it_came_or_was_there() -> None:
    for before in (14, 0):
        watching = LedgerWatch()
        long = {"prompt_tokens": 20_000, "cached_tokens": 20_000}
        found = watch(mix(ask(600, 14), ask(600, before, **long)), watching)
        found += watch(mix(ask(300, 14), ask(300, 0, **long)), watching)
        drifts = [drift for _, drift in found if drift.family == "first position"]
        assert [drift.where for drift in drifts[:1]] == ["code, context 16k to 64k"]
        assert drifts[0].decay == "context collapse"
        assert "vllm#50021" in drifts[0].describe()


def test_a_drift_ends_when_its_figures_are_back_or_forgotten() -> None:
    watching = LedgerWatch()
    assert watch(ask(400, 14) + ask(200, 5), watching)
    assert watching.drifts
    watch(ask(400, 14), watching)
    assert watching.drifts == {}
    assert watch(ask(400, 5), watching)
    watching.forget()
    assert watching.drifts == {}
    assert watch(ask(400, 5), watching) == []


def test_streams_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_watch, "MOST_STREAMS", 3)
    watching = LedgerWatch()
    assert watch((make(kind=f"kind {n}") for n in range(50)), watching) == []
    assert len(watching._streams) == 3


def read(**changes: object) -> dict[Family, tuple[str, Any]]:
    return {one.family: (str(one.place), one.figure) for one in observe(make(**changes))}


def test_a_request_says_one_thing_per_family() -> None:
    assert read() == {
        "acceptance": ("code, drafts up to 7", pytest.approx(0.558, abs=0.001)),
        "first position": ("code, context 0 to 1k", pytest.approx(25 / 29)),
        "cached share": ("code", pytest.approx(256 / 300)),
        "step seconds": ("context 0 to 1k, drafts up to 7, batch up to 4", pytest.approx(1.9 / 29)),
        "first token seconds": ("batch up to 4, prompt up to 64", 0.41),
    }
    said = read(expected=20.0, proposals=30, first_expected=0.5)
    assert set(read()) | set(said) == {*FORMS}
    assert "acceptance" not in said
    assert said["expected acceptance"] == ("code, context 0 to 1k", 36 / 20)
    assert said["first position"] == ("code, context 0 to 1k", 25.5 / 30)
    assert "first position" not in read(expected=20.0, proposals=30, copies=4)
    assert read(copied=29 * 7)["step seconds"][0].startswith("context 0 to 1k, drafts up to 15")


def test_what_says_too_little_is_left_out() -> None:
    assert "acceptance" not in read(drafts=3)
    assert "step seconds" not in read(steps=7)
    assert "cached share" not in read(prompt_tokens=100)
    assert {*read(first_seconds=None)} == {"acceptance", "first position", "cached share"}


def test_requests_without_drafts_are_comparable_in_time_only() -> None:
    said = read(drafts=0, drafted=0, accepted=[], batch=None, prompt_tokens=10**6)
    assert said["step seconds"][0] == "context 64k on, drafts up to 0, batch up to 1"
    assert said["first token seconds"][0] == "batch up to 1, prompt over 4096"


@pytest.mark.parametrize("family", FORMS)
def test_a_figure_has_a_value_between_0_and_1_and_less_is_worse(family: Family) -> None:
    form = FORMS[family]
    good, usual, bad = (0.3, 0.4, 0.5) if form.is_time else (0.9, 0.4, 0.1)
    values = [form.to_value(figure, 0.4) for figure in (good, usual, bad)]
    assert values == sorted(values, reverse=True)
    assert len(set(values)) == 3
    assert form.to_figure(values[2], 0.4) == pytest.approx(bad)
    for extreme in (0.0, 1e-300, 1e300):
        assert 0 <= form.to_value(extreme, 0.4) <= 1


def test_a_larger_margin_is_further_from_the_baseline() -> None:
    for form in FORMS.values():
        distances = [margin.share + margin.step for margin in form.margins]
        assert distances == sorted(distances)
        assert distances[0] > 0
