"""Every ending of a command has its exit code and its words."""

import json
import signal
import subprocess
import sys
from types import ModuleType

import pytest

from slipstream import __version__
from slipstream.cli.arguments import parse_arguments
from slipstream.cli.main import run
from slipstream.cli.planning import probe
from slipstream.cli.serving import doctor
from slipstream.cli.words import FOREIGN_VERBS
from slipstream.errors import MissingPartError
from tests.snapshots import read_snapshot

Capture = pytest.CaptureFixture[str]


def test_without_a_verb_the_help_is_shown(capsys: Capture) -> None:
    assert run([], {}) == 0
    shown = capsys.readouterr().out
    assert shown == read_snapshot("help.txt", shown)


def test_help_and_version_leave_with_0(capsys: Capture) -> None:
    for flag in ("--help", "--version"):
        with pytest.raises(SystemExit) as ended:
            run([flag], {})
        assert ended.value.code == 0
    ours, *engine = capsys.readouterr().out.splitlines()[-1].split(", ")
    assert ours == f"slipstream {__version__}"
    assert engine[0].startswith(("vllm", "no engine (pip install "))


HEAVY = {"numpy", "scipy", "shtab", "torch", "vllm"}


@pytest.mark.parametrize(
    ("words", "heavy"),
    [
        (("--help",), HEAVY | {"pydantic", "slipstream.cli.defaults"}),
        (("--version",), HEAVY | {"pydantic", "slipstream.cli.defaults"}),
        (("completion", "--list", "targets"), HEAVY | {"pydantic"}),
        (("plan", "Qwen/Qwen3-8B", "--host", "h100"), HEAVY),
        (("serve", "--help"), HEAVY),
        (("status", "--help"), HEAVY),
        (("doctor",), {"torch", "transformers", "vllm"}),
    ],
)
def test_a_command_imports_nothing_heavy(words: tuple[str, ...], heavy: set[str]) -> None:
    code = (
        "import sys; from slipstream.cli.main import run\n"
        "try: run(sys.argv[1:], {})\n"
        "finally: print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True)
    loaded = {*done.stderr.split()}
    assert "slipstream.cli.main" in loaded
    assert not heavy & loaded


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("misspelt-verb", ["prob"]),
        ("unknown-verb", ["levitate"]),
        ("unknown-flag", ["probe", "--colour"]),
        ("missing-value", ["probe", "--host"]),
        ("unknown-root-flag", ["--colour"]),
    ],
)
def test_a_usage_error_says_what_to_type(name: str, arguments: list[str], capsys: Capture) -> None:
    assert run(arguments, {}) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err == read_snapshot(f"usage-{name}.txt", shown.err)


def test_a_bug_leaves_with_70_and_asks_for_a_report(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stumble(*_: object) -> None:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr(probe, "run", stumble)
    assert run(["probe"], {}) == 70
    brief = capsys.readouterr().err
    assert brief == read_snapshot("bug.txt", brief)
    assert run(["probe", "--verbose"], {}) == 70
    assert 'raise ZeroDivisionError("division by zero")' in capsys.readouterr().err


@pytest.mark.parametrize(
    ("verb", "hint"),
    [(probe, "slipstream doctor"), (doctor, "install Slipstream again, in a new environment")],
)
def test_a_package_that_cannot_be_imported_is_no_bug_of_ours(
    verb: ModuleType, hint: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stumble(*_: object) -> None:
        cause = RuntimeError("operator torchvision::nms does not exist\nMore of it")
        raise ModuleNotFoundError("Could not import module 'LlamaConfig'.") from cause

    monkeypatch.setattr(verb, "run", stumble)
    assert run([verb.__name__.rpartition(".")[2]], {}) == MissingPartError.exit_code
    shown = capsys.readouterr().err
    assert "cannot be imported: operator torchvision::nms does not exist\n" in shown
    assert f"hint: {hint}\n" in shown


@pytest.mark.parametrize("wrapped", [False, True])
def test_an_interrupt_leaves_with_130_even_if_python_wrapped_it(
    wrapped: bool, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        if wrapped:
            raise RuntimeError("Error calling __set_name__") from KeyboardInterrupt()
        raise KeyboardInterrupt

    monkeypatch.setattr(probe, "run", interrupt)
    assert run(["probe"], {}) == 130
    assert capsys.readouterr().err == ""


def test_an_expected_failure_under_json_is_a_document_on_stderr(capsys: Capture) -> None:
    assert run(["probe", "--json", "--host", "nowhere.json"], {}) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    error = json.loads(shown.err)["error"]
    assert error["message"].startswith("there is no file nowhere.json")
    assert error["hint"] == "slipstream probe --json > FILE, on that machine"


def test_an_unsupported_host_is_shown_and_warned_about(capsys: Capture) -> None:
    assert run(["probe", "--host", "apple-laptop"], {}) == 0
    shown = capsys.readouterr()
    assert "Apple M4 Max" in shown.out
    assert shown.err.startswith("warning: Apple M4 Max runs darwin")
    assert "\nhint: " in shown.err


# A command whose verb waits for a line, and gives its length as the exit code.
WAITING = """
import signal, sys
from slipstream.cli import main
from slipstream.cli.planning import probe

def wait(*_):
    try:
        print("ready", flush=True)
        return len(sys.stdin.readline())
    finally:
        print("unwound", flush=True)

probe.run = wait
sys.argv = ["slipstream", "probe"]
{before}
main.run_and_exit()
"""


def end_with(number: signal.Signals, *, before: str = "", line: str = "") -> tuple[int, str, str]:
    """Send a signal to the command while it waits, then a line; return how it ended."""
    code = WAITING.format(before=before)
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=pipe, stdout=pipe, stderr=pipe, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        child.send_signal(number)
        said, complained = child.communicate(line or None, timeout=30)
    return child.returncode, said, complained


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_command_that_is_told_to_end_unwinds(number: signal.Signals) -> None:
    default = f"signal.signal({number:d}, signal.SIG_DFL)"
    assert end_with(number, before=default) == (128 + number, "unwound\n", "")


def test_a_hangup_that_is_ignored_stays_ignored() -> None:
    ignored = "signal.signal(signal.SIGHUP, signal.SIG_IGN)"
    assert end_with(signal.SIGHUP, before=ignored, line="go on\n") == (6, "unwound\n", "")


@pytest.mark.parametrize("verb", FOREIGN_VERBS)
def test_a_verb_of_another_program_gets_the_command_that_does_it_here(
    verb: str, capsys: Capture
) -> None:
    rest = [] if verb.startswith("fleet") else ["Qwen/Qwen3-8B"]
    assert run([*verb.split(), *rest], {}) == 2
    hint = capsys.readouterr().err.split("hint: ")[1].strip()
    assert hint == " ".join(["slipstream", FOREIGN_VERBS[verb], *rest])
    parse_arguments(hint.split()[1:])


def test_help_of_a_verb_is_found_from_either_side(capsys: Capture) -> None:
    for words in (["help", "probe"], ["probe", "--help"], ["help", "fleet", "up"], ["help"]):
        with pytest.raises(SystemExit):
            run(words, {})
    shown = capsys.readouterr().out.split("usage: slipstream ")
    assert shown[1] == shown[2]
    assert shown[3].startswith("fleet up ")
    assert shown[4].startswith("[--help]")


@pytest.mark.parametrize(
    ("words", "raw"),
    [
        ("serve M --max-model-len 8192", ["--max-model-len", "8192"]),
        ("plan --max_num_seqs=4 M --host h100", ["--max_num_seqs=4"]),
        ("serve M --enforce-eager --port 8001 --seed -1", ["--enforce-eager", "--seed", "-1"]),
        ("serve -tp 2 M -- --seed 1", ["-tp", "2", "--seed", "1"]),
        ("tune M --speculative-config.method mtp", ["--speculative-config.method", "mtp"]),
        ("plan M --served-model-name a b --k 3", ["--served-model-name", "a", "b"]),
    ],
)
def test_arguments_of_vllm_are_taken_where_people_type_them(words: str, raw: list[str]) -> None:
    _, options, _ = parse_arguments(words.split())
    assert options.raw == raw
    assert options.target == "M"


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        ("serve M --host 0.0.0.0 --port 80", "is --bind", "serve M --port 80 --bind 0.0.0.0"),
        ("plan M --host 0.0.0.0", "names a machine", "serve TARGET --bind 0.0.0.0"),
        ("status --max-model-len", "unrecognized arguments: --max-model-len", "status --help"),
        ("plan M --max-model-length 4", "did you mean --max-model-len?", "plan --help"),
        ("plan M --gpu rtx-4090", "did you mean --host?", "plan --help"),
        ("plan M --contxt 4", "did you mean --context?", "plan --help"),
    ],
)
def test_what_is_not_taken_gets_the_nearest_that_is(
    words: str, message: str, hint: str, capsys: Capture
) -> None:
    assert run(words.split(), {}) in (1, 2)
    error = capsys.readouterr().err
    assert message in error
    assert error.endswith(f"hint: slipstream {hint}\n")
