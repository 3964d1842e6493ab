"""`fleet init`, `keys`, `doctor` and the load balancer in `up` and `stop`, without machines."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509

from slipstream import __version__
from slipstream.cli.main import run
from slipstream.fleet.machines.commands import CommandResult
from slipstream.fleet.trust import BALANCER, MACHINE, MACHINE_DAYS, DeliveryList, read_authority
from slipstream.serving.access.keys import make_key
from tests.unit.cli.fleet.site import NUMBERS, Site, bring_up, make_replicas
from tests.unit.fleet.far_machines import NOW, say

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    return make_replicas(tmp_path, monkeypatch)


def list_names(pem: bytes) -> set[str]:
    found = x509.load_pem_x509_certificate(pem).extensions
    return {
        str(one.value) for one in found.get_extension_for_class(x509.SubjectAlternativeName).value
    }


def test_init_gives_every_machine_a_certificate_and_the_keys_and_keeps_its_own_key(
    site: Site, tmp_path: Path, capsys: Capture
) -> None:
    assert run(["fleet", "init", "--json", "--balancer-name", "llm.example.org"], {}) == 0
    told = DeliveryList.model_validate_json(capsys.readouterr().out)
    assert {one.machine: one.keys for one in told.deliveries} == dict.fromkeys(NUMBERS, 1)
    for machine in NUMBERS:
        certificate = x509.load_pem_x509_certificate(site.read(machine, "tls/machine.pem") or b"")
        assert machine in certificate.subject.rfc4514_string()
        assert (
            site.read(machine, "tls/ca.pem")
            == (tmp_path / "lab-authority/authority.pem").read_bytes()
        )
        assert site.read(machine, "keys.json") == (tmp_path / "keys.json").read_bytes()
    names = list_names(site.read("one", "tls/balancer.pem") or b"")
    assert {"llm.example.org", "10.0.0.1", "10.1.0.1"} <= names
    assert not any("/" in name for name in names)
    assert site.read("two", "tls/balancer.pem") is None
    private = (tmp_path / "lab-authority" / "authority.key").read_bytes()
    assert private not in site.far.files.values()


def test_init_again_changes_nothing_until_a_certificate_has_to_be_renewed(
    site: Site, capsys: Capture
) -> None:
    assert run(["fleet", "init", "--balancer-name", "llm.example.org"], {}) == 0
    before = dict(site.far.files)
    assert run(["fleet", "init"], {}) == 0
    assert site.far.files == before
    site.far.files["two", f"{site.fleet.folder}/tls/machine.pem"] = b"damaged"
    capsys.readouterr()
    assert run(["fleet", "init"], {}) == 0
    shown = capsys.readouterr().out
    assert "two    new certificate: it has no certificate of this authority; 1 keys" in shown
    changed = {name for name, content in site.far.files.items() if before[name] != content}
    assert {name.rpartition("/")[2] for _, name in changed} == {"machine.pem", "machine.pem.key"}


def test_a_machine_gets_no_name_of_another_by_showing_its_certificate(
    site: Site, capsys: Capture
) -> None:
    assert run(["fleet", "init", "--balancer-name", "llm.example.org"], {}) == 0
    files, folder = site.far.files, f"{site.fleet.folder}/tls"
    files["two", f"{folder}/machine.pem"] = files["one", f"{folder}/balancer.pem"]
    files["one", f"{folder}/balancer.pem"] = files["three", f"{folder}/machine.pem"]
    assert run(["fleet", "init"], {}) == 0
    names = {
        machine: list_names(files[machine, f"{folder}/{file}"])
        for machine, file in (("two", "machine.pem"), ("one", "balancer.pem"))
    }
    assert not names["two"] & {"one", "three", "llm.example.org", "10.0.0.1"}
    assert not names["one"] & {"two", "three"}
    assert {"two"} <= names["two"]
    assert {"one", "10.0.0.1"} <= names["one"]


def test_up_without_certificates_starts_nothing(site: Site, capsys: Capture) -> None:
    assert run(["fleet", "up"], {}) == 1
    told = capsys.readouterr().err
    assert "one, three, two: no certificate of the fleet's authority" in told
    assert "slipstream fleet init" in told
    assert not any(line.startswith("serve") for line in site.log)


def test_up_starts_gates_that_want_certificates_and_then_the_load_balancer(
    site: Site, capsys: Capture
) -> None:
    assert run(["fleet", "init"], {}) == 0
    site.log.clear()
    assert run(["fleet", "up"], {}) == 0
    assert sorted(site.log[:3]) == [
        "serve one 512 True",
        "serve three 512 True",
        "serve two 512 True",
    ]
    assert site.log[3:] == ["balancer keys", "balancer start"]
    assert b"frontend clients" in (site.read("one", "balancer/haproxy.cfg") or b"")


def test_stop_closes_groups_first_and_ends_the_load_balancer_last(
    site: Site, capsys: Capture
) -> None:
    bring_up(site, capsys)
    assert run(["fleet", "stop"], {}) == 0
    stopped = [at for at, line in enumerate(site.log) if line.startswith("stop")]
    closed = [site.log.index(f"balancer close {group}") for group in site.fleet.groups]
    assert max(closed) < min(stopped)
    assert site.log[-1] == "balancer stop"


def test_what_was_closed_for_a_stop_is_opened_whatever_else_fails(
    site: Site, capsys: Capture
) -> None:
    bring_up(site, capsys)

    def reply(machine: str, words: list[str], stdin: bytes | None) -> CommandResult:
        if words == ["BalancerRequest"] and b'"group":"b"' in (stdin or b""):
            return say("", 1, b"error: the load balancer knows no group b")
        return site.reply(machine, words, stdin)

    site.far.reply = reply
    assert run(["fleet", "stop", "a", "b"], {}) == 0
    assert site.states["a"] == "open"
    assert [line for line in site.log if "stop" in line] == ["stop one", "stop two"]


def test_keys_go_to_every_gate_and_the_load_balancer(
    site: Site, tmp_path: Path, capsys: Capture
) -> None:
    bring_up(site, capsys)
    make_key(tmp_path / "keys.json", "bob", now=NOW, expires=None)
    assert run(["fleet", "keys"], {}) == 0
    told = capsys.readouterr().out
    assert told.split() == ["one", "2", "keys", "two", "2", "keys", "three", "2", "keys"]
    assert {site.read(machine, "keys.json") for machine in NUMBERS} == {
        (tmp_path / "keys.json").read_bytes()
    }
    assert site.log == ["balancer keys"]


def test_doctor_finds_a_group_that_was_left_closed(site: Site, capsys: Capture) -> None:
    bring_up(site, capsys)
    site.states["b"] = "closed"
    assert run(["fleet", "doctor"], {}) == 1
    told = capsys.readouterr().out
    assert "it sends b no requests" in told
    assert "slipstream fleet roll --resume" in told


def edit(old: str, new: str) -> None:
    file = Path("fleet.toml")
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))


def test_up_says_what_runs_otherwise_and_balances_it_where_it_is(
    site: Site, capsys: Capture
) -> None:
    bring_up(site, capsys)
    edit("[groups.b]\n", "[groups.b]\nport = 8005\n")
    assert run(["fleet", "stop", "c"], {}) == 0
    assert run(["fleet", "up"], {}) == 0
    told = capsys.readouterr().out
    assert "b runs another plan than the fleet's file sets, --port 8000 -> 8005" in told
    assert "a runs another plan" not in told
    assert site.is_reached("b")
    assert not any(line.startswith(("stop two", "serve two")) for line in site.log)


EVERY = (MACHINE, BALANCER)


def end_certificates(site: Site, tmp_path: Path, days: int, files: tuple[str, ...] = EVERY) -> None:
    """Have certificates of the machines end in so many days."""
    authority = read_authority(tmp_path / "lab-authority")
    assert authority is not None
    began = datetime.now(UTC) - timedelta(days=MACHINE_DAYS - days, minutes=-5)
    for (machine, path), content in site.far.files.items():
        if path.endswith(tuple(f"tls/{file}" for file in files)):
            names = authority.list_names(content)
            site.far.files[machine, path] = authority.issue(names, began).certificate


@pytest.mark.parametrize(("files", "ended"), [(EVERY, 3), ((BALANCER,), 1)])
@pytest.mark.parametrize(("days", "verdict"), [(300, None), (30, "warning"), (-5, "fault")])
def test_status_and_doctor_say_when_certificates_end(
    days: int,
    verdict: str | None,
    files: tuple[str, ...],
    ended: int,
    site: Site,
    tmp_path: Path,
    capsys: Capture,
) -> None:
    bring_up(site, capsys)
    end_certificates(site, tmp_path, days, files)
    assert run(["fleet", "status"], {}) == 0
    told = capsys.readouterr().out
    assert told.count(f" {days} days ") == ended
    assert told.count(": a certificate expires on ") == (0 if verdict is None else ended)
    assert run(["fleet", "doctor"], {}) == (1 if verdict == "fault" else 0)
    assert capsys.readouterr().out.count("(certificate)") == (0 if verdict is None else ended)


@pytest.mark.parametrize("files", [EVERY, (BALANCER,)])
@pytest.mark.parametrize("verb", ["up", "roll"])
def test_up_and_roll_renew_certificates_that_end_soon(
    verb: str, files: tuple[str, ...], site: Site, tmp_path: Path, capsys: Capture
) -> None:
    bring_up(site, capsys)
    end_certificates(site, tmp_path, 30, files)
    assert run(["fleet", verb], {}) == 0
    assert "balancer reload" in site.log
    capsys.readouterr()
    run(["fleet", "status"], {})
    assert capsys.readouterr().out.count(f" {MACHINE_DAYS - 1} days ") == 3


def test_a_fleet_is_upgraded_by_installing_and_rolling(site: Site, capsys: Capture) -> None:
    """Every machine gets this version, then one group after the other is started with it."""
    bring_up(site, capsys)
    versions = dict.fromkeys(NUMBERS, "0.0.9")

    def reply(machine: str, words: list[str], stdin: bytes | None) -> CommandResult:
        if words == ["--version"]:
            return say(f"slipstream {versions[machine]}\n")
        if "pip" in words:
            versions[machine] = __version__
        if words[0] == "sh" and "-m venv" in words[2]:
            return say("")
        return site.reply(machine, words, stdin)

    site.far.reply = reply
    assert run(["fleet", "roll", "--install"], {}) == 0
    assert set(versions.values()) == {__version__}
    started = [line.split()[1] for line in site.log if line.startswith("serve")]
    assert started == ["one", "two", "three"]
    assert set(site.states.values()) == {"open"}


def test_doctor_says_if_nobody_starts_the_load_balancer_after_a_reboot(
    site: Site, capsys: Capture
) -> None:
    bring_up(site, capsys)
    site.answers["BalancerRequest"] = say('{"starts_at_boot": false}')
    assert run(["fleet", "doctor"], {}) == 0
    assert "it does not start after a reboot" in capsys.readouterr().out
