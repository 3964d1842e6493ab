"""The real process with the real xgrammar: hostile constraints are ended, honest ones are quick."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest

from slipstream.measuring.workloads import shipped
from slipstream.serving.access.gate_file import GateLimits
from slipstream.vllm_plugin.gate.constraints import worker
from slipstream.vllm_plugin.gate.constraints.forms import ConstraintForm, list_forms
from slipstream.vllm_plugin.gate.constraints.measuring import Unmeasured, WorkerProcess
from tests.engine.gate.corpus_of_schemas import (
    BOUNDED,
    CHEAP,
    COSTLY,
    FAULTY,
    UNSUPPORTED,
    lengths,
)
from tests.unit.vllm_plugin.gate.constraints.agent_tools import EXTRACTION, TOOL_SETS
from tests.unit.vllm_plugin.gate.constraints.vocabulary import (
    measure_all,
    measure_schemas,
    running_worker,
)
from tests.unit.vllm_plugin.gate.pieces import wait_until

pytest.importorskip("xgrammar")

Result = TypeVar("Result")
DATA = Path(shipped.__file__).with_name("data")
# An eighth of a real vocabulary has an eighth of the work.
MOST = 300
KINDS = (
    *("ten lengths in 401 bytes", "two thousand optional properties"),
    *("open beside eight hundred", "five hundred links", "a counted pattern", "a name by a bomb"),
    *("costly behind thirty references", "a length of 2**63"),
)
LOOKS_COSTLY = ("three hundred like arrays", "unions in unions", "costly in a not")
ANY = ConstraintForm("json", "json", "{}")
ENDLESS = ConstraintForm("json", "json", json.dumps(lengths(*range(1000, 1040))))


def children_of(process: int) -> list[int]:
    tasks = Path(f"/proc/{process}/task/{process}/children").read_text()
    return [int(one) for one in tasks.split()]


def is_alive(process: int) -> bool:
    """Return whether a process runs; one whose end nobody has read does not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_hostile_schemas_are_refused_by_what_they_take() -> None:
    found = measure_schemas({name: COSTLY[name] for name in KINDS}, MOST)
    assert {name: one for name, one in found.items() if one.outcome == "fits"} == {}
    assert max(one.milliseconds for one in found.values()) < 3 * MOST


def test_what_only_looks_hostile_fits_or_is_faulty() -> None:
    found = measure_schemas({**{name: BOUNDED[name] for name in LOOKS_COSTLY}, **CHEAP})
    faulty = {name for name, one in found.items() if one.outcome == "faulty"}
    assert faulty >= {*FAULTY}
    assert faulty - {*FAULTY} <= {*UNSUPPORTED}
    assert {one.outcome for one in found.values()} == {"fits", "faulty"}
    for name in faulty:
        assert ".cc" not in found[name].why
        assert len(found[name].why) <= 200


SOUND: list[dict[str, Any]] = [
    {},
    {"const": {"type": "matrix", "enum": []}},
    {"enum": [{"$ref": 5}]},
    {"type": "string", "default": {"type": None}, "examples": [{"anyOf": 1}]},
    {"properties": {"type": {"type": "string"}, "required": {}, "enum": {}}},
    {"$ref": "https://elsewhere/schema.json"},
    {"type": "object", "properties": {"next": {"$ref": "#"}}, "required": ["next"]},
    {"anyOf": [{"$ref": "#"}, {"type": "string"}]},
    {"type": "integer", "minimum": 2, "maximum": 2, "maxLength": "unread"},
]


def test_what_is_data_or_unread_is_no_fault() -> None:
    found = measure_schemas({str(one): one for one in SOUND})
    assert {name: one for name, one in found.items() if one.outcome != "fits"} == {}


def test_what_agents_and_workloads_send_fits() -> None:
    lines = (DATA / "json.jsonl").read_text().splitlines()
    forms = {str(n): json.loads(line)["json_schema"] for n, line in enumerate(lines)}
    schemas = {**forms, "extraction": EXTRACTION}
    shipped_sets = {
        name: [{"type": "function", "function": function} for function in functions]
        for name, functions in json.loads((DATA / "toolsets.json").read_text()).items()
    }
    for name, tools in {**TOOL_SETS, **shipped_sets}.items():
        (form,) = list_forms({"tools": tools, "tool_choice": "required"})
        schemas[f"tools {name}"] = json.loads(form.text)
    found = measure_schemas(schemas, GateLimits().schema_units)
    assert {name: one for name, one in found.items() if one.outcome != "fits"} == {}


OTHERS: dict[str, tuple[ConstraintForm, str]] = {
    "plain": (ConstraintForm("regex", "regex", r"[a-z]+( [a-z]+)*"), "fits"),
    "ambiguous": (ConstraintForm("regex", "regex", "(a*b*)*c"), "faulty"),
    "unreadable": (ConstraintForm("regex", "regex", "("), "faulty"),
    "choices": (ConstraintForm("choice", "choice", json.dumps(["a", 'b "\\', ""])), "fits"),
    "no choice": (ConstraintForm("choice", "choice", "[]"), "faulty"),
    "numbers": (ConstraintForm("choice", "choice", "[1, 2]"), "faulty"),
    "no JSON": (ConstraintForm("json", "json", "{"), "faulty"),
    "too deep": (ConstraintForm("json", "json", "[" * 60_000), "faulty"),
    "ambiguous within": (
        ConstraintForm("json", "json", '{"items": [{"pattern": "(a+)+b"}]}'),
        "faulty",
    ),
    "ambiguous name": (
        ConstraintForm("json", "json", '{"patternProperties": {"(a+)+b": {}}}'),
        "faulty",
    ),
}


def test_patterns_and_choices_are_measured_too() -> None:
    found = measure_all({name: form for name, (form, _) in OTHERS.items()})
    assert {name: one.outcome for name, one in found.items()} == {
        name: outcome for name, (_, outcome) in OTHERS.items()
    }


async def find_child(worker: WorkerProcess) -> tuple[int, int]:
    """Wait until the worker has a child; return both processes."""
    while worker.process is None or not (found := children_of(worker.process.pid)):
        await asyncio.sleep(0.01)
    return worker.process.pid, found[0]


def run(work: Coroutine[Any, Any, Result]) -> Result:
    return asyncio.run(asyncio.wait_for(work, 60))


def test_a_job_that_nobody_waits_for_is_ended_and_others_run_beside_it() -> None:
    async def work() -> list[str]:
        async with running_worker() as worker:
            leaving = asyncio.create_task(worker.measure([ENDLESS], 60_000))
            process, child = await find_child(worker)
            assert Path(f"/proc/{child}/oom_score_adj").read_text() == "1000\n"
            while os.getpriority(os.PRIO_PROCESS, child) <= os.getpriority(
                os.PRIO_PROCESS, process
            ):
                await asyncio.sleep(0.01)
            beside = await worker.measure([ANY], 1000)
            leaving.cancel()
            while children_of(process):
                await asyncio.sleep(0.01)
            return [beside.outcome, (await worker.measure([ANY], 1000)).outcome]

    assert run(work()) == ["fits", "fits"]


@pytest.mark.parametrize(
    ("milliseconds", "work", "code"),
    [
        (100, "[number for number in range(10**10)]", -signal.SIGPROF),
        (9000, "bytearray(2 * worker.MEMORY_BYTES)", 1),
        (9000, "bytearray(worker.MEMORY_BYTES // 2)", 0),
    ],
)
def test_a_child_has_so_much_time_and_memory(milliseconds: int, work: str, code: int) -> None:
    package = worker.__name__.rpartition(".")[0]
    limit = f"worker._limit({milliseconds}, worker.os.getppid())"
    program = f"from {package} import worker; {limit}; {work}"
    done = subprocess.run([sys.executable, "-c", program], stderr=subprocess.PIPE, check=False)
    assert done.returncode == code
    assert (b"MemoryError" in done.stderr) is (code == 1)


def test_a_worker_that_dies_is_said_and_started_again() -> None:
    async def work() -> str:
        async with running_worker() as worker:
            job = asyncio.create_task(worker.measure([ENDLESS], 60_000))
            process, child = await find_child(worker)
            for one in (process, child):
                os.kill(one, signal.SIGKILL)
            with pytest.raises(Unmeasured):
                await job
            return (await worker.measure([ANY], 1000)).outcome

    assert run(work()) == "fits"


def test_a_worker_that_cannot_start_lets_nothing_through() -> None:
    async def work() -> None:
        async with running_worker() as worker:
            worker._first = b"no vocabulary\n"
            await asyncio.gather(worker.measure([ANY], 1000), worker.measure([ANY], 1000))

    with pytest.raises(Unmeasured):
        run(work())


def test_two_that_come_first_start_one_process() -> None:
    async def work() -> list[str]:
        async with running_worker() as worker:
            jobs = (worker.measure([ANY], 1000) for _ in range(2))
            return [verdict.outcome for verdict in await asyncio.gather(*jobs)]

    assert run(work()) == ["fits", "fits"]


def test_without_a_vocabulary_nothing_is_measured() -> None:
    worker = WorkerProcess()
    for _ in range(2):
        with pytest.raises(Unmeasured):
            asyncio.run(worker.measure([ANY], 1000))
        worker.prepare(SimpleNamespace(structured_outputs_config=SimpleNamespace(backend="auto")))
    assert "auto" in worker._missing


def test_the_end_of_its_input_ends_the_worker_and_its_children() -> None:
    async def work() -> tuple[int, int]:
        async with running_worker() as worker:
            job = asyncio.create_task(worker.measure([ENDLESS], 60_000))
            found = await find_child(worker)
            worker.close()
            with pytest.raises(Unmeasured):
                await job
            return found

    ended = run(work())
    wait_until(lambda: not any(map(is_alive, ended)))


def test_a_child_whose_worker_ended_before_it_began_ends_too() -> None:
    late = f"""
import os, time
from {worker.__name__} import _limit
parent = os.getpid()
if not os.fork():
    while os.getppid() == parent:
        time.sleep(0.01)
    _limit(60_000, parent)
    os.write(1, b"it goes on")
"""
    ended = subprocess.run((sys.executable, "-c", late), capture_output=True, check=True)
    assert ended.stdout == b""
