"""`fleet init`, `keys`, `doctor` and the load balancer in `up` and `stop`, without machines."""

from pathlib import Path

import pytest
from cryptography import x509

from slipstream.cli.main import run
from slipstream.fleet.machines.commands import Answer
from slipstream.fleet.trust import DeliveryList
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
    assert run(["fleet", "init", "--json", "--front-name", "llm.example.org"], {}) == 0
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
    names = list_names(site.read("one", "tls/front.pem") or b"")
    assert {"llm.example.org", "10.0.0.1", "10.1.0.1"} <= names
    assert not any("/" in name for name in names)
    assert site.read("two", "tls/front.pem") is None
    private = (tmp_path / "lab-authority" / "authority.key").read_bytes()
    assert private not in site.far.files.values()


def test_init_again_changes_nothing_until_a_certificate_has_to_be_renewed(
    site: Site, capsys: Capture
) -> None:
    assert run(["fleet", "init", "--front-name", "llm.example.org"], {}) == 0
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
    assert run(["fleet", "init", "--front-name", "llm.example.org"], {}) == 0
    files, folder = site.far.files, f"{site.fleet.folder}/tls"
    files["two", f"{folder}/machine.pem"] = files["one", f"{folder}/front.pem"]
    files["one", f"{folder}/front.pem"] = files["three", f"{folder}/machine.pem"]
    assert run(["fleet", "init"], {}) == 0
    names = {
        machine: list_names(files[machine, f"{folder}/{file}"])
        for machine, file in (("two", "machine.pem"), ("one", "front.pem"))
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

    def reply(machine: str, words: list[str], stdin: bytes | None) -> Answer:
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
