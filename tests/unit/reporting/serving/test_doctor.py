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


def diagnose(name: str) -> Diagnosis:
    return diagnose_log(EXCERPTS / name).model_copy(update={"log": f"runs/one/{name}"})


def test_an_examination_is_shown_as_reviewed() -> None:
    shown = render_examination(Examination(checks=CHECKS)) + "\n"
    assert shown == read_snapshot("doctor.txt", shown)


def test_a_diagnosis_is_shown_as_reviewed() -> None:
    shown = render_diagnosis(diagnose("port-in-use.log")) + "\n"
    assert shown == read_snapshot("doctor-diagnosis.txt", shown)


def test_a_sound_machine_is_summed_up_in_a_line() -> None:
    examination = Examination(checks=CHECKS[:1])
    assert render_examination(examination).endswith("\n\nno faults, no warnings")


def test_a_diagnosis_names_every_finding_with_line_meaning_hint_and_source() -> None:
    diagnosis = diagnose("memory-out-for-cache.log")
    shown = render_diagnosis(diagnosis)
    for finding in diagnosis.findings:
        assert f"{finding.cause} ({finding.signature})\n  line    {finding.line}\n" in shown
        assert f"\n  means   {finding.meaning}\n  hint    {finding.remedy}\n" in shown
        assert ", ".join(finding.sources) in shown


def test_a_log_without_a_known_failure_is_shown_by_its_last_words() -> None:
    unknown = Diagnosis(log="engine.log", findings=(), last_words=("OddError: the moon",))
    shown = "no known failure in engine.log\nits last words:\n  OddError: the moon"
    assert render_diagnosis(unknown) == shown
    assert render_diagnosis(Diagnosis(log="engine.log", findings=())) == shown.split("\n")[0]
