"""Two plans are started in turns, each asked the same, and judged; an engine only pretends here."""

import os
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest

from slipstream.measuring import engine_start
from slipstream.measuring.bench import Bench
from slipstream.measuring.comparing.comparison import ComparedArm, Comparing, Comparison
from slipstream.measuring.engine_start import report_usage
from slipstream.measuring.machine_watch import MachineLoad, MachineWatch, Snapshot
from slipstream.measuring.workloads import Prompt, Workload
from slipstream.planning.plan import LaunchPlan
from slipstream.planning.settings import Choice
from slipstream.serving.access.gate_file import GATE_VARIABLE
from slipstream.serving.plugin_settings import is_followed
from tests.unit.measuring.client.stream_server import (
    CHUNKED,
    LAST_CHUNK,
    STOP,
    count,
    frame,
    run_stream_server,
    say,
    write_events,
)
from tests.unit.planning.bare_plans import bare_plan
from tests.unit.reporting.records import make_conditions

WORKLOAD = Workload(
    name="mine",
    prompts=tuple(
        Prompt(
            id=f"code-{number}",
            kind="code",
            messages=({"role": "user", "content": "x"},),
            max_tokens=8,
            origin="here",
        )
        for number in range(3)
    ),
)


@pytest.fixture
def plan() -> LaunchPlan:
    return bare_plan("--speculative-config.model", "drafter", drafter="drafter")


QUIET = MachineLoad(cores=2, seconds=5, other_cpu_share=0.01, steal_share=0, slowdown=1)
BUSY = QUIET.model_copy(update={"other_cpu_share": 0.45, "busiest": "ffmpeg"})


class ScriptedWatch(MachineWatch):
    """Finds what it was given, block by block, and waits in vain where it was told to."""

    found: ClassVar[list[MachineLoad]] = []
    quiet: ClassVar[list[bool]] = []

    def begin(self) -> None:
        return None

    def end(self, before: Snapshot | None, sessions: Collection[int] = ()) -> MachineLoad:
        assert sessions
        return self.found.pop(0)

    def wait_until_quiet(self, within_seconds: float = 30) -> bool:
        return self.quiet.pop(0)


@pytest.fixture(autouse=True)
def pretend_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stream eight tokens; with drafts they come twice as fast, two a chunk."""

    def answer(size: int) -> Iterator[bytes | None]:
        yield CHUNKED
        for _ in range(0, 8, size):
            yield frame(write_events(say("x" * size)))
            time.sleep(0.02)
        yield frame(write_events(STOP, count(3, 8))) + LAST_CHUNK

    @contextmanager
    def run(plan: LaunchPlan, *, log: Path, on_start: Any, on_wait: Any, **_: Any) -> Iterator[str]:
        assert is_followed(plan)
        assert Path(plan.environment[GATE_VARIABLE].value).parent.is_dir()
        log.touch()
        on_start(os.getpid())
        on_wait(0.5)
        with run_stream_server(lambda _: answer(2 if plan.drafter else 1)) as server:
            yield server.url

    monkeypatch.setattr(engine_start, "run_engine", run)
    monkeypatch.setattr(engine_start, "measure_session", lambda leader: leader.pid)


def compare(
    tmp_path: Path,
    plans: dict[str, LaunchPlan],
    *,
    workload: Workload = WORKLOAD,
    concurrencies: tuple[int, ...] = (1,),
    watch: MachineWatch | None = None,
) -> tuple[Comparison, list[str]]:
    """Run one round; return the result, and what was said."""
    said: list[str] = []
    comparing = Comparing(
        arms=tuple(ComparedArm(name=name, plan=plan) for name, plan in plans.items()),
        bench=Bench(workload, concurrencies),
        rounds=1,
        environment={},
        logs=tmp_path / "logs",
        progress=said.append,
        watch=watch or MachineWatch(proc=tmp_path / "proc"),
    )
    return comparing.run(make_conditions()), said


@pytest.fixture
def plans(plan: LaunchPlan) -> dict[str, LaunchPlan]:
    return {"plain": plan.without_drafts(), "drafted": plan}


def test_a_disturbed_block_is_measured_again_and_a_busy_machine_leaves_no_verdict(
    tmp_path: Path, plans: dict[str, LaunchPlan]
) -> None:
    watch = ScriptedWatch()
    # The first block is disturbed and repeated; the second is, and the machine stays busy.
    watch.found[:] = [BUSY, QUIET, BUSY, QUIET, QUIET]
    watch.quiet[:] = [True, False]
    done, said = compare(tmp_path, plans, watch=watch)
    assert (watch.found, watch.quiet) == ([], [])
    assert [start.repeated for start in done.starts] == [True, False, False, False]
    assert [start.machine for start in done.starts] == [QUIET, BUSY, QUIET, QUIET]
    assert len(list((tmp_path / "logs").glob("*-again.log"))) == 1
    verdict = done.verdict
    assert (verdict.answer, verdict.is_disturbed) == ("cannot tell", True)
    assert verdict.sentence == (
        "Cannot tell: the machine was busy during 1 of 4 starts: other processes used 0.9 of 2 "
        "cores, most of it ffmpeg. Measure again when the machine is quiet."
    )
    (pair,) = verdict.pairs
    assert {finding.outcome for finding in pair.findings} == {"unclear"}
    assert pair.break_evens == ()
    assert any(
        line.endswith("drafted its figures are kept, because the machine stays busy")
        for line in said
    )


def test_arms_take_turns_and_the_faster_one_is_ahead(
    tmp_path: Path, plans: dict[str, LaunchPlan]
) -> None:
    done, said = compare(tmp_path, plans, concurrencies=(1, 2))
    assert [start.arm for start in done.starts] == ["A", "B", "B", "A"]
    assert all(start.start_seconds > 0 for start in done.starts)
    for start in done.starts:
        assert [(cell.kind, cell.concurrency) for cell in start.cells] == [("code", 1), ("code", 2)]
        assert all(cell.memory_bytes == os.getpid() for cell in start.cells)
        assert all(cell.output_tokens for cell in start.cells)
    assert len(list((tmp_path / "logs").glob("*.log"))) == 4
    assert min(finding.speed_up.ratio for finding in done.verdict.find("drafted")) > 1.3
    assert (done.verdict.arms, done.verdict.blocks) == (("plain", "drafted"), 4)
    assert said[0] == "start 1 of 4: plain starts"
    assert said[2].startswith("start 2 of 4, about 1 min left: drafted starts")
    assert Comparison.model_validate_json(done.to_json()) == done


def test_three_plans_take_turns_and_the_fastest_is_named(
    tmp_path: Path, plans: dict[str, LaunchPlan]
) -> None:
    done, said = compare(tmp_path, {**plans, "again": plans["plain"]})
    assert "".join(start.arm for start in done.starts) == "ABCCBA"
    assert len(list((tmp_path / "logs").glob("*.log"))) == 6
    assert said[0] == "start 1 of 6: plain starts"
    (place,) = done.verdict.places
    assert place.contenders[0] == "drafted"
    assert place.speed_up is not None
    assert place.speed_up.ratio > 1.3


def test_tasks_are_judged_by_their_wall_time(tmp_path: Path, plans: dict[str, LaunchPlan]) -> None:
    turns = tuple(
        prompt.model_copy(update={"id": f"{task}/{turn}", "task": task, "turn": turn})
        for task in ("p", "q")
        for turn, prompt in enumerate(WORKLOAD.prompts[:2], 1)
    )
    done, _ = compare(tmp_path, plans, workload=Workload(name="tasks", prompts=turns))
    verdict = done.verdict
    (finding,) = verdict.find("drafted")
    assert (verdict.measure, finding.prompts) == ("wall time per task", 2)
    assert finding.speed_up.ratio > 1.3
    assert verdict.sentence.startswith("By wall time per task: ")
    assert "only 2 tasks of a kind could be compared" in verdict.sentence
    assert [len(start.samples) for start in done.starts] == [4] * 4


def test_an_engine_reports_cached_tokens_unless_the_user_says_otherwise(plan: LaunchPlan) -> None:
    assert report_usage(plan.without_drafts()).find("--enable-prompt-tokens-details") is not None
    off = plan.change(rest={"--enable-prompt-tokens-details": Choice(False, "user", "asked")})
    assert report_usage(off).find("--enable-prompt-tokens-details") is None


def test_an_engine_with_drafts_tells_them_by_request_and_one_without_is_not_asked(
    plan: LaunchPlan,
) -> None:
    told = report_usage(plan)
    decision = told.find("--per-request-spec-decode-metrics")
    assert decision is not None
    assert decision.value == "summary"
    assert report_usage(told) == told
    plain = report_usage(told.without_drafts())
    assert plain.find("--per-request-spec-decode-metrics") is None
