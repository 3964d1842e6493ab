"""A plan is for the vLLM that is there, or that is asked for: its arguments, rules and lengths."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from slipstream.checkpoints.checkpoint import Checkpoint
from slipstream.cli.main import run
from slipstream.engines.arguments import find_unknown, parse_arguments, render_arguments
from slipstream.engines.vllm_tables import (
    VERSIONS,
    find_known,
    read_arguments,
    read_auxiliary_targets,
)
from slipstream.hardware import Host, load_host
from slipstream.hardware.host import Engine
from slipstream.planning import LaunchPlan, make_options
from slipstream.planning.planner import make_plan
from slipstream.planning.settings import SCHEDULE, Choice
from slipstream.planning.settings.draft_lengths import (
    ADAPTIVE,
    make_schedule,
    read_lengths,
    space_lengths,
)
from slipstream.planning.settings.patches import DRAFTER_POSITIONS
from slipstream.planning.settings.speculation import KEPT_BLOCK
from slipstream.planning.steering_verdicts import keep_verdict
from slipstream.recipes import load_known_bad
from slipstream.serving.plugin_settings import WATCHDOG
from slipstream.serving.run import RunFolder
from slipstream.serving.served_plan import put_behind_gate
from slipstream.tuning.trials import leave_out_verdicts, list_ways
from slipstream.vllm_plugin.steering.draft_length import begin_on_gpu
from tests.unit.planning.pieces import DRAFTER, HYBRID_LAYERS, TARGET

OLD, NEW = VERSIONS[:2]
HYBRID = TARGET.model_copy(update={"layers": HYBRID_LAYERS})
SPEC = "--speculative-config"


def plan(
    version: str | None = None,
    *,
    host: str | Host = "h100",
    target: Checkpoint = TARGET,
    drafter: Checkpoint = DRAFTER,
    **options: Any,
) -> LaunchPlan:
    machine = load_host(host) if isinstance(host, str) else host
    made = make_options(vllm=version, **options)
    return make_plan(machine, target, drafter, None, made, known_bad=load_known_bad())


def test_the_installed_version_decides_and_another_can_be_asked_for() -> None:
    host = load_host("h100")
    engine = Engine(distribution="vllm", version="0.33.1")
    newer = host.model_copy(
        update={"software": host.software.model_copy(update={"engine": engine})}
    )
    assert plan(host=newer).engine_version == NEW
    assert plan(OLD, host=newer).engine_version == OLD
    assert plan(OLD, host=newer).find_mismatch(newer) == "vLLM 0.32.0, here 0.33.0"
    assert [find_known(one) for one in ("0.31.0", "0.32.4", "0.33.1")] == [OLD, OLD, NEW]
    assert find_known("99.0") == VERSIONS[-1]


def test_a_switch_has_both_forms_and_one_that_every_version_reads() -> None:
    for words in (["--disable-prefix-caching"], ["--no-enable-prefix-caching"]):
        values = parse_arguments(words)
        assert values == {"--enable-prefix-caching": False}
        assert render_arguments(values) == ["--no-enable-prefix-caching"]
    assert parse_arguments(["--enable-fastapi-docs"]) == {"--disable-fastapi-docs": False}


@pytest.mark.parametrize(
    ("given", "version", "unknown"),
    [
        ({"--watchdog-config": {"timeout": 3}}, OLD, ["--watchdog-config"]),
        ({"--watchdog-config": {"timeout": 3}}, NEW, []),
        ({SPEC: {"method": "mtp", "xpress_topc": 2}}, OLD, [f"{SPEC}.xpress_topc"]),
        ({SPEC: {"method": "medusa", "model": "a/b"}}, OLD, []),
        ({"--spec-method": "medusa"}, OLD, []),
        ({"--spec-method": "medusa"}, NEW, ["--spec-method medusa"]),
    ],
)
def test_what_a_version_lacks_is_known(
    given: dict[str, Any], version: str, unknown: list[str]
) -> None:
    assert find_unknown(given, version) == unknown


def test_an_argument_of_the_other_version_is_refused_with_what_to_install() -> None:
    made = plan(OLD, engine=("--watchdog-config.timeout", "3"))
    (fault,) = [one for one in made.refusals if one.code == "version"]
    assert (fault.message, fault.hint) == (
        "vLLM 0.32.0 has no --watchdog-config",
        "leave it out" + "".join(f", or pip install vllm=={one}" for one in VERSIONS[1:]),
    )
    assert not plan(NEW, engine=("--watchdog-config.timeout", "3")).refusals


@pytest.mark.parametrize("method", ["medusa", "mlp_speculator"])
@pytest.mark.parametrize("form", ["json", "dotted", "short"])
def test_a_method_that_033_has_no_longer_is_refused_in_every_form(
    method: str, form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = {"method": method, "model": "a/b", "num_speculative_tokens": 3}
    words = {
        "json": [SPEC, json.dumps(parts)],
        "dotted": [word for key, one in parts.items() for word in (f"{SPEC}.{key}", str(one))],
        "short": ["--spec-method", method, "--spec-model", "a/b", "--spec-tokens", "3"],
    }[form]
    given = ["plan", "Qwen/Qwen3-8B", "--host", "h100", "--json", "--vllm"]
    codes, refused = [], []
    for version in VERSIONS:
        codes.append(run([*given, version, "--", *words], os.environ))
        refused.append(LaunchPlan.model_validate_json(capsys.readouterr().out).refusals)
    assert codes == [0, 1]
    (fault,) = refused[1]
    assert fault.message == f"vLLM 0.33.0 has no {SPEC}.method {method}"
    assert fault.hint == "leave it out, or pip install vllm==0.32.0"


def test_tables_grow_by_version() -> None:
    assert read_arguments(OLD).keys() < read_arguments(NEW).keys() <= read_arguments().keys()
    assert "BeamForCausalLM" in read_auxiliary_targets(NEW) - read_auxiliary_targets(OLD)
    beam = TARGET.model_copy(update={"architecture": "BeamForCausalLM"})
    (fault,) = plan(OLD, target=beam).refusals
    assert (fault.code, fault.hint) == ("target-class", "pip install vllm==0.33.0")
    assert not plan(NEW, target=beam).refusals


@pytest.mark.parametrize("architecture", ["DFlashQwen3XPressModel", "DFlash2BeamDraftModel"])
def test_a_drafter_of_a_later_version_is_refused_with_what_to_install(architecture: str) -> None:
    drafter = DRAFTER.model_copy(update={"architecture": architecture})
    assert [fault.code for fault in plan(OLD, drafter=drafter).refusals] == ["drafter-class"]
    assert not plan(NEW, drafter=drafter).refusals


def test_the_prefix_cache_keeps_its_last_block_by_itself_from_033_on() -> None:
    kept = [one.speculation is not None and KEPT_BLOCK in one.speculation.rest for one in both()]
    assert kept == [True, False]


def both(**options: Any) -> list[LaunchPlan]:
    return [plan(version, **options) for version in (OLD, NEW)]


def test_an_agent_on_a_hybrid_target_keeps_drafter_and_cache_from_033_on() -> None:
    old, new = both(target=HYBRID, goal="agent")
    assert (old.drafter, new.drafter) == (None, DRAFTER.name)
    assert new.settings.prefix_caching is not None
    assert new.settings.prefix_caching.value
    warned = [{fault.code for fault in one.warnings} for one in both(target=HYBRID)]
    assert all("prefix-cache-on-hybrids" not in codes for codes in warned)  # 0.32: it is off
    given = ("--enable-prefix-caching",)
    warned = [{fault.code for fault in one.warnings} for one in both(target=HYBRID, engine=given)]
    assert ["prefix-cache-on-hybrids" in codes for codes in warned] == [True, False]


def test_033_adds_a_drafters_positions_by_itself() -> None:
    short = DRAFTER.model_copy(update={"context": 8192})
    plans = both(drafter=short, context=16384)
    assert [DRAFTER_POSITIONS in one.patches for one in plans] == [True, False]
    said = [next(f.message for f in one.warnings if f.code == "drafter-context") for one in plans]
    assert "patch drafter-positions adds" in said[0]
    assert "vLLM 0.33.0 adds" in said[1]


@pytest.mark.parametrize(
    ("host", "options", "says"),
    [
        ("h100", {}, "fixed at 15: whether steering pays here is not measured"),
        ("h100", {"steer": True}, "steered among 15, 7, 3 and 0"),
        ("h100", {"engine": ("--enforce-eager",)}, "steered, any from 0 to 15"),
        ("gb10", {}, "steered, any from 0 to 15"),
        ("cpu-server", {}, "steered, any from 0 to 15"),
        ("h100x8", {"steer": True, "engine": ("--data-parallel-size", "2")}, "fixed at 15: the ra"),
        ("h100", {"engine": (f"{SPEC}.enable_adaptive_verification", "true")}, "fixed at 15: ena"),
        ("h100", {"steer": True, "engine": ("--scheduler-cls", "a.B")}, "fixed at 15: --sche"),
    ],
)
def test_a_plan_says_whether_the_length_is_steered(
    host: str, options: dict[str, Any], says: str
) -> None:
    version = OLD if host == "cpu-server" else NEW
    made = plan(version, host=host, **options)
    assert (made.describe_lengths() or "").startswith(says)
    assert made.awaits_tuning is ("not measured" in says)
    assert host == "cpu-server" or not made.refusals


def test_steering_records_graphs_for_a_few_lengths_and_counts_their_memory() -> None:
    found = {version: plan(version, steer=True) for version in (OLD, NEW)}
    lengths = {
        version: read_lengths(one.speculation.rest[SCHEDULE].value)
        for version, one in found.items()
        if one.speculation
    }
    assert lengths == {OLD: (15, 7, 3), NEW: (15, 7, 3, 0)}, "0.32 pays for the drafter at 0"
    graphs = [
        item.size_bytes or 0
        for one in (plan(NEW), found[OLD], found[NEW])
        for item in one.memory.items
        if item.name == "driver and graphs"
    ]
    assert graphs == sorted(graphs)
    assert len(set(graphs)) == 3


@pytest.mark.parametrize("sequences", [1, 2, 3, 4, 11, 32, 256])
def test_every_length_of_a_schedule_occurs_and_all_batches_are_covered(sequences: int) -> None:
    lengths = space_lengths(15, sequences, NEW)
    assert lengths == (15, 7, 3, 0)[: max(1, sequences - 1)]
    ranges = make_schedule(lengths, sequences)
    assert {one[2] for one in ranges} == set(lengths)
    covered = [batch for first, last, _ in ranges for batch in range(first, last + 1)]
    assert covered == list(range(1, sequences + 1))
    assert ranges[0][2] == 15
    assert ranges[-1][2] == begin_on_gpu(15, sequences, expand(ranges))[-1] != 0


@pytest.mark.parametrize(
    ("sequences", "full"), [(1, 15), (11, 15), (16, 15), (32, 7), (64, 3), (256, 3)]
)
def test_a_full_server_begins_with_the_longest_drafts_that_cost_little(
    sequences: int, full: int
) -> None:
    for version in VERSIONS:
        schedule = expand(make_schedule(space_lengths(15, sequences, version), sequences))
        began = begin_on_gpu(15, sequences, schedule)
        assert began[-1] == full
        assert began[1:] == sorted(began[1:], reverse=True), "no dip where a length is recorded"
        assert min(began) > 0


def expand(ranges: list[list[int]]) -> list[int]:
    """Return the table by batch that vLLM makes of ranges; its index 0 is no batch."""
    return [0, *(length for first, last, length in ranges for _ in range(first, last + 1))]


def test_what_tune_found_about_steering_is_used_by_the_next_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    words = ["plan", "Qwen/Qwen3-8B", "--host", "h100", "--vllm", "0.33", "--json"]

    def plan_again() -> LaunchPlan:
        assert run(words, os.environ) == 0
        return LaunchPlan.model_validate_json(capsys.readouterr().out)

    first = plan_again()
    others = (
        first.change(speculation=first.speculation and first.speculation.change(**one))
        for one in (
            {"drafter": Choice("another/drafter", "user", "requested")},
            {"length": Choice(7, "user", "requested")},
        )
    )
    for other in (*others, first.model_copy(update={"machine": "a100"})):
        keep_verdict("steered", other, os.environ, pays=True, because="of another plan")
        assert plan_again() == first
    for pays, says in ((True, "steered among"), (False, "fixed at 15: 3 % slower")):
        keep_verdict("steered", first, os.environ, pays=pays, because="3 % slower")
        assert (plan_again().describe_lengths() or "").startswith(says)
    (tmp_path / "slipstream" / "steering.json").write_text("{")
    assert run(words, os.environ) == 1
    assert "then slipstream tune" in capsys.readouterr().err


def test_adaptive_verification_that_paid_is_used_by_the_next_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    words = ["plan", "Qwen/Qwen3-8B", "--host", "h100", "--vllm", "0.33"]

    def plan_again(*more: str) -> LaunchPlan:
        assert run([*words, "--json", *more], os.environ) == 0
        return LaunchPlan.model_validate_json(capsys.readouterr().out)

    def explain() -> str:
        assert run([*words, "--explain"], os.environ) == 0
        return capsys.readouterr().out

    said = f"{ADAPTIVE} is not planned: "
    assert f"{said}not measured here: slipstream tune Qwen/Qwen3-8B\n" in explain()
    first = plan_again()
    keep_verdict("steered", first, os.environ, pays=True, because="5 % faster")
    keep_verdict("adaptive", first, os.environ, pays=False, because="2 % slower")
    assert f"{said}2 % slower\n" in explain()
    assert plan_again().find(f"{SPEC}.{SCHEDULE}") is not None
    keep_verdict("adaptive", first, os.environ, pays=True, because="9 % faster")
    adopted = plan_again()
    decision = adopted.find(f"{SPEC}.{ADAPTIVE}")
    assert decision is not None
    assert (decision.value, decision.source, decision.because) == ("true", "measured", "9 % faster")
    assert adopted.find(f"{SPEC}.{SCHEDULE}") is None
    assert adopted.memory == first.memory, "no graphs of further lengths"
    assert said not in explain()
    asked = plan_again("--steer")
    assert asked.find(f"{SPEC}.{ADAPTIVE}") is None
    assert asked.find(f"{SPEC}.{SCHEDULE}") is not None
    again = leave_out_verdicts(adopted)
    assert again.find(f"{SPEC}.{ADAPTIVE}") is None
    assert list_ways(again, load_host("h100")) == ("steered", "adaptive")


@pytest.mark.parametrize(
    ("host", "engine", "says"),
    [
        ("h100", ("--enable-lora",), "--enable-lora"),
        ("h100", ("--enforce-eager",), "graphs of whole steps"),
        ("gb10", (), "graphs of whole steps"),
        ("h100x2", ("--pipeline-parallel-size", "2"), "pipeline parallelism"),
        ("cpu-server", (), "runner V2"),
        ("h100", (f"{SPEC}.use_local_argmax_reduction", "true"), "use_local_argmax_reduction"),
    ],
)
def test_adaptive_verification_is_refused_where_vllm_would_raise(
    host: str, engine: tuple[str, ...], says: str
) -> None:
    for version in VERSIONS:
        without = plan(version, host=host, engine=engine)
        assert without.adaptive_verification is None
        made = plan(version, host=host, engine=(*engine, f"{SPEC}.{ADAPTIVE}", "true"))
        (fault,) = [one for one in made.refusals if one.code == "adaptive"]
        assert says in fault.message
        assert fault.hint == f"slipstream plan {TARGET.name}, without {ADAPTIVE}"


def test_adaptive_verification_is_refused_for_recurrent_layers() -> None:
    made = plan(NEW, target=HYBRID, engine=(f"{SPEC}.{ADAPTIVE}", "true"))
    assert "adaptive" in {one.code for one in made.refusals}
    assert plan(NEW, target=HYBRID).adaptive_verification is None
    assert not plan(NEW, engine=(f"{SPEC}.{ADAPTIVE}", "true")).refusals


def test_a_version_that_is_not_known_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "a/b", "--vllm", "0.31"], os.environ) == 2
    assert f"'0.31' is not one of {', '.join(VERSIONS)}" in capsys.readouterr().err


def test_vllms_watchdog_writes_into_the_runs_folder() -> None:
    served = [put_behind_gate(one, RunFolder(Path("/runs/one"))) for one in both()]
    given = [one.settings.rest.get(WATCHDOG) for one in served]
    assert given[0] is None
    assert given[1] is not None
    assert json.dumps(given[1].value) == '{"timeout": 30, "dump_dir": "/runs/one"}'
