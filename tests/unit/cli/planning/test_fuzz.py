"""Command lines that nobody should type: each is planned or refused, none is a bug of ours."""

import io
import json
import os
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some

from slipstream.cli.main import run
from slipstream.engines.vllm_tables import read_arguments
from slipstream.errors import ExitCode, InvalidInputError
from slipstream.hardware import load_host
from slipstream.planning.settings import FLAGS, SPECULATION, SPECULATION_KEYS
from tests.unit.cli.pairs import write_pair

LINES = 2000
PLANNED = [*FLAGS.values(), SPECULATION, "--hf-overrides", "--cpu-offload-gb", "--spec-tokens"]
NUMBERS = ("0", "-1", "1", "3", "7", "1.5", "32k", "1e9", "9" * 40, "-0", "0x10", "inf", "nan")
TEXTS: tuple[str, ...] = (
    "",
    " ",
    "auto",
    "None",
    "null",
    "true",
    "~",
    "~nobody/x",
    "..",
    "a/b",
    "ü/漢",
    "\0",
)
TEXTS += ("a" * 5000, "{}", "[]", "{", '{"a": 1', "[[1]]", '"x"', "32 GiB", "50%", "--", "-", "=")
JSON = some.recursive(
    some.none() | some.booleans() | some.integers() | some.floats() | some.text(max_size=3),
    lambda inner: some.lists(inner, max_size=2) | some.dictionaries(some.text(max_size=3), inner),
    max_leaves=4,
)
KEYS = some.sampled_from([*SPECULATION_KEYS.values(), "max_model_len", "quantization", "ü", ""])
OBJECTS = some.dictionaries(KEYS, JSON | some.sampled_from(NUMBERS), max_size=3)
VALUES = (
    some.sampled_from(NUMBERS)
    | some.sampled_from(TEXTS)
    | JSON.map(json.dumps)
    | OBJECTS.map(json.dumps)
)
OPTIONS: tuple[str, ...] = (
    "--context",
    "--users",
    "--k",
    "--drafter",
    "--method",
    "--goal",
    "--host",
)
OPTIONS += ("--from-env", "--max-num-seqs", "--no-such", "--tls", "--record", "--gate", "--port")
OPTIONS += ("--bind", "--guardian", "--html", "--against", "--methods", "--workload", "--rounds")
SOUND = {
    **{"--context": "1024", "--users": "2", "--k": "3", "--drafter": "drafter", "--method": "mtp"},
    **{"--goal": "agent", "--no-speculation": None, "--thinking": "on", "--json": None},
}


@some.composite
def engine_words(draw: some.DrawFn) -> list[str]:
    """Draw an argument of the engine with a likely or any value, joined, apart, dotted or twice."""
    flag = draw(some.sampled_from(PLANNED) | some.sampled_from(sorted(read_arguments())))
    row = read_arguments()[flag]
    if row["kind"] == "switch":
        return [flag]
    likely = {
        "integer": some.integers(-2, 70).map(str),
        "number": some.floats(-1, 3).map(str),
        "size": some.sampled_from(("1", "1k", "2M", "1.5g", "0")),
        "size-or-auto": some.sampled_from(("auto", "-1", "512", "8K", "100m")),
        "text": some.sampled_from(("target", "drafter", "fp8", "a/b", "")),
    }.get(row["kind"], OBJECTS.map(json.dumps))
    if "choices" in row:
        likely = some.sampled_from([*map(str, row["choices"])])
    value = draw(some.one_of(likely, likely, likely, VALUES))
    if draw(some.integers(0, 4)):
        return draw(some.sampled_from(([flag, value], [f"{flag}={value}"])))
    dotted = f"{flag}.{draw(KEYS)}"
    return draw(some.sampled_from(([flag], [flag, value] * 2, [dotted, value], [dotted])))


@some.composite
def command_lines(draw: some.DrawFn) -> list[str]:
    """Draw a command line of a verb that plans, right in most of its parts."""
    verb = draw(some.sampled_from(("plan", "plan", "plan", "serve", "compare")))
    words = [verb, "target", *(["--dry-run"] if verb == "serve" else [])]
    if not draw(some.integers(0, 9)):
        words[1] = draw(some.sampled_from(TEXTS))
    if verb == "plan":
        words += ["--host", draw(some.sampled_from(("gb10", "h100", "h100x8", "cpu-server")))]
    for option in draw(some.lists(some.sampled_from(sorted(SOUND)), max_size=2, unique=True)):
        value = SOUND[option]
        words += [option] if value is None else [option, value]
    if not draw(some.integers(0, 3)):
        words += [draw(some.sampled_from(OPTIONS)), draw(VALUES)]
    if draw(some.integers(0, 4)):
        words.append("--")
        words += [word for part in draw(some.lists(engine_words(), max_size=2)) for word in part]
    return words


@pytest.fixture
def _no_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plan for a machine that does not change, and start nothing."""

    def stop(*_: object) -> None:
        raise InvalidInputError("nothing is measured here", hint="")

    write_pair(tmp_path, weights=True)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("slipstream.cli.measuring.compare.measure", stop)
    for module in ("serving.serve", "measuring.measuring_options", "planning.plan"):
        monkeypatch.setattr(f"slipstream.cli.{module}.read_host", lambda _: load_host("cpu-server"))


@pytest.mark.usefixtures("_no_engine")
def test_no_command_line_is_a_bug_of_ours() -> None:
    codes = dict[int, int]()

    @settings(
        max_examples=LINES, derandomize=True, database=None, suppress_health_check=[*HealthCheck]
    )
    @given(command_lines())
    def try_line(words: list[str]) -> None:
        shown = io.StringIO()
        with redirect_stdout(shown), redirect_stderr(shown):
            code = run(words, os.environ)
        codes[code] = codes.get(code, 0) + 1
        assert code != ExitCode.BUG, (words, shown.getvalue()[-400:])

    try_line()
    assert {ExitCode.DONE, ExitCode.EXPECTED_FAILURE, ExitCode.USAGE} <= codes.keys()
    assert sum(codes.values()) >= LINES
