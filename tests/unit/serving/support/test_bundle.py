"""An archive for a bug report: useful, and nothing in it that its sender would regret."""

import json
import re
import socket
import stat
import zipfile
from pathlib import Path

import pytest

from slipstream.cli.main import run
from slipstream.serving.run import RunFolder, Terms
from slipstream.serving.support.bundle import BundleList
from slipstream.steering.guardian import Drift
from tests.unit.planning.bare_plans import bare_plan
from tests.unit.serving.kept_runs import PLAN, access, happen, keep
from tests.unit.serving.support.test_examination import EXCERPTS
from tests.unit.steering.lines import write as write_line

Capture = pytest.CaptureFixture[str]
USER, HOST, OWNER, MODEL = "wilhelmina", "spark-of-hubertus", "ann-from-legal", "acme-diagnosis-13b"
KEY, PROMPT = "sk-planted-4f9a8b7c6d5e", "my patient Doe has a rare disease"
PLANTED = (
    USER,
    HOST,
    OWNER,
    MODEL,
    KEY,
    "hunter2",
    "rare disease",
    "patient",
    "rare_disease",
    "10.9.8.7",
    "/srv/",
)
TEXT = f"{USER}@{HOST} /srv/{USER}/{MODEL} key={KEY} 10.9.8.7 {PROMPT} of {OWNER}"
QUOTING = f"""\
(APIServer pid=1) INFO 11-16 22:16:24 [api_utils.py:286] args: {{'api_key': ['hunter2'], \
'model': '/srv/{USER}/{MODEL}', 'chat_template': '{PROMPT}', 'max_model_len': 1024}}
(EngineCore pid=2) INFO 11-16 22:16:35 [cpu_model_runner.py:68] Starting to load model \
/srv/{MODEL}...
OSError: [Errno 2] No such file or directory: '/srv/{USER}/{MODEL}'
plain words that nobody knows: {PROMPT}
(APIServer pid=1) INFO 11-16 22:16:41 [entry.py:140] Starting vLLM server on http://10.9.8.7:8432
INFO:     Application startup complete.
(APIServer pid=1) INFO 11-16 22:17:01 [logger.py:40] Received request: prompt: {TEXT!r}
(APIServer pid=1) ERROR 11-16 22:17:01 [serving.py:40] Error in preprocessing {PROMPT}
(EngineCore pid=2) ERROR 11-16 22:17:02 [core.py:812] Traceback (most recent call last):
(EngineCore pid=2) ERROR 11-16 22:17:02 [core.py:812]   File "/srv/{USER}/v/lib/\
python3.11/site-packages/pydantic/main.py", line 803, in model_validate
(EngineCore pid=2) ERROR 11-16 22:17:02 [core.py:812]   File "/site-packages/rare_disease.py", \
line 1, in model_validate
(EngineCore pid=2) ERROR 11-16 22:17:02 [core.py:812]   File "/site-packages/pydantic/main.py", \
line 1, in my_patient_has_a_rare_disease
(EngineCore pid=2) ERROR 11-16 22:17:02 [core.py:812] MyPatientHasARareDiseaseError
(EngineCore pid=2) ERROR 11-16 22:17:02 [core.py:812] ValueError: {PROMPT}
ValueError: cannot tokenize {PROMPT}
INFO 11-16 22:18:00 [core.py:1] Initializing a V1 LLM engine for {PROMPT}
{PROMPT}
"""


@pytest.fixture(autouse=True)
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLIPSTREAM_KEYS", "SLIPSTREAM_CACHE", "XDG_CONFIG_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", f"/srv/{USER}")
    monkeypatch.setenv("USER", USER)
    monkeypatch.setenv("HF_TOKEN", KEY)
    monkeypatch.setenv("VLLM_HOST_IP", "10.9.8.7")
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "4")
    monkeypatch.setattr(socket, "gethostname", lambda: HOST)


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """A run with something planted in every kind of file."""
    target = f"/srv/{USER}/{MODEL}"
    words = ("--api-key", KEY, "--max-model-len", "4096", "--chat-template", PROMPT)
    secret = {"VLLM_API_KEY": KEY, "SLIPSTREAM_NOTE": TEXT}
    plan = bare_plan(*words, target=target, environment=secret)
    keys = tmp_path / "keys.json"
    keys.write_text(
        json.dumps(
            {"id": "k1", "name": OWNER, "sha256": "ab" * 32, "created": "2026-11-15T00:00:00Z"}
        )
    )
    keys.chmod(0o600)
    plan = plan.model_copy(update={"notes": (TEXT,), "memory": PLAN.memory})
    drift = Drift(
        family="acceptance", where=TEXT, before=1, after=0.5, requests=9, times=1, at=0, key=OWNER
    )
    folder, _ = keep(
        tmp_path / "slipstream" / "runs",
        f"{MODEL}-20261116-{OWNER}",
        plan=plan,
        argv=tuple(plan.argv()),
        terms=Terms(keys_file=keys),
        drifts=(drift,),
        state="failed",
    )
    happen(folder, "failed", f"the engine died: {TEXT}")
    for name in ("engine.log", "engine-1.log", "engine-2.log", "supervisor.log"):
        (folder.path / name).write_text(QUOTING)
    (folder.path / "engine-2.log.1").write_text(TEXT)
    folder.access_log.write_bytes(access(PROMPT, key=OWNER, client="10.9.8.7", client_id=TEXT))
    (folder.path / "access-1.jsonl").write_bytes(b"not json " + TEXT.encode() + b"\n")
    folder.ledger.write_bytes(write_line(id=KEY, key=OWNER, route=PROMPT, kind=MODEL))
    folder.gate.write_text(json.dumps({"text": TEXT}))
    folder.flight.write_bytes(TEXT.encode())
    (folder.path / "engine-9.log").symlink_to(keys)
    return folder


def read_archive(file: Path) -> dict[str, str]:
    with zipfile.ZipFile(file) as archive:
        return {name: archive.read(name).decode() for name in archive.namelist()}


def test_nothing_planted_in_a_run_is_in_the_archive(folder: RunFolder, tmp_path: Path) -> None:
    file = tmp_path / "bundle.zip"
    assert run(["doctor", "--bundle", str(file)], {}) == 0
    held = {**read_archive(file), "the file itself": file.read_bytes().decode("latin-1")}
    found = {
        (name, word)
        for name, text in held.items()
        for word in PLANTED
        if word.lower() in (name + text).lower()
    }
    assert not found
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_what_a_maintainer_needs_is_in_the_archive(folder: RunFolder, tmp_path: Path) -> None:
    assert run(["doctor", "--bundle", str(tmp_path / "bundle.zip")], {}) == 0
    held = read_archive(tmp_path / "bundle.zip")
    described = json.loads(held["run-1/run.json"])
    assert described["plan"]["target"] == "[model]"
    settings = {one["flag"]: one["value"] for one in described["plan"]["settings"]}
    assert (settings["--max-model-len"], settings["--model"]) == ("4096", "[text]")
    assert json.loads(held["environment.json"])["VLLM_CPU_KVCACHE_SPACE"] == "4"
    assert json.loads(held["run-1/requests.json"])["answers"] == {"200": 1}
    log = held["run-1/engine.log"]
    assert "'max_model_len': 1024" in log
    assert 'File "pydantic/main.py", line 803, in model_validate' in log
    assert re.search(r"\[core\.py:812\] ValueError$", log, re.MULTILINE)
    assert "OSError: [Errno 2] No such file or directory" in log
    # Of a log without its beginning nothing tells where the start ended.
    assert "max_model_len" not in held["run-1/engine-2.log"]


def test_a_known_failure_is_named_by_its_signature(folder: RunFolder, tmp_path: Path) -> None:
    folder.engine_log.write_bytes((EXCERPTS / "cuda-out-of-memory.log").read_bytes())
    assert run(["doctor", "--bundle", str(tmp_path / "b.zip")], {}) == 0
    found = json.loads(read_archive(tmp_path / "b.zip")["run-1/diagnosis.json"])["findings"]
    assert [one["cause"] for one in found] == ["out-of-memory"]


def test_the_list_comes_before_the_file_and_can_come_alone(
    folder: RunFolder, tmp_path: Path, capsys: Capture
) -> None:
    file = tmp_path / "bundle.zip"
    assert run(["doctor", "--bundle", str(file), "--dry-run"], {}) == 0
    shown = capsys.readouterr().out
    assert "run-1/engine.log" in shown
    assert '"max_model_len"' not in shown
    assert "'max_model_len': 1024" in shown
    assert not file.exists()
    assert run(["doctor", folder.path.name[:6], "--bundle", str(file), "--json"], {}) == 0
    listed = BundleList.model_validate_json(capsys.readouterr().out)
    assert {one.name: one.size_bytes for one in listed.files} == {
        name: len(text.encode()) for name, text in read_archive(file).items()
    }


def test_a_file_that_is_there_is_not_replaced(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "kept").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    for name in ("kept", "link", "no/such/folder"):
        assert run(["doctor", "--bundle", str(tmp_path / name)], {}) == 1
        assert "hint:" in capsys.readouterr().err
    assert (tmp_path / "kept").read_text() == "mine"
    assert not (tmp_path / "elsewhere").exists()
    assert run(["doctor", "--dry-run"], {}) == 2
