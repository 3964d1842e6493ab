"""Every signature finds its own excerpt, the first cause comes first, and calm logs are left alone.

The excerpts say in their first line how they were had. The real ones lack the frames of the
scripts that raised them, and their paths are shortened.
"""

import re
import time
from pathlib import Path
from typing import get_args

import pytest

from slipstream.cli.arguments import VERBS, load_verb, make_verb_parser
from slipstream.errors import InvalidInputError
from slipstream.serving.kept_logs import find_place, read_end
from slipstream.serving.supervision.causes import diagnosis
from slipstream.serving.supervision.causes.diagnosis import (
    QUOTING,
    Cause,
    Signature,
    diagnose,
    diagnose_file,
    drop_quotes,
    load_signatures,
)

EXCERPTS = Path(__file__).parent / "excerpts"
CLEAN = "clean-start.log"
SIGNATURES = load_signatures()
SIGNATURE = """\
schema_version = 1

[[signatures]]
name = "no-fuel"
cause = "host"
retry = false
pattern = 'tank at (?P<share>\\d+) %'
meaning = "The tank is at {share} %."
remedy = "fill it"
sources = ["vllm#1"]
excerpt = "no-fuel.log"
"""


def read(name: str) -> str:
    return (EXCERPTS / name).read_text()


def names(log: str, exit_code: int | None = None) -> list[str]:
    return [finding.signature for finding in diagnose(log, exit_code=exit_code)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with one sound signature."""
    (tmp_path / "fuel.toml").write_text(SIGNATURE)
    return tmp_path


@pytest.mark.parametrize("signature", SIGNATURES, ids=lambda signature: signature.name)
def test_an_excerpt_is_found_by_its_own_signature_alone(signature: Signature) -> None:
    (finding,) = diagnose(read(signature.excerpt), notices=True)
    assert finding.signature == signature.name
    assert finding.line in read(signature.excerpt)
    assert finding.line
    assert not re.search(r"[{}]|\bunknown\b", finding.meaning + finding.remedy)


@pytest.mark.parametrize("signature", SIGNATURES, ids=lambda signature: signature.name)
def test_a_signature_names_public_sources_and_commands_that_exist(signature: Signature) -> None:
    assert not any(re.search(r"\bseed\b|^$", source) for source in signature.sources)
    assert set(re.findall(r"slipstream (\w+)", signature.remedy)) <= {*VERBS, "serve"}
    for verb, flag in re.findall(r"slipstream (\w+) [A-Z ]*(--[\w-]+)", signature.remedy):
        parser = make_verb_parser(verb, load_verb(verb))
        assert flag in parser.format_help()
    for version in (signature.since, signature.until):
        assert version is None or re.fullmatch(r"\d+\.\d+\.\d+", version)


def test_there_are_signatures_enough_and_one_for_every_cause() -> None:
    assert len(SIGNATURES) >= 34
    unlogged = {"no-acceptance", "rank-lost"}
    assert {signature.cause for signature in SIGNATURES} == set(get_args(Cause)) - unlogged


def test_every_excerpt_belongs_to_one_signature_and_says_how_it_was_had() -> None:
    used = [CLEAN, *(signature.excerpt for signature in SIGNATURES)]
    assert sorted(used) == sorted(path.name for path in EXCERPTS.iterdir())
    firsts = [read(name).splitlines()[0] for name in used]
    assert all(re.match(r"# (?:real: |reconstructed from )\S", first) for first in firsts)


def test_figures_are_filled_in() -> None:
    (finding,) = diagnose(read("sequence-exceeds-cache.log"))
    assert finding.meaning == (
        "One sequence of 262144 tokens needs 18.4 GiB of cache, but only 5.2 GiB are left beside "
        "the weights. About 74080 tokens fit."
    )
    assert finding.remedy == "slipstream plan TARGET --context 74080"
    assert finding.line.startswith("ValueError: To serve at least one request")
    assert (finding.cause, finding.retry) == ("out-of-memory", False)


def test_a_figure_that_the_log_lacks_is_unknown() -> None:
    (finding,) = diagnose("NVRM: GPU 0000:06:00.0: GPU has fallen off the bus.")
    assert finding.meaning.startswith("The accelerator at unknown no longer answers")
    (finding,) = diagnose("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB")
    assert finding.meaning.endswith("2.00 GiB was requested (free: unknown, in total: unknown).")


def test_a_start_and_an_end_without_a_fault_give_no_finding() -> None:
    assert diagnose(read(CLEAN)) == ()
    assert diagnose(read(CLEAN), exit_code=0) == ()
    assert diagnose("") == ()


def test_the_death_of_the_engine_does_not_hide_its_cause() -> None:
    echoes = read("worker-died.log") + read("engine-dead.log") + read("start-failed.log")
    assert names(echoes) == ["worker-died", "engine-dead", "start-failed"]
    assert names(echoes + read("auxiliary-width.log")) == ["auxiliary-width"]
    assert names(read("illegal-access.log") + echoes) == ["illegal-access"]


def test_of_two_causes_the_earlier_comes_first() -> None:
    port, mask = read("stale-socket.log"), read("mask-missing.log")
    assert names(port + mask) == ["stale-socket", "mask-missing"]
    assert names(mask + port) == ["mask-missing", "stale-socket"]


def test_what_says_more_comes_before_what_says_less() -> None:
    vague, exact = read("no-attention-backend.log"), read("mask-missing.log")
    assert names(vague + exact) == ["mask-missing", "no-attention-backend"]
    assert names(vague + read("draft-slots.log")) == ["draft-slots"]
    assert names(read("memory-out-while-capturing.log")) == ["memory-out-while-capturing"]


def test_a_refused_request_comes_after_what_ended_the_engine() -> None:
    refused = read("min-p.log")
    assert names(refused) == ["min-p"]
    assert names(refused + read("illegal-access.log")) == ["illegal-access", "min-p"]
    assert names(refused + read("engine-dead.log")) == ["engine-dead", "min-p"]


def test_what_only_slows_an_engine_is_no_reason_why_it_ended() -> None:
    slow = read("fp4-emulated.log")
    assert names(slow) == []
    found = diagnose(slow + read("illegal-access.log"), notices=True)
    assert [finding.signature for finding in found] == ["illegal-access", "fp4-emulated"]


def test_a_signal_is_told_though_the_log_is_silent() -> None:
    for code, signature in ((-9, "killed"), (137, "killed"), (-11, "segmentation-fault")):
        (finding,) = diagnose(read(CLEAN), exit_code=code)
        assert (finding.signature, finding.line) == (signature, f"exit code {code}")
    assert names(read(CLEAN), exit_code=1) == []
    assert names(read("memory-out-for-cache.log"), exit_code=-9) == ["memory-out-for-cache"]


def test_words_in_a_prompt_are_no_failure() -> None:
    words = "[logger.py:39] prompt: 'CUDA error: an illegal memory access was encountered'\n"
    assert names(f"(APIServer pid=7) INFO 11-15 04:47:11 {words}") == []
    assert names(f"INFO 11-15 04:47:11 {words}") == []
    assert names(f"(EngineCore pid=9) ERROR 11-15 04:47:11 {words}") == ["illegal-access"]


@pytest.mark.parametrize(
    "line",
    [
        "OSError: [Errno 24] Too many open files",
        "(APIServer pid=1) (EngineCore_DP0 pid=68) ERROR 02-06 16:34:06 [core.py:936] "
        "OSError: [Errno 24] Too many open files",
        "\x1b[0;36m(Worker_TP0 pid=9)\x1b[0;0m OSError: [Errno 24] Too many open files",
        "Loading shards:  12%\rOSError: [Errno 24] Too many open files\r",
    ],
)
def test_a_line_is_read_without_its_process_its_colours_and_its_progress(line: str) -> None:
    (finding,) = diagnose(line)
    assert finding.line == "OSError: [Errno 24] Too many open files"


def test_only_the_end_of_a_long_log_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(diagnosis, "READ_BYTES", 10_000)
    fault, filler, log = read("mask-missing.log"), "calm weather\n" * 1000, tmp_path / "engine.log"
    for text, expected in ((fault + filler, []), (filler + fault, ["mask-missing"])):
        log.write_text(text)
        assert names(text) == expected
        assert [finding.signature for finding in diagnose_file(log)] == expected


def test_a_log_need_not_be_text_throughout(tmp_path: Path) -> None:
    (tmp_path / "engine.log").write_bytes(b"\xff\x00\n" + read("mask-missing.log").encode())
    assert [finding.signature for finding in diagnose_file(tmp_path / "engine.log")] == [
        "mask-missing"
    ]


def test_a_log_that_is_not_there_is_an_error_with_a_way_out(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="No such file or directory") as caught:
        diagnose_file(tmp_path / "engine.log")
    assert caught.value.hint == "give the engine's log"


@pytest.mark.parametrize("unit", ["  File 'x.py', line 20, in profile_run\n", read(CLEAN)])
def test_a_megabyte_is_read_in_seconds(unit: str) -> None:
    log = (unit * (1 + (1 << 20) // len(unit)))[: 1 << 20]
    diagnose("")
    started = time.process_time()
    assert diagnose(log) == ()
    # About 0.3 s; beside other work processor time is a multiple of that. Backtracking takes hours.
    assert time.process_time() - started < 5


def test_signatures_are_read_from_every_file_of_a_folder(folder: Path) -> None:
    (folder / "air.toml").write_text(SIGNATURE.replace("no-fuel", "no-air"))
    assert [signature.name for signature in load_signatures(folder)] == ["no-air", "no-fuel"]
    assert load_signatures(folder) is load_signatures(folder)


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("(?P<share>", "(?P<share", "Value error, no-fuel: missing >, unterminated name"),
        ("{share}", "{part}", "Value error, no-fuel: its pattern finds no part"),
        ("fill it", "fill {it", "Value error, no-fuel: expected '}' before end of string"),
        ('["vllm#1"]', "[]", "sources: Tuple should have at least 1 item"),
    ],
)
def test_a_faulty_signature_is_refused_with_its_place(
    folder: Path, old: str, new: str, fault: str
) -> None:
    path = folder / "fuel.toml"
    path.write_text(SIGNATURE.replace(old, new))
    with pytest.raises(InvalidInputError) as caught:
        load_signatures(folder)
    assert caught.value.message == f"{path} has invalid signatures"
    assert caught.value.details[0].startswith("signatures[0]")
    assert fault in caught.value.details[0]
    assert caught.value.hint == f"correct {path}"


def test_two_signatures_of_one_name_are_refused(folder: Path) -> None:
    (folder / "tank.toml").write_text(SIGNATURE)
    with pytest.raises(InvalidInputError, match=r"tank\.toml has a second no-fuel"):
        load_signatures(folder)


# Each as vLLM 0.32 and uvicorn write it, with the caller's words in the place of {}.
QUOTES = Path(__file__).parent / "quotes"
EXAMPLES = {path.stem: path.read_bytes().decode() for path in sorted(QUOTES.iterdir())}
WORDS = (
    "Illegal instruction",
    "Bus error",
    "[Errno 28] No space left on device",
    "CUDA error: an illegal memory access was encountered",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
    "x\rIllegal instruction\rFatal Python error: Bus error",
    "died unexpectedly (exit code: -9)",
    "ValueError: Model does not support EAGLE3 interface, device-side assert triggered",
)


def test_every_kind_of_record_has_its_example() -> None:
    assert EXAMPLES.keys() == QUOTING.keys()


@pytest.mark.parametrize("words", WORDS)
@pytest.mark.parametrize("kind", EXAMPLES)
def test_what_a_request_writes_into_the_log_is_no_cause(kind: str, words: str) -> None:
    log = EXAMPLES[kind].replace("{}", words) + "\n"
    assert diagnose(log) == ()
    assert words not in drop_quotes(log)


@pytest.mark.parametrize("kind", EXAMPLES)
def test_what_the_engine_says_after_it_is_kept(kind: str) -> None:
    said = "(EngineCore pid=9) ERROR 11-16 04:47:12 [core.py:1512] OSError: [Errno 24] Too many"
    log = f"{EXAMPLES[kind]}\n{said}\nKilled\n"
    assert drop_quotes(log).endswith(f"{said}\nKilled\n")


@pytest.mark.parametrize("most_bytes", range(1, 120))
def test_half_a_quoting_record_is_no_cause(tmp_path: Path, most_bytes: int) -> None:
    log = tmp_path / "engine.log"
    text = EXAMPLES["model"].replace("{}", "Illegal instruction") + "\nKilled\n"
    log.write_text(text[:-most_bytes])
    place = find_place(log)
    log.write_text(text)
    for read in (read_end(log, most_bytes), read_end(log, 10**6, place)):
        assert diagnose(read) in ((), diagnose("Killed"))
        assert drop_quotes(read) in ("", "Killed\n")
    assert read_end(log, 10**6) == log.read_text()
    assert read_end(log, len("Killed\n")) == "Killed\n"


def test_colours_hide_no_record() -> None:
    assert drop_quotes("\x1b[0;36m" + EXAMPLES["model"]) == ""


def test_a_progress_bar_before_it_does_not_hide_where_a_record_begins() -> None:
    log = "Loading shards:  12%\r" + EXAMPLES["model"].replace("{}", "x\rIllegal instruction")
    assert drop_quotes(log) == "Loading shards:  12%"
