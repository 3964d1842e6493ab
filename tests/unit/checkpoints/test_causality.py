"""Whether a drafter says how its layers look: causal or not, and where silence is dangerous."""

import pytest

from tests.unit.checkpoints.folders import Table
from tests.unit.checkpoints.pairs import (
    NATIVE,
    SLIDING,
    SPECULATORS,
    Bench,
    refusal,
    warning,
    with_layers,
    with_own,
)


def test_a_drafter_that_contradicts_itself_on_causality_is_refused(bench: Bench) -> None:
    message = (
        "maker/drafter contradicts itself: "
        "is_causal means non-causal, dflash_config.causal means causal"
    )
    drafter = bench.drafter(with_own(causal=True) | {"is_causal": False})
    assert bench.faults(drafter) == (refusal("causality", message),)


def test_a_silent_speculators_drafter_with_windows_warns(bench: Bench) -> None:
    config = with_layers(**SLIDING)
    del config["sliding_window_non_causal"]
    message = (
        "maker/drafter has sliding layers and no sliding_window_non_causal: vLLM takes "
        "them as non-causal, speculators trains them causal"
    )
    hint = "set sliding_window_non_causal in the drafter's config.json"
    assert bench.faults(bench.drafter(config)) == (warning("causality", message, hint),)


@pytest.mark.parametrize(
    ("config", "taken"),
    [
        (NATIVE | SLIDING, "causal"),
        (with_own(use_swa=True, swa_window_size=512), "non-causal"),
        (with_own(use_swa=True, swa_window_size=512) | SLIDING, "causal"),
    ],
)
def test_a_silent_native_drafter_with_windows_warns(
    bench: Bench, config: Table, taken: str
) -> None:
    message = (
        f"maker/drafter has sliding layers and does not state causality: vLLM takes them as {taken}"
    )
    hint = "set dflash_config.causal in the drafter's config.json"
    assert bench.faults(bench.drafter(config)) == (warning("causality", message, hint),)


@pytest.mark.parametrize(
    "config",
    [
        with_own(causal=True) | SLIDING,
        with_own(causal=False) | SLIDING,
        NATIVE | SLIDING | {"is_causal": True},
        with_own(causal=True) | {"is_causal": True},
        with_layers(**SLIDING),
    ],
)
def test_one_word_on_causality_is_enough(bench: Bench, config: Table) -> None:
    assert bench.faults(bench.drafter(config)) == ()


FULL_AND_SLIDING = {"layer_types": ["full_attention", "sliding_attention"], "num_hidden_layers": 2}


@pytest.mark.parametrize("config", [SPECULATORS, with_layers(**SLIDING | FULL_AND_SLIDING)])
def test_a_speculators_drafter_whose_full_layers_would_be_served_causal_warns(
    bench: Bench, config: Table
) -> None:
    message = (
        "maker/drafter has full attention layers, which speculators trains non-causal, and "
        "sliding_window_non_causal false: vLLM 0.32 serves them causal"
    )
    hint = "set sliding_window_non_causal to true in the drafter's config.json"
    drafter = bench.drafter(config | {"sliding_window_non_causal": False})
    assert bench.faults(drafter) == (warning("causality", message, hint),)
    assert bench.faults(bench.drafter(config)) == ()


def test_a_speculators_drafter_that_only_slides_may_be_causal(bench: Bench) -> None:
    every = SLIDING | {"layer_types": ["sliding_attention"], "num_hidden_layers": 1}
    config = with_layers(**every) | {"sliding_window_non_causal": False}
    assert bench.faults(bench.drafter(config)) == ()
