"""A bench asks every kind at every concurrency, cold and warmed up, and adds up what came."""

import threading
import time
from collections.abc import Iterable
from statistics import fmean
from typing import Any

import pytest

from slipstream.errors import EngineError
from slipstream.measuring.bench import (
    Bench,
    BenchCell,
    Load,
    is_flat,
    list_cells,
    make_salt,
    summarize,
)
from slipstream.measuring.client.endpoint import Endpoint
from slipstream.measuring.client.engine_metrics import EngineCounts
from slipstream.measuring.client.sample import Sample
from slipstream.measuring.workloads import Prompt, Workload
from tests.unit.measuring.client.stream_server import (
    CHUNKED,
    LAST_CHUNK,
    ROLE,
    STOP,
    answer_with,
    count,
    frame,
    refuse,
    run_stream_server,
    say,
    write_events,
)


def make_prompt(name: str, kind: str, **extra: Any) -> Prompt:
    messages = ({"role": "user", "content": name},)
    return Prompt(id=name, kind=kind, messages=messages, max_tokens=8, extra=extra, origin="here")


WORKLOAD = Workload(
    name="mine",
    prompts=(make_prompt("a", "code"), make_prompt("b", "code"), make_prompt("c", "prose")),
    warm_up=(make_prompt("w", "code"),),
)


def make_sample(**changes: Any) -> Sample:
    whole = {
        "prompt_id": "a",
        "kind": "code",
        "concurrency": 2,
        "began_at": 1.0,
        "seconds": 2.0,
        "first_token_seconds": 1.0,
        "output_tokens": 11,
    }
    return Sample(**{**whole, **changes})


def add_up(*samples: Sample, **counted: Any) -> BenchCell:
    load = Load(kind="code", concurrency=2, counts=EngineCounts(**counted))
    return summarize(load, samples)


def measure(bench: Bench, url: str) -> tuple[list[BenchCell], list[Sample]]:
    loads, samples = bench.measure(Endpoint(url))
    return list_cells(loads, samples), samples


def answer(_: dict[str, Any]) -> Iterable[bytes | None]:
    for piece in answer_with(ROLE, say("x"), say("yz"), STOP, count(3, 5)):
        yield piece
        time.sleep(0.002)


def test_every_kind_is_asked_at_every_concurrency_and_told() -> None:
    told: list[BenchCell] = []
    ticks: list[tuple[str, int, int, int]] = []
    with run_stream_server(answer) as server:
        bench = Bench(
            WORKLOAD,
            (1, 2),
            on_cell=told.append,
            tick=lambda *tick: ticks.append(tick),
            measure_memory=lambda: 77,
        )
        cells, samples = measure(bench, server.url)
    assert [(cell.kind, cell.concurrency, cell.requests) for cell in cells] == [
        *(("code", 1, 2), ("prose", 1, 1), ("code", 2, 4), ("prose", 2, 4))
    ]
    assert told == cells
    assert cells[0].memory_bytes == 77
    assert cells[0].output_tokens == 10
    assert len(samples) == 11
    assert {sample.text for sample in samples} == {""}
    assert ticks[:2] == [("code", 1, 1, 2), ("code", 1, 2, 2)]


class CrowdedServer:
    """Streams a chunk every 10 ms for each token asked for, and counts who is served beside it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.in_flight: dict[int, int] = {}
        self.beside: dict[str, list[int]] = {}

    def respond(self, body: dict[str, Any]) -> Iterable[bytes | None]:
        salt = body["cache_salt"]
        with self.lock:
            self.in_flight[id(body)] = 1
        try:
            yield CHUNKED + frame(write_events(ROLE))
            for _ in range(body["max_tokens"]):
                time.sleep(0.01)
                with self.lock:
                    self.beside.setdefault(salt, []).append(len(self.in_flight))
                yield frame(write_events(say("x", token_ids=[1])))
            end = write_events(STOP, count(3, body["max_tokens"]), "[DONE]")
            yield frame(end) + LAST_CHUNK
        finally:
            with self.lock:
                del self.in_flight[id(body)]


def test_every_request_that_counts_is_served_beside_a_full_load() -> None:
    lengths = (24, 4, 12, 6)
    prompts = tuple(
        make_prompt(str(number), "code").model_copy(update={"max_tokens": length})
        for number, length in enumerate(lengths)
    )
    crowd = CrowdedServer()
    with run_stream_server(crowd.respond) as server:
        bench = Bench(Workload(name="mine", prompts=prompts), (4,), salt="s")
        (cell,), samples = measure(bench, server.url)
    counted = [f"s code 4 {again} {number}" for again in (0, 1) for number in range(4)]
    assert [sample.prompt_id for sample in samples] == ["0", "1", "2", "3"] * 2
    # The next request of a place begins a moment after the last one ended.
    assert min(fmean(crowd.beside[salt]) for salt in counted) >= 3
    assert sorted(crowd.beside) != sorted(counted)
    assert cell.output_tokens == 2 * sum(lengths)
    places = sum(sample.seconds for sample in samples) / 4
    assert (cell.seconds, cell.tokens_per_second) == (places, cell.output_tokens / places)


def test_no_two_requests_share_a_prefix_when_the_cache_is_cold() -> None:
    with run_stream_server(answer) as server:
        Bench(WORKLOAD, (1, 2)).measure(Endpoint(server.url))
        salts = [body["cache_salt"] for body in server.bodies]
    # A server of its own: the last requests of the load before are cut off, not waited for.
    with run_stream_server(answer) as server:
        Bench(WORKLOAD, (1,), prefix_cache="shared").measure(Endpoint(server.url))
    assert len(set(salts)) == len(salts) >= 3 + 2 * (2 + 4)
    assert server.bodies
    assert not any("cache_salt" in body for body in server.bodies)


TOOL = {
    "type": "function",
    "function": {
        "name": "look",
        "parameters": {
            "type": "object",
            "properties": {"path": {"type": "string", "maxLength": 9}},
            "required": ["path"],
        },
    },
}


def make_task(name: str, turns: int = 3) -> tuple[Prompt, ...]:
    """Make a task whose last turn expects an answer and whose others expect a call."""
    return tuple(
        Prompt(
            id=f"{name}/{turn}",
            kind="agent",
            messages=({"role": "user", "content": f"{name} {turn}"},),
            max_tokens=8,
            extra={"tools": [TOOL], "tool_choice": "none"},
            origin="here",
            task=name,
            turn=turn,
            expected_tool="look" if turn < turns else None,
        )
        for turn in range(1, turns + 1)
    )


def call_part(**function: str) -> dict[str, Any]:
    part = {"index": 0, "function": function}
    return {"choices": [{"index": 0, "delta": {"tool_calls": [part]}, "finish_reason": None}]}


def answer_with_call(body: dict[str, Any]) -> Iterable[bytes | None]:
    """Call the tool in pieces if it is asked to; each turn after the first has a cached prefix."""
    turn = int(body["messages"][0]["content"].split()[1])
    called = [call_part(name="look", arguments='{"pa'), call_part(arguments='th": "a"}')]
    said = [say("x"), say("y")]
    usage = {"prompt_tokens_details": {"cached_tokens": 10 * (turn - 1)}}
    events = said if body["tool_choice"] == "none" else called
    return answer_with(ROLE, *events, STOP, count(10 * turn, 5, usage=usage))


def test_the_turns_of_a_task_are_asked_in_order_and_share_a_prefix() -> None:
    workload = Workload(name="agent", prompts=(*make_task("a"), *make_task("b")))
    with run_stream_server(answer_with_call) as server:
        bench = Bench(workload, (1,), salt="s", tool_choice="named")
        (cell,), samples = measure(bench, server.url)
    asked = [body["messages"][0]["content"] for body in server.bodies]
    assert asked == ["a 1", "a 2", "a 3", "b 1", "b 2", "b 3"]
    salts = [body["cache_salt"] for body in server.bodies]
    assert salts == ["s agent 1 0 a"] * 3 + ["s agent 1 0 b"] * 3
    named = {"type": "function", "function": {"name": "look"}}
    assert [body["tool_choice"] for body in server.bodies] == [named, named, "none"] * 2
    strict = {body["tools"][0]["function"]["strict"] for body in server.bodies}
    assert strict == {True}
    assert [(one.task, one.turn, one.call) for one in samples[:3]] == [
        *(("a", 1, "parsed"), ("a", 2, "parsed"), ("a", 3, None))
    ]
    assert all(sample.calls == () for sample in samples)
    assert cell.tasks is not None
    assert (cell.tasks.tasks, cell.tasks.failed, cell.tasks.calls) == (2, 0, {"parsed": 4})
    assert [turn.cached_share for turn in cell.tasks.turns] == [0, 10 / 20, 20 / 30]
    assert cell.tasks.cached_share == 60 / 120


@pytest.mark.parametrize(("choice", "sent"), [("auto", "auto"), ("none", "none")])
def test_a_target_chooses_its_tools_or_is_asked_for_none(choice: Any, sent: str) -> None:
    workload = Workload(name="agent", prompts=make_task("a"))
    with run_stream_server(answer_with_call) as server:
        bench = Bench(workload, (1,), tool_choice=choice)
        (cell,), _ = measure(bench, server.url)
    assert [body["tool_choice"] for body in server.bodies] == [sent] * 3
    assert cell.tasks is not None
    assert cell.tasks.calls == ({"parsed": 2} if choice == "auto" else {})


def test_a_task_ends_with_the_turn_that_fails() -> None:
    def fail_once(body: dict[str, Any]) -> Iterable[bytes | None]:
        if body["messages"][0]["content"] == "a 2":
            return refuse("500 Oops", b"no")
        return answer_with_call(body)

    workload = Workload(name="agent", prompts=(*make_task("a"), *make_task("b")))
    with run_stream_server(fail_once) as server:
        (cell,), samples = measure(Bench(workload, (1,)), server.url)
    assert [one.prompt_id for one in samples] == ["a/1", "a/2", "b/1", "b/2", "b/3"]
    assert cell.tasks is not None
    assert (cell.tasks.tasks, cell.tasks.failed, cell.failed) == (2, 1, 1)


def test_places_are_filled_with_parts_of_tasks_and_each_serves_two_that_count() -> None:
    workload = Workload(name="agent", prompts=(*make_task("a"), *make_task("b")))
    ticks: list[tuple[str, int, int, int]] = []
    with run_stream_server(answer_with_call) as server:
        bench = Bench(workload, (3,), salt="s", tick=lambda *tick: ticks.append(tick))
        (cell,), samples = measure(bench, server.url)
    assert cell.tasks is not None
    assert (cell.tasks.tasks, len(samples)) == (6, 18)
    assert ticks[-1] == ("agent", 3, 18, 18)
    filling = [body for body in server.bodies if " -" in body["cache_salt"]]
    assert [body["messages"][0]["content"].split()[1] for body in filling].count("1") == 3
    assert len(filling) == 1 + 2 + 3
    assert len({(body["cache_salt"], str(body["messages"])) for body in server.bodies}) == len(
        server.bodies
    )


def test_a_salt_is_one_that_the_gate_takes() -> None:
    assert make_salt("1f", "code 8 0", "p 7") == "1f code 8 0 p 7"
    odd = [make_salt("1f", "code", name) for name in ("x" * 200, "y" * 200, "s\u00e4", "a\nb")]
    assert len(set(odd)) == 4
    assert all(len(salt) == 64 and salt.isalnum() for salt in odd)


def test_each_kind_that_arrives_by_the_clock_keeps_its_own_concurrency() -> None:
    """Three requests of code come at once and wait for each other; the one of prose is alone."""
    together = threading.Barrier(3)

    def meet(body: dict[str, Any]) -> Iterable[bytes | None]:
        if body["messages"][0]["content"] != "alone":
            together.wait(timeout=5)
        return answer(body)

    prompts = [make_prompt(name, "code") for name in "abc"]
    workload = Workload(name="mine", prompts=(*prompts, make_prompt("alone", "prose")))
    with run_stream_server(meet) as server:
        cells, samples = measure(Bench(workload, (), arrivals_per_second=1000), server.url)
    assert [(cell.kind, cell.concurrency) for cell in cells] == [("code", 3), ("prose", 1)]
    assert {(one.kind, one.concurrency) for one in samples} == {("code", 3), ("prose", 1)}
    assert [cell.requests for cell in cells] == [3, 1]


def test_thinking_and_temperature_are_what_was_asked_for() -> None:
    workload = Workload(name="mine", prompts=(make_prompt("a", "code", temperature=0.7, n=1),))
    with run_stream_server(answer) as server:
        Bench(workload, (1,), thinking=False).measure(Endpoint(server.url))
        Bench(WORKLOAD, (1,)).measure(Endpoint(server.url))
    assert server.bodies[0]["chat_template_kwargs"] == {"enable_thinking": False}
    assert (server.bodies[0]["temperature"], server.bodies[0]["n"]) == (0.7, 1)
    assert "chat_template_kwargs" not in server.bodies[1]
    assert server.bodies[1]["temperature"] == 0


def test_warm_up_asks_other_prompts_and_ends_also_if_tokens_come_all_at_once() -> None:
    whole = b"".join(piece for piece in answer_with(ROLE, say("x"), STOP, count(3, 5)) if piece)
    for respond in (answer, lambda _: [whole]):
        with run_stream_server(respond) as server:
            warm = Bench(WORKLOAD, (1, 2)).warm_up(Endpoint(server.url))
        assert 3 <= warm.rounds <= 8
        assert len(warm.seconds_per_token) == warm.rounds == len(server.bodies)
        assert {body["messages"][0]["content"] for body in server.bodies} == {"w"}


def test_a_server_that_refuses_the_warm_up_is_not_measured() -> None:
    with (
        run_stream_server(lambda _: refuse("400 Bad", b"no such field")) as server,
        pytest.raises(EngineError) as caught,
    ):
        Bench(WORKLOAD, (1,)).warm_up(Endpoint(server.url))
    assert "no such field" in caught.value.details[0]


@pytest.mark.parametrize(
    ("times", "flat"),
    [((1, 1), False), ((1, 1, 1.1), True), ((1, 1, 1.2), False), ((5, 1, 1, 1), True)],
)
def test_flat_is_the_last_three_close_together(times: tuple[float, ...], flat: bool) -> None:
    assert is_flat(times) is flat


def test_a_cell_adds_up_tokens_over_the_time_of_its_places() -> None:
    samples = [make_sample(), make_sample(prompt_id="b", began_at=3.0, seconds=3.0)]
    cell = add_up(*samples, cache_queries=10, cache_hits=4, preemptions=1)
    assert (cell.seconds, cell.output_tokens, cell.tokens_per_second) == (2.5, 22, 8.8)
    assert cell.per_token is not None
    assert cell.per_token.model_dump() == pytest.approx(
        {"p50": 0.1, "p90": 0.2, "p95": 0.2, "p99": 0.2}
    )
    assert cell.total is not None
    assert cell.total.model_dump() == {"p50": 2.0, "p90": 3.0, "p95": 3.0, "p99": 3.0}
    assert (cell.cache_hit_share, cell.preemptions) == (0.4, 1)


def test_failed_requests_are_counted_and_not_timed() -> None:
    cell = add_up(make_sample(), make_sample(error="cut off"))
    assert (cell.requests, cell.failed, cell.output_tokens) == (2, 1, 11)
    lost = add_up(make_sample(error="cut off"))
    assert (lost.failed, lost.first_token, lost.tokens_per_second) == (1, None, 0.0)


def test_drafts_are_the_requests_own_or_else_the_engines() -> None:
    drafted = make_sample(drafts=4, drafted=28, accepted=6, accepted_by_position=(3, 2, 1))
    plain = make_sample(drafts=4, drafted=28, accepted=2, accepted_by_position=(2,))
    cell = add_up(drafted, plain, drafts=99, accepted=99)
    # Of 20 tokens after the first ones eight were accepted: twelve steps, four without a draft.
    assert (cell.tokens_per_step, cell.acceptance_rate) == (1 + 8 / 12, 8 / 56)
    assert cell.by_position == (5 / 8, 2 / 8, 1 / 8)
    counted = {"drafts": 10, "drafted": 70, "accepted": 7, "accepted_by_position": (5, 2)}
    other = add_up(make_sample(), **counted)
    assert (other.tokens_per_step, other.acceptance_rate) == (1.7, 0.1)
    assert other.by_position == (0.5, 0.2)
    none = add_up(make_sample())
    assert (none.tokens_per_step, none.acceptance_rate, none.by_position) == (None, None, ())
