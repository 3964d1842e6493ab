"""What a pattern matches reaches no file; a hostile text costs itself only."""

import random
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models

from slipstream.learning import collector
from slipstream.learning.collector import strike_out
from slipstream.learning.kept_text import (
    FILE_BYTES,
    FILES_PER_KIND,
    SOCKET,
    decode,
    encode,
    read_kept,
)
from slipstream.steering.state import KINDS
from slipstream.vllm_plugin.steering.answer_sender import AnswerSender

MAIL = re.compile(r"[\w.]+@[\w.]+")


def to_text(tokens: Sequence[int]) -> str:
    return "".join(map(chr, tokens))


def strike(prompt: str, answer: str, *patterns: re.Pattern[str]) -> str | None:
    """Return what is kept of an answer; tokens are letters."""
    record = encode("code", 0, list(map(ord, prompt)), list(map(ord, answer)))
    assert record is not None
    kept = strike_out(decode(record), patterns or (MAIL,), to_text)
    return None if kept is None else to_text(kept.answer.tolist())


def test_an_answer_is_kept_up_to_its_first_match() -> None:
    # So little is not kept at all.
    assert strike("who?", "it is ann@example.com here, and bob@example.com") is None
    told = strike("who?", "as you know, it is ann@example.com, or bob@example.com")
    assert told == "as you know, it is "
    assert strike("who?", "nobody that I know") == "nobody that I know"


def test_a_question_with_a_match_is_not_kept_nor_one_across_the_border() -> None:
    assert strike("I am ann@example.com, who?", "that is all I know of it") is None
    assert strike("say ann@", "example.com and much more") is None


def test_a_pattern_that_takes_too_long_for_a_text_costs_the_text(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(collector, "MATCH_SECONDS", 0.1)
    slow = re.compile(r"(a+)+b")
    began = time.monotonic()
    assert strike("who?", "a" * 40, slow) is None
    assert time.monotonic() - began < 2
    assert strike("who?", "nobody that I know", slow) == "nobody that I know"


@contextmanager
def running(folder: Path, *patterns: str, tokenizer: str = "-") -> Iterator[Path]:
    """Run the collector, until the block ends; yield where it keeps."""
    with started(folder, *patterns, tokenizer=tokenizer):
        yield folder / "kept"


@contextmanager
def started(
    folder: Path, *patterns: str, tokenizer: str = "-"
) -> Iterator["subprocess.Popen[bytes]"]:
    place = folder / SOCKET
    place.unlink(missing_ok=True)
    words = (str(folder / "kept"), str(place), tokenizer, *patterns)
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "slipstream.learning.collector", *words]
    )
    try:
        until = time.monotonic() + 20
        while not place.exists():
            assert time.monotonic() < until
            time.sleep(0.02)
        yield process
    finally:
        process.kill()
        process.wait()


def wait_for(folder: Path, count: int) -> list[int]:
    until = time.monotonic() + 20
    while len(read := [len(one.answer) for one in read_kept(folder)]) < count:
        assert time.monotonic() < until, read
        time.sleep(0.02)
    return read


def test_the_core_sends_without_waiting_and_finds_a_collector_that_comes_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sender = AnswerSender(tmp_path / SOCKET)
    sender.send("code", [1, 2], [3] * 9)
    monkeypatch.setattr("slipstream.vllm_plugin.steering.answer_sender.LOOK_EVERY_SECONDS", 0.0)
    with running(tmp_path) as kept:
        sender.send("code", [1, 2], [3] * 10)
        sender.send("prose", [1, 2], [3] * 3)
        assert wait_for(kept, 1) == [10]
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as stranger:
            stranger.connect(str(tmp_path / SOCKET))
            for junk in (b"", b"junk", b"\0" * 70_000):
                stranger.send(junk)
        sender.send("code", [1, 2], [3] * 11)
        assert wait_for(kept, 2) == [10, 11]
    for _ in range(3):
        sender.send("code", [1, 2], [3] * 12)
    with running(tmp_path) as kept:
        for _ in range(3):
            sender.send("code", [1, 2], [3] * 13)
        assert 13 in wait_for(kept, 3)
    sender.close()


def test_a_stuck_collector_costs_the_core_no_time(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as stuck:
        stuck.bind(str(tmp_path / SOCKET))
        sender = AnswerSender(tmp_path / SOCKET)
        began = time.monotonic()
        for _ in range(2000):
            sender.send("code", [1] * 100, [3] * 100)
        assert time.monotonic() - began < 5
        sender.close()


@pytest.mark.weekly
@pytest.mark.timeout(600)
def test_100_000_answers_take_no_more_disk_and_memory_and_leave_nothing_struck_out(
    tmp_path: Path,
) -> None:
    letters = {chr(code): code - 31 for code in range(32, 127)}
    spelling = Tokenizer(models.WordLevel({"": 0, **letters}, unk_token=""))
    spelling.decoder = decoders.Fuse()
    spelling.save(str(tmp_path / "tokenizer.json"))
    chance, struck, sizes = random.Random(1), 0, list[tuple[int, int]]()
    patterns = (MAIL.pattern, r"hunter\d+")
    with (
        started(tmp_path, *patterns, tokenizer=str(tmp_path / "tokenizer.json")) as process,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as core,
    ):
        core.connect(str(tmp_path / SOCKET))
        for number in range(100_000):
            text = "what is it that is asked here, and told, over and over? " * 4
            if number % 7 == 0:
                struck, place = struck + 1, chance.randrange(len(text))
                secret = chance.choice(["SECRET.ann@example.com", "hunter2SECRET"])
                text = f"{text[:place]} {secret} {text[place:]}"
            tokens, border = [letters[one] for one in text], chance.randrange(20, 100)
            record = encode(KINDS[number % len(KINDS)], 0, tokens[:border], tokens[border:])
            assert record is not None
            core.send(record)
            if number % 10_000 == 9_999:
                status = Path(f"/proc/{process.pid}/status").read_text()
                kept = sum(one.stat().st_size for one in (tmp_path / "kept").iterdir())
                sizes.append((int(re.search(r"VmHWM:\s+(\d+)", status)[1]) >> 10, kept >> 20))  # type: ignore[index]
    sys.stdout.write(f"{struck} struck out; MiB of memory and disk every 10,000: {sizes}\n")
    texts = [spelling.decode([*one.prompt, *one.answer]) for one in read_kept(tmp_path / "kept")]
    assert len(texts) > 1000
    assert not [text for text in texts if "SECRET" in text or "@" in text or "hunter" in text]
    assert max(kept for _, kept in sizes) <= len(KINDS) * FILES_PER_KIND * FILE_BYTES >> 20
    assert sizes[-1][0] - sizes[0][0] <= 2
