"""Supervisors of a group believe what is signed, fresh and from a member, and nothing else."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from slipstream.errors import InvalidInputError
from slipstream.planning.group import Group, Member
from slipstream.serving.group import link as link_module
from slipstream.serving.group.link import (
    MOST_BYTES,
    SILENT_AFTER_SECONDS,
    GroupLink,
    HeadOrder,
    Heartbeat,
    RankReport,
    read_secret,
    sign,
    verify,
)
from slipstream.serving.supervision.engine_process import choose_port

SECRET = b"s" * 32
MEMBERS = (Member(name="one", address="127.0.0.1"), Member(name="two", address="127.0.0.2"))
ORDER = HeadOrder(generation=1, runs=True, state="ready")


def make_group(rank: int, port: int = 1) -> Group:
    return Group(name="a", rank=rank, members=MEMBERS, watch_port=port, secret_file="s")


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Pair:
    """A follower's link that is not opened, and beats as the head sends them."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.link = GroupLink(make_group(1), SECRET, RankReport, self.clock)

    def make(self, number: int = 1, session: str = "0" * 32, **changes: Any) -> Heartbeat:
        whole = {
            "group": "a",
            "sender": 0,
            "receiver": 1,
            "session": session,
            "echo": self.link.session,
            "number": number,
            "body": ORDER,
        }
        return Heartbeat.model_validate({**whole, **changes})

    def receive(
        self, beat: Heartbeat, *, secret: bytes = SECRET, address: str = "127.0.0.1"
    ) -> Heartbeat | None:
        """Hand the link a datagram, and return what it has heard by then."""
        self.link.datagram_received(sign(beat, secret), (address, 1))
        return self.link.hear(0)


def test_a_fresh_beat_is_heard_until_its_sender_is_silent() -> None:
    pair = Pair()
    assert pair.receive(beat := pair.make()) == beat
    pair.clock.now = SILENT_AFTER_SECONDS
    assert pair.link.hear(0) == beat
    pair.clock.now += 0.1
    assert pair.link.hear(0) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"echo": None},
        {"echo": "f" * 32},
        {"group": "b"},
        {"receiver": 0},
        {"sender": 1},
        {"sender": 7},
        {"body": RankReport(running=1)},
    ],
)
def test_what_is_not_for_this_supervisor_is_not_heard(changes: dict[str, Any]) -> None:
    pair = Pair()
    assert pair.receive(pair.make(**changes)) is None


def test_a_strangers_beat_is_not_heard() -> None:
    pair = Pair()
    assert pair.receive(pair.make(), secret=b"t" * 32) is None
    assert pair.receive(pair.make(), address="127.0.0.3") is None
    for datagram in (b"", b"\0" * 31, b"\0" * 64, sign(pair.make(), SECRET) + b" "):
        pair.link.datagram_received(datagram, ("127.0.0.1", 1))
    assert pair.link.hear(0) is None


def test_a_recorded_beat_is_heard_once() -> None:
    pair = Pair()
    first, second = pair.make(1), pair.make(2)
    assert pair.receive(second) == second
    pair.clock.now = SILENT_AFTER_SECONDS + 1
    for beat in (first, second):
        assert pair.receive(beat) is None


def test_a_sender_that_started_anew_is_heard_and_its_earlier_beats_are_not() -> None:
    pair = Pair()
    pair.receive(pair.make(7))
    anew = pair.make(1, session="1" * 32)
    assert pair.receive(anew) == anew
    assert pair.receive(pair.make(8)) == anew
    for restart in range(300):
        last = pair.make(1, session=f"{restart + 2:032x}")
        assert pair.receive(last) == last
    for session in ("0" * 32, "1" * 32, f"{2:032x}"):
        assert pair.receive(pair.make(9, session=session)) == last


def test_a_beat_changed_on_its_way_is_none_and_the_longest_fits() -> None:
    longest = Pair().make(
        body=HeadOrder(**{**ORDER.model_dump(), "message": "\N{BLACK STAR}" * 300})
    )
    datagram = sign(longest, SECRET)
    assert len(datagram) <= MOST_BYTES
    assert verify(datagram, SECRET) == longest
    for place in (0, 31, 32, len(datagram) - 1):
        changed = bytearray(datagram)
        changed[place] ^= 1
        assert verify(bytes(changed), SECRET) is None
    assert verify(datagram + b" " * MOST_BYTES, SECRET) is None


def test_two_links_hear_each_other_and_one_that_comes_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(link_module, "BEAT_EVERY_SECONDS", 0.01)
    port = choose_port(None)

    async def until(holds: Callable[[], object]) -> None:
        while not holds():
            await asyncio.sleep(0.005)

    async def meet() -> None:
        head = GroupLink(make_group(0, port), SECRET, lambda: ORDER)
        first = GroupLink(make_group(1, port), SECRET, lambda: RankReport(running=1))
        await asyncio.gather(head.open(), first.open())
        await until(lambda: head.hear(1) and first.hear(0))
        await first.close()
        second = GroupLink(make_group(1, port), SECRET, lambda: RankReport(ended=1))
        await second.open()
        await until(lambda: (beat := head.hear(1)) and beat.body == RankReport(ended=1))
        await until(lambda: (beat := second.hear(0)) and beat.body == ORDER)
        with pytest.raises(InvalidInputError, match=r"cannot listen at 127\.0\.0\.2"):
            await GroupLink(make_group(1, port), SECRET, RankReport).open()
        await asyncio.gather(head.close(), second.close())

    async def bounded(run: Awaitable[None]) -> None:
        await asyncio.wait_for(run, 20)

    asyncio.run(bounded(meet()))


def test_only_a_secret_that_nobody_else_can_read_is_taken(tmp_path: Path) -> None:
    file = tmp_path / "a.key"
    file.write_bytes(SECRET + b"\n")
    file.chmod(0o600)
    assert read_secret(file) == SECRET
    file.chmod(0o640)
    with pytest.raises(InvalidInputError, match="other users can read") as refused:
        read_secret(file)
    assert refused.value.hint == f"chmod 600 {file}"
    file.write_bytes(b"short\n")
    file.chmod(0o600)
    with pytest.raises(InvalidInputError, match="has 5 bytes"):
        read_secret(file)
    with pytest.raises(InvalidInputError, match="No such file"):
        read_secret(tmp_path / "none")
