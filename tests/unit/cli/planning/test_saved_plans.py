"""A saved plan on the machine that it was made for, and on another one."""

import json
import os
import shlex
from pathlib import Path
from typing import Any

import pytest

from slipstream.cli.main import run
from slipstream.engines.vllm_tables import read_arguments
from slipstream.hardware import Host, load_host
from slipstream.planning import LaunchPlan, make_options
from slipstream.planning.group import Member
from slipstream.planning.powers import is_power, list_powers
from slipstream.planning.settings import Choice, EngineSettings
from slipstream.planning.spreading import spread_plan
from tests.unit.cli.pairs import write_pair

Capture = pytest.CaptureFixture[str]


def plan(capsys: Capture, *words: str) -> LaunchPlan:
    run(["plan", "--json", *words], os.environ)
    return LaunchPlan.model_validate_json(capsys.readouterr().out)


def change_accelerator(host: Host, **changes: Any) -> Host:
    first = host.accelerators[0].model_copy(update=changes)
    return host.model_copy(update={"accelerators": (first, *host.accelerators[1:])})


@pytest.mark.parametrize(
    ("machine", "words", "here", "fits"),
    [
        ("gb10", (), load_host("gb10"), True),
        ("gb10", (), load_host("h100"), False),
        ("gb10", (), load_host("cpu-server"), False),
        ("cpu-server", (), load_host("gb10"), False),
        ("cpu-server", (), load_host("cpu-server"), True),
        ("h100", (), change_accelerator(load_host("h100"), memory_available_bytes=9 << 30), True),
        ("h100", (), change_accelerator(load_host("h100"), memory_total_bytes=79 << 30), True),
        ("h100", (), change_accelerator(load_host("h100"), memory_total_bytes=40 << 30), False),
        ("h100", (), change_accelerator(load_host("h100"), compute_capability="8.0"), False),
        ("h100", (), change_accelerator(load_host("h100"), name="NVIDIA Other"), False),
        ("h100", ("--", "-tp", "2"), load_host("h100"), False),
    ],
)
def test_a_plan_fits_the_kind_of_machine_that_it_was_made_for(
    machine: str, words: tuple[str, ...], here: Host, fits: bool, tmp_path: Path, capsys: Capture
) -> None:
    made = plan(capsys, *write_pair(tmp_path), "--host", machine, *words)
    assert (made.find_mismatch(here) is None) == fits


def test_a_plan_for_fewer_cpus_or_more_memory_is_for_another_machine(
    tmp_path: Path, capsys: Capture
) -> None:
    host = load_host("cpu-server")
    made = plan(capsys, *write_pair(tmp_path), "--host", "cpu-server")
    fewer = host.processor.model_copy(update={"usable_threads": 1})
    less = host.memory.model_copy(update={"total_bytes": 2 << 30})
    assert made.find_mismatch(host.model_copy(update={"processor": fewer})) is not None
    assert made.find_mismatch(host.model_copy(update={"memory": less})) is not None


def test_elsewhere_a_saved_plan_is_made_anew_from_its_options(
    tmp_path: Path, capsys: Capture
) -> None:
    saved = tmp_path / "gb10.json"
    words = ("--host", "gb10", "--context", "1024", "--", "--seed", "7")
    made = plan(capsys, *write_pair(tmp_path, weights=True), *words)
    saved.write_text(made.change(port=Choice(8123, "user", "requested")).to_json())
    assert run(["serve", str(saved), "--dry-run", "--json"], os.environ) == 0
    served = LaunchPlan.model_validate_json(capsys.readouterr().out)
    assert served.machine == "cpu"
    assert served.settings.memory_utilization is None
    assert served.options == made.options
    assert (served.context, served.settings.rest["--seed"].value) == (1024, 7)
    assert served.settings.port is not None
    assert served.settings.port.value == 8123
    assert any(str(saved) in note for note in served.notes)


@pytest.mark.parametrize("verb", ["compare", "tune", "verify", "serve"])
def test_a_tuned_plan_is_refused_elsewhere_with_the_command_that_plans_it(
    verb: str, tmp_path: Path, capsys: Capture
) -> None:
    saved = tmp_path / "tuned.json"
    made = plan(capsys, *write_pair(tmp_path), "--host", "gb10", "--context", "1024")
    tuned = made.change(eager=Choice(True, "measured", "faster"))
    saved.write_text(tuned.to_json())
    assert run([verb, str(saved)], os.environ) == 1
    hint = capsys.readouterr().err.split("hint: ")[1]
    assert plan(capsys, *shlex.split(hint)[2:]).options.engine.list_arguments() == (
        made.options.engine.list_arguments()
    )


def test_deployments_and_units_take_a_plan_for_any_machine(tmp_path: Path, capsys: Capture) -> None:
    saved = tmp_path / "gb10.json"
    saved.write_text(plan(capsys, "Qwen/Qwen3-8B", "--host", "gb10").to_json())
    assert run(["deploy", "kubernetes", str(saved), "--json"], os.environ) == 0
    assert '"gb10"' in capsys.readouterr().out
    assert run(["serve", str(saved), "--unit"], os.environ) == 0
    assert str(saved) in capsys.readouterr().out


def test_options_are_the_words_that_they_are_read_from() -> None:
    words = ("--max-num-seqs", "4", "--seed", "7", "--spec-tokens", "3")
    options = make_options(goal="agent", thinking="on", images=True, drafter="a/b", engine=words)
    shown = options.list_words()
    assert shown[: shown.index("--")] == ["--goal", "agent", "--thinking", "on", "--images"]
    read = make_options(engine=shown[shown.index("--") + 1 :]).engine
    assert read.list_arguments() == options.engine.list_arguments()
    assert make_options().list_words() == []


@pytest.mark.parametrize(("made_for", "fits"), [("mi300x", True), ("h100", False)])
def test_a_plan_for_an_amd_gpu_is_served_where_there_is_one(
    made_for: str, fits: bool, tmp_path: Path, capsys: Capture
) -> None:
    made = plan(capsys, *write_pair(tmp_path), "--host", made_for)
    here = load_host("cpu-server")
    assert made.find_mismatch(here) is not None
    unread = here.model_copy(update={"unread_gpu": True})
    assert (made.find_mismatch(unread) is None) is fits


POWERS = {
    "LD_PRELOAD": "/tmp/evil.so",
    "PYTHONPATH": "/tmp",
    "VLLM_PLUGINS": "evil",
    "NCCL_NET_PLUGIN": "/tmp/evil.so",
}
ARGUMENTS = {
    "--trust-remote-code": True,
    "--middleware": ["evil.Middleware"],
    "--tool-parser-plugin": "/tmp/evil.py",
    "--logits-processors": ["evil.Processor"],
    "--worker-cls": "evil.Worker",
    "--chat-template": "/etc/passwd",
    "--load-format": "pt",
    "--structured-outputs-config": {"reasoning_parser_plugin": "/tmp/evil.py"},
    "--compilation-config": {"inductor_passes": {"post_grad": "evil.optimize"}},
    "--distributed-executor-backend": "evil.Executor",
    "--tool-server": "evil:80",
    "--otlp-traces-endpoint": "http://evil",
    "--enable-log-requests": True,
}


TEXTS = ("text", "json", "config", "json-or-text", "name")
# What a plan may set to any text without a word, each read as data.
FREE = {
    *("--model", "--revision", "--tokenizer-revision", "--served-model-name", "--host"),
    *("--master-addr", "--data-parallel-address", "--generation-config", "--response-role"),
    *("--override-generation-config", "--default-chat-template-kwargs", "--device-ids"),
    *("--limit-mm-per-prompt", "--kv-cache-dtype-skip-layers"),
}


def say_default(value: Any) -> dict[str, Any]:
    """A plan's writer may claim any source."""
    return {"value": value, "source": "default", "because": "x"}


@pytest.mark.parametrize("name", [*POWERS, *ARGUMENTS])
def test_a_plan_that_could_run_code_is_refused_until_its_user_names_it(
    name: str, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = load_host("cpu-server")
    monkeypatch.setattr("slipstream.cli.serving.serve.read_host", lambda _: host)
    made = plan(capsys, *write_pair(tmp_path), "--host", "cpu-server")
    document = json.loads(made.to_json())
    if name in POWERS:
        document["environment"][name] = say_default(POWERS[name])
    elif field := {flag: field for field, flag in EngineSettings.list_names().items()}.get(name):
        document["settings"][field] = say_default(ARGUMENTS[name])
    else:
        document["settings"].setdefault("rest", {})[name] = say_default(ARGUMENTS[name])
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(document))
    assert run(["serve", str(file), "--dry-run"], os.environ) == 1
    error = capsys.readouterr().err
    assert f"would set {name}," in error
    assert f"--allow {name.removeprefix('--')}" in error
    run(["serve", str(file), "--dry-run", "--allow", name.removeprefix("--")], os.environ)
    assert "would set" not in capsys.readouterr().err


def test_no_argument_of_vllm_takes_a_file_or_a_module_without_a_word() -> None:
    """Those with numbers and choices cannot; `is_power` is asked of all the others."""
    rows = read_arguments()
    of_text = {name for name, row in rows.items() if row["kind"] in TEXTS and "choices" not in row}
    assert len(of_text) > 90
    for evil in ("/tmp/evil.py", "evil.Class", {"any": ["/tmp/evil.py"]}, {"load_format": "pt"}):
        assert {name for name in of_text if not is_power(name, evil)} == FREE


@pytest.mark.parametrize(
    "words", ["serve", "compare", "compare own.json --against", "tune", "verify"]
)
def test_what_a_plans_options_ask_for_has_to_be_named_where_it_is_planned_anew(
    words: str, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    pair = (*write_pair(tmp_path), "--host", "gb10")
    Path("own.json").write_text(plan(capsys, *pair).to_json())
    made = plan(capsys, *pair, "--", "--trust-remote-code")
    hidden = made.change(trust_remote_code=None)
    assert list_powers(hidden, None) == ()
    Path("plan.json").write_text(hidden.to_json())
    command = [*words.split(), "plan.json"]
    assert run(command, os.environ) == 1
    assert "plan.json would set --trust-remote-code," in capsys.readouterr().err
    # There are no weights, so it ends soon.
    assert run([*command, "--allow", "trust-remote-code"], os.environ) == 1
    assert "would set" not in capsys.readouterr().err


def test_a_plan_of_ones_own_needs_no_word(tmp_path: Path, capsys: Capture) -> None:
    pair = write_pair(tmp_path)
    for machine in ("gb10", "h100", "cpu-server"):
        made = plan(capsys, *pair, "--host", machine)
        assert list_powers(made, load_host(machine)) == ()
    addresses = {"a": "10.0.0.1", "b": "10.0.0.2"}
    members = [Member(name=a, address=b, interface="eth0") for a, b in addresses.items()]
    made = plan(capsys, *pair, "--host", "gb10-linked-1", "--", "--nnodes", "2", "-tp", "2")
    for rank in spread_plan(made, "a", members, secret_file="secret"):
        assert "GLOO_SOCKET_IFNAME" in rank.environment
        assert list_powers(rank, None) == ()
