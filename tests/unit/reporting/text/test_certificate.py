"""What `slipstream verify` shows, word for word."""

import pytest

from slipstream.reporting.text.certificate import render_certificate_text
from tests.snapshots import read_snapshot
from tests.unit.reporting.pages.test_certificate import certify


def test_a_certificate_is_shown_as_reviewed() -> None:
    shown = render_certificate_text(certify()) + "\n"
    assert shown == read_snapshot("certificate.txt", shown)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"reproduced": False}, "it was not reproduced"),
        ({"reproduced": None}, "Without the plain engine it cannot be tried again"),
        ({"gap": None}, "token 3: the answer ends or fails"),
    ],
)
def test_a_failure_says_whether_it_came_again(change: dict[str, object], told: str) -> None:
    failure = certify().findings.failure
    assert failure is not None
    assert told in render_certificate_text(certify(failure=failure.model_copy(update=change)))


def test_a_passed_certificate_has_no_failure_to_show() -> None:
    shown = render_certificate_text(certify(passed=True, failure=None))
    assert shown.startswith("PASSED: ")
    assert "shortest prompt" not in shown
