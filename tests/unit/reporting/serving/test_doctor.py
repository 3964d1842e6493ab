"""What `slipstream doctor` shows, word for word."""

from slipstream.reporting.serving.doctor import render_diagnosis, render_examination
from slipstream.serving.support.checks import Check
from slipstream.serving.support.examination import Diagnosis, Examination, diagnose_log
from tests.snapshots import read_snapshot
from tests.unit.serving.support.test_examination import EXCERPTS

HOLE = "PYSEC-2026-4344: a chat template that comes with a request can harm the server"
CHECKS = (
    Check(subject="machine", verdict="ok", message="NVIDIA GB10", details=("memory is shared",)),
    Check(
        subject="engine",
        verdict="fault",
        message="vllm 0.31.0 is older than 0.32.0, and has published vulnerabilities",
        details=(HOLE,),
        hint="pip install 'slipstream[vllm]'",
    ),
    Check(
        subject="disk",
        verdict="warning",
        message="9.0 GiB free at ~/.cache",
        hint="df -h ~/.cache",
    ),
)


def test_an_examination_is_shown_as_reviewed() -> None:
    shown = render_examination(Examination(checks=CHECKS)) + "\n"
    assert shown == read_snapshot("doctor.txt", shown)
    sound = render_examination(Examination(checks=CHECKS[:1]))
    assert sound.endswith("\n\nno faults, no warnings")


def test_a_diagnosis_is_shown_as_reviewed() -> None:
    diagnosis = diagnose_log(EXCERPTS / "port-in-use.log")
    shown = render_diagnosis(diagnosis.model_copy(update={"log": "runs/one/port-in-use.log"}))
    shown += "\n"
    assert shown == read_snapshot("doctor-diagnosis.txt", shown)


def test_a_log_without_a_known_failure_is_shown_by_its_last_words() -> None:
    unknown = Diagnosis(log="engine.log", findings=(), last_lines=("OddError: the moon",))
    shown = "no known failure in engine.log\nits last lines:\n  OddError: the moon"
    shown += "\n\nfor a report: slipstream doctor --bundle bug.zip, and these lines"
    assert render_diagnosis(unknown) == shown
    assert render_diagnosis(Diagnosis(log="engine.log", findings=())) == shown.split("\n")[0]
