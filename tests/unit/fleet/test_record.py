"""A fleet's file is read whole, and nothing in it can become more than a name elsewhere."""

import re
from pathlib import Path

import pytest

from slipstream.errors import InvalidInputError
from slipstream.fleet.record import Fleet, read_fleet

LAB = """
name = "lab"
[model]
target = "Qwen/Qwen3.5-27B"
drafter = "z-lab/Qwen3.5-27B-DFlash"
[options]
context = 32768
users = 4
engine = ["--enforce-eager"]
[machines.spark-1]
[machines.spark-2]
ssh = "owner@10.0.0.2:2222"
address = "10.0.0.2"
[machines.spark-3]
[groups.a]
machines = ["spark-1", "spark-2"]
[groups.b]
machines = ["spark-3"]
speculation = false
[groups.b.options]
users = 16
[balancer]
machine = "spark-1"
[keys]
file = "keys.json"
"""


def read(folder: Path, text: str) -> Fleet:
    (folder / "fleet.toml").write_text(text)
    return read_fleet(folder / "fleet.toml")


def test_a_fleet_is_read_with_its_defaults_and_whole_paths(tmp_path: Path) -> None:
    fleet = read(tmp_path, LAB)
    assert fleet.find_login("spark-1") == ("spark-1", None)
    assert fleet.find_login("spark-2") == ("owner@10.0.0.2", "2222")
    assert fleet.balancer is not None
    assert (fleet.balancer.port, fleet.balancer.policy) == (8300, "leastconn")
    assert fleet.keys is not None
    assert fleet.keys.file == tmp_path / "keys.json"
    assert fleet.first_machine == "spark-1"


@pytest.mark.parametrize(
    ("ssh", "shown"),
    [
        (None, "ssh -F {config} one uptime"),
        ("me@10.0.0.9:2222", "ssh -F {config} -p 2222 me@10.0.0.9 uptime"),
        ("me@[fd00::1]:22", "ssh -F {config} -p 22 me@fd00::1 uptime"),
        ("[fd00::1]", "ssh -F {config} fd00::1 uptime"),
    ],
)
def test_a_hint_is_a_command_that_ssh_takes(ssh: str | None, shown: str, tmp_path: Path) -> None:
    machine = f'ssh = "{ssh}"' if ssh else ""
    text = 'name = "lab"\nssh_config = "my config"\n[model]\ntarget = "m"\n'
    fleet = read(tmp_path, f'{text}[machines.one]\n{machine}\n[groups.a]\nmachines = ["one"]\n')
    config = f"'{tmp_path}/my config'"
    assert fleet.hint_ssh("one", "uptime") == shown.format(config=config)


def test_a_groups_options_override_the_fleets_and_a_plain_group_has_no_drafter(
    tmp_path: Path,
) -> None:
    fleet = read(tmp_path, LAB)
    drafted, plain = fleet.find_options("a"), fleet.find_options("b")
    values = [
        {flag: choice.value for flag, choice in options.engine.list_choices()}
        for options in (drafted, plain)
    ]
    drafter = drafted.engine.drafting.drafter
    assert drafter is not None
    assert drafter.value == "z-lab/Qwen3.5-27B-DFlash"
    assert (values[0]["--max-num-seqs"], values[0]["--enforce-eager"]) == (4, True)
    assert (plain.engine.speculation, plain.speculates) == (None, False)
    assert (values[1]["--max-num-seqs"], values[1]["--max-model-len"]) == (16, 32768)
    again = Fleet.model_validate_json(fleet.to_json())
    assert (again, again.find_options("b")) == (fleet, plain)


def test_misspelt_keys_are_all_named_with_those_that_were_meant(tmp_path: Path) -> None:
    text = LAB.replace("address", "adress").replace("users = 16", "user = 16")
    with pytest.raises(InvalidInputError, match="has invalid keys or values") as caught:
        read(tmp_path, text)
    shown = "\n".join(caught.value.details)
    assert "machines.spark-2.adress: Extra inputs are not permitted; did you mean address?" in shown
    assert "groups.b.options.user: Extra inputs are not permitted; did you mean users?" in shown


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        (
            'machines = ["spark-3"]',
            'machines = ["spark-2"]',
            "spark-2: a machine may be in one group",
        ),
        ('machines = ["spark-3"]', 'machines = ["spark-9"]', r"no table \[machines.spark-9\]"),
        ('machine = "spark-1"', 'machine = "desk"', r"no table \[machines.desk\]"),
        ('name = "lab"', 'name = "../lab"', "a name has"),
        ('name = "lab"', 'name = "la\\nb"', "a name has"),
        ('name = "lab"', 'name = "venv"', "choose another name"),
        ('name = "lab"', 'name = "wheels"', "choose another name"),
        ("[machines.spark-3]", '[machines."-oProxyCommand=x"]', "a name has"),
        ("owner@10.0.0.2:2222", "-oProxyCommand=touch", "neither an SSH name"),
        ("owner@10.0.0.2:2222", "-F@host", "neither an SSH name"),
        ("owner@10.0.0.2:2222", "host; id", "neither an SSH name"),
        ("owner@10.0.0.2:2222", "host:65536", "neither an SSH name"),
        ("owner@10.0.0.2:2222", "host:0", "neither an SSH name"),
        ('address = "10.0.0.2"', 'address = "spark"', "does not appear to be an IPv4"),
        ('address = "10.0.0.2"', 'python = "$(id)"', "not a plain path"),
    ],
)
def test_what_would_be_more_than_a_name_elsewhere_is_refused(
    tmp_path: Path, old: str, new: str, what: str
) -> None:
    assert old in LAB
    with pytest.raises(InvalidInputError) as caught:
        read(tmp_path, LAB.replace(old, new))
    assert re.search(what, "\n".join(caught.value.details))
