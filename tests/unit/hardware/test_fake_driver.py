"""`slipstream probe --json` on the fake NVML: every machine, MIG, and all forms of the variable.

All cases run in one process, through the command's own entry, with an environment each.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from slipstream.hardware import Host, list_machines, load_host
from slipstream.planning import make_options, make_plan
from tests.judge.build import build_fakes
from tests.unit.planning.pieces import DRAFTER, TARGET

VARIABLE = "CUDA_VISIBLE_DEVICES"
MIG = {"FAKE_GPU": "h100", "FAKE_GPU_MIG": "40448,20096"}
SLICES = [f"MIG-a000000{at}-fa4e-4e1e-8000-00000000000{at}" for at in range(2)]
UUIDS = [f"GPU-a000000{at}-fa4e-4e1e-8000-00000000000{at}" for at in range(3)]
PROBED = [name for name in list_machines() if load_host(name).accelerators and "linked" not in name]
NVIDIA = [name for name in PROBED if not load_host(name).on_rocm]
# What the variable says, the indices that CUDA shows of three, and a part of the remark.
FORMS: list[tuple[str | None, list[int], str]] = [
    (None, [0, 1, 2], ""),
    ("1", [1], "shows 1 of 3 accelerators: 1"),
    ("2,0", [2, 0], "shows 2 of 3 accelerators: 2, 0"),
    (" 2 , 1 ", [2, 1], "shows 2 of 3"),
    (UUIDS[2], [2], "shows 1 of 3 accelerators: 2"),
    ("GPU-a0000002,GPU-a0000000", [2, 0], "shows 2 of 3 accelerators: 2, 0"),
    ("", [], "hides every accelerator (3 here)"),
    ("-1", [], "hides every accelerator (3 here)"),
    ("none", [], "names none, which does not exist"),
    ("1,7,0", [1], "names 7, which does not exist"),
    ("1,-1,0", [1], "shows 1 of 3"),
    ("0,GPU-dd", [0], "names GPU-dd, which does not exist"),
    ("GPU-a", [], "names GPU-a, which does not exist"),
    ("1,1", [], "names 1 twice"),
    ("9", [], "names 9, which does not exist"),
]
CASES: dict[str, dict[str, str]] = {
    "none": {},
    "off": {"FAKE_GPU": "h100", "FAKE_GPU_OFF": "1"},
    "two": {"FAKE_GPU": "h100:2"},
    "eight": {"FAKE_GPU": "h100:8"},
    "pcie": {"FAKE_GPU": "rtx-3090:2"},
    "unequal": {"FAKE_GPU": "rtx-5090,rtx-3090"},
    "ordered": {"FAKE_GPU": "rtx-5090,rtx-3090", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"},
    "mig": MIG,
    "mig-beside": MIG | {"FAKE_GPU": "h100:2"},
    "mig-hidden": MIG | {"FAKE_GPU": "h100:2", VARIABLE: "1"},
    "mig-index": MIG | {VARIABLE: "0"},
    "mig-uuid": MIG | {VARIABLE: SLICES[1]},
    "mig-list": MIG | {VARIABLE: ",".join(reversed(SLICES))},
    "mig-unknown": MIG | {VARIABLE: "MIG-dd"},
    "mig-empty": {"FAKE_GPU": "h100", "FAKE_GPU_MIG": "0"},
    "used": {"FAKE_GPU": "rtx-5090", "FAKE_GPU_USERS": "7:300,4711:29000"},
    "one": {"FAKE_GPU": "h100"},
    "all": {"FAKE_GPU": ",".join(NVIDIA)},
    **{
        f"form {value}": {"FAKE_GPU": "h100:3"} | ({} if value is None else {VARIABLE: value})
        for value, _, _ in FORMS
    },
}
PROBE_ALL = """
import io, json, os, sys
from contextlib import redirect_stdout
from slipstream.cli.main import run
for name, variables in json.load(sys.stdin).items():
    os.environ.update(variables)
    with redirect_stdout(io.StringIO()) as shown:
        code = run(["probe", "--json"], os.environ)
    print(json.dumps([name, code, json.loads(shown.getvalue())]))
    for variable in variables:
        del os.environ[variable]
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = build_fakes(tmp_path_factory.mktemp("fakes"))
    kept = {name: value for name, value in os.environ.items() if not name.startswith("CUDA_")}
    return kept | {"LD_LIBRARY_PATH": str(folder)}


@pytest.fixture(scope="module")
def hosts(environment: dict[str, str]) -> dict[str, Host]:
    done = subprocess.run(
        (sys.executable, "-c", PROBE_ALL),
        input=json.dumps(CASES),
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(name, code) for name, code, _ in rows] == [(name, 0) for name in CASES]
    return {name: Host.model_validate(host) for name, _, host in rows}


def test_the_command_itself_finds_the_driver(environment: dict[str, str]) -> None:
    command = (str(Path(sys.executable).parent / "slipstream"), "probe", "--json")
    done = subprocess.run(
        command, env=environment | {"FAKE_GPU": "gb10"}, capture_output=True, check=True
    )
    host = Host.model_validate_json(done.stdout)
    (one,) = host.accelerators
    assert (one.name, one.memory_kind) == ("NVIDIA GB10", "unified")
    assert one.memory_total_bytes == host.memory.total_bytes


@pytest.mark.parametrize("name", NVIDIA)
def test_an_accelerator_is_read_as_it_ships(name: str, hosts: dict[str, Host]) -> None:
    memory, index = hosts["all"].memory, NVIDIA.index(name)
    (expected,) = load_host(name).accelerators
    changes: dict[str, object] = {"index": index, "link": "pcie"}
    if expected.memory_kind == "unified":
        changes["memory_total_bytes"] = memory.total_bytes
        changes["memory_available_bytes"] = memory.available_bytes
    assert hosts["all"].accelerators[index] == expected.model_copy(update=changes)


def test_one_gpu_has_no_link_and_nothing_to_remark(hosts: dict[str, Host]) -> None:
    assert hosts["one"].accelerators == load_host("h100").accelerators
    assert hosts["one"].remarks == ()
    assert hosts["one"].software.cuda_driver == "13.0"


@pytest.mark.parametrize(("value", "indices", "remark"), FORMS)
def test_cuda_visible_devices_is_read_as_cuda_reads_it(
    value: str | None, indices: list[int], remark: str, hosts: dict[str, Host]
) -> None:
    host = hosts[f"form {value}"]
    assert [one.index for one in host.accelerators] == indices
    assert bool(host.remarks) is (value is not None)
    assert remark in "".join(host.remarks)
    assert indices or host.remarks[-1].endswith("hides every accelerator (3 here)")


def test_no_device_and_no_driver_are_remarks_at_most(hosts: dict[str, Host]) -> None:
    assert (hosts["none"].accelerators, hosts["none"].remarks) == ((), ())
    assert hosts["off"].accelerators == ()
    assert "Driver Not Loaded" in hosts["off"].remarks[0]
    assert hosts["off"].software.nvidia_driver is None


@pytest.mark.parametrize(
    ("case", "links"), [("two", ["nvlink"] * 2), ("eight", ["nvlink"] * 8), ("pcie", ["pcie"] * 2)]
)
def test_several_gpus_say_how_they_are_linked(
    case: str, links: list[str], hosts: dict[str, Host]
) -> None:
    assert [one.link for one in hosts[case].accelerators] == links
    assert [one.index for one in hosts[case].accelerators] == list(range(len(links)))


def test_unequal_gpus_may_be_numbered_otherwise_by_cuda(hosts: dict[str, Host]) -> None:
    assert "CUDA_DEVICE_ORDER=PCI_BUS_ID" in hosts["unequal"].remarks[0]
    assert hosts["ordered"].remarks == ()
    assert len({one.memory_total_bytes for one in hosts["unequal"].accelerators}) == 2


@pytest.mark.parametrize(
    ("case", "mebibytes"),
    [
        ("mig", 40448),
        ("mig-beside", 40448),
        ("mig-index", 40448),
        ("mig-uuid", 20096),
        ("mig-list", 20096),
        ("mig-unknown", None),
    ],
)
def test_of_gpus_in_mig_mode_one_slice_is_seen(
    case: str, mebibytes: int | None, hosts: dict[str, Host]
) -> None:
    (one,) = hosts[case].accelerators
    assert one.is_slice
    assert one.memory_total_bytes == (mebibytes and mebibytes << 20)
    assert one.compute_capability == "9.0"
    # Of the whole GPU, and so not of the slice.
    assert (one.memory_bandwidth_bytes_per_s, one.power_limit_watts, one.link) == (None,) * 3
    assert hosts[case].remarks


def test_a_gpu_beside_one_in_mig_mode_can_be_chosen(hosts: dict[str, Host]) -> None:
    (one,) = hosts["mig-hidden"].accelerators
    assert (one.index, one.is_slice) == (1, False)


def test_mig_mode_without_a_slice_shows_nothing(hosts: dict[str, Host]) -> None:
    assert hosts["mig-empty"].accelerators == ()
    assert "nvidia-smi mig -cgi" in hosts["mig-empty"].remarks[0]


def test_who_uses_the_memory_is_listed_the_largest_first(hosts: dict[str, Host]) -> None:
    (one,) = hosts["used"].accelerators
    assert [(user.pid, user.size_bytes) for user in one.users] == [
        (4711, 29000 << 20),
        (7, 300 << 20),
    ]
    unused = load_host("rtx-5090").accelerators[0].memory_available_bytes
    assert unused is not None
    assert one.memory_available_bytes == unused - (29300 << 20)


def test_a_plan_for_a_slice_says_so_and_an_unknown_size_is_unknown(hosts: dict[str, Host]) -> None:
    known, unknown, whole = (
        make_plan(hosts[case], TARGET, DRAFTER, None, make_options())
        for case in ("mig", "mig-unknown", "one")
    )
    assert known.memory.device_bytes == 40448 << 20
    assert known.memory.unknown == ()
    assert set(hosts["mig"].remarks) <= set(known.notes)
    assert unknown.memory.device_bytes is None
    assert unknown.memory.unknown == ("memory of the accelerator",)
    assert set(hosts["mig-unknown"].remarks) <= set(unknown.notes)
    assert (known.machine, whole.machine) == (None, "h100")


def test_a_refusal_for_want_of_memory_says_who_has_it(hosts: dict[str, Host]) -> None:
    made = make_plan(hosts["used"], TARGET, DRAFTER, None, make_options())
    assert [fault.code for fault in made.refusals] == ["memory"]
    assert "pid 4711" in made.refusals[0].message
    assert "pid 7" not in made.refusals[0].message
