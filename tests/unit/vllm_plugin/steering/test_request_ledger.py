"""The ledger: counts by request and by kind, and nothing of what a client wrote."""

import json
import time

import pytest

from slipstream.steering.drafts import Drafts
from slipstream.steering.ledger import LedgerLine
from slipstream.steering.state import KindCounts
from slipstream.vllm_plugin.steering.request_ledger import RequestLedger, Tag, read_tag


@pytest.mark.parametrize(
    ("arguments", "tag"),
    [
        (None, Tag()),
        ({}, Tag()),
        ({"slipstream": 7}, Tag()),
        ({"slipstream": "a b c"}, Tag()),
        ({"slipstream": "id\x1b[2J - code chat"}, Tag()),
        ({"slipstream": "id - code chat"}, Tag("id", None, "code", "chat")),
        ({"slipstream": "id team poems everywhere"}, Tag("id", "team", "other", None)),
        ({"slipstream": "i" * 100 + " k prose messages"}, Tag("i" * 64, "k", "prose", "messages")),
    ],
)
def test_a_tag_says_what_the_gate_wrote_and_nothing_else(arguments: object, tag: Tag) -> None:
    assert read_tag(arguments) == tag


def see(ledger: RequestLedger, now: float, **requests: tuple[int, int, int, bool]) -> None:
    """Count a step with the tokens, verified and accepted draft tokens of each request."""
    tokens, drafted, accepted, copied = zip(*requests.values(), strict=True)
    ledger.see_step(list(requests), tokens, drafted, accepted, copied, now)


def test_a_request_is_counted_from_its_first_step_to_its_line() -> None:
    lines: list[dict[str, object]] = []
    ledger = RequestLedger(3, lines.append)
    ledger.begin("r", {"slipstream": "one team code chat"}, 0.0)
    ledger.see_cached("r", 16)
    see(ledger, 0.5, r=(0, 0, 0, False), other=(3, 3, 2, False))
    see(ledger, 1.0, r=(1, 0, 0, False), other=(3, 3, 2, False))
    see(ledger, 2.0, r=(3, 3, 2, False), other=(3, 3, 2, False))
    see(ledger, 3.0, r=(1, 2, 0, False), **{f"o{i}": (1, 0, 0, False) for i in range(3)})
    ledger.end("r", "stop", prompt=20, tokens=5)
    (line,) = lines
    assert {name: line[name] for name in ("id", "key", "kind", "route", "ended")} == {
        "id": "one",
        "key": "team",
        "kind": "code",
        "route": "chat",
        "ended": "stop",
    }
    assert (line["steps"], line["drafts"], line["drafted"], line["accepted"]) == (
        3,
        2,
        5,
        [1, 1, 0],
    )
    assert (line["prompt_tokens"], line["cached_tokens"], line["tokens"]) == (20, 16, 5)
    assert (line["batch"], line["draft_length"]) == (2.67, 1.67)
    assert "expected" not in line
    drafts = Drafts(drafts=2, drafted=5, accepted=(1, 1, 0)).model_dump()
    expected = KindCounts(requests=1, aborted=0, tokens=5, steps=3, **drafts)
    assert ledger.describe_kinds() == {"code": expected}
    assert ledger.tokens == 5


def test_copies_are_counted_apart_from_the_drafters_drafts() -> None:
    lines: list[dict[str, object]] = []
    ledger = RequestLedger(3, lines.append)
    ledger.begin("r", {"slipstream": "one team code chat"}, 0.0)
    ledger.begin("s", {"slipstream": "two team code chat"}, 0.0)
    both, now = ["r", "s"], time.monotonic() + 1
    said = {"expected": [9.0, 1.25], "first": [0.9, 0.5]}
    ledger.see_step(both, [32, 3], [31, 3], [31, 2], [True, False], now, **said)
    said = {"expected": [1.5, 9.0], "first": [0.8, 0.0]}
    ledger.see_step(both, [2, 1], [3, 0], [1, 0], [False, True], now, **said)
    counts = ledger.describe_kinds()["code"]
    assert (counts.drafts, counts.drafted, counts.accepted) == (2, 6, (2, 1, 0))
    assert (counts.copies, counts.copied, counts.copied_accepted) == (1, 31, 31)
    assert (counts.tokens, counts.steps, counts.requests) == (38, 4, 0)
    ledger.end("r", "stop", prompt=20, tokens=34)
    assert ledger.describe_kinds()["code"] == counts.model_copy(update={"requests": 1})
    (line,) = lines
    assert (line["drafts"], line["drafted"], line["accepted"], line["expected"]) == (
        *(1, 3, [1, 0, 0]),
        1.5,
    )
    assert (line["copies"], line["copied"], line["copied_accepted"]) == (1, 31, 31)
    assert (line["proposals"], line["first_expected"]) == (2, 0.9)
    assert LedgerLine.model_validate_json(json.dumps(line)).copied == 31


def test_slots_are_used_again_and_grow_with_the_requests() -> None:
    lines: list[dict[str, object]] = []
    ledger = RequestLedger(3, lines.append)
    names = [f"r{number}" for number in range(1000)]
    for name in names:
        ledger.begin(name, {"slipstream": f"{name} - code chat"}, 0.0)
    ledger.see_step(names, range(1000), [3] * 1000, [1] * 1000, [False] * 1000, 1.0)
    for name in names[::2]:
        ledger.end(name, "stop", prompt=1, tokens=1)
    for name in names[::2]:
        ledger.begin(f"new-{name}", {"slipstream": f"new-{name} - prose chat"}, 0.0)
    mixed = [f"new-{name}" if place % 2 == 0 else name for place, name in enumerate(names)]
    ledger.see_step(mixed, [1] * 1000, [0] * 1000, [0] * 1000, [False] * 1000, 2.0)
    kinds = ledger.describe_kinds()
    assert (kinds["code"].tokens, kinds["prose"].tokens) == (999 * 500 + 500, 500)
    assert (kinds["code"].drafts, kinds["prose"].drafts) == (1000, 0)
    for name in mixed:
        ledger.end(name, "stop", prompt=1, tokens=1)
    assert ledger.tokens == sum(one.tokens for one in ledger.describe_kinds().values())
    assert {line["steps"] for line in lines[500::2]} == {1}
    assert [line["drafts"] for line in lines[500:504]] == [0, 1, 0, 1]


def test_a_client_that_left_has_its_line_and_a_stranger_none() -> None:
    lines: list[dict[str, object]] = []
    ledger = RequestLedger(3, lines.append)
    ledger.begin("r", None, None)
    see(ledger, 1.0, stranger=(3, 3, 3, False))
    ledger.end("stranger", "stop", prompt=1, tokens=1)
    ledger.end("r", "aborted", prompt=9, tokens=0)
    ledger.end("r", "aborted", prompt=9, tokens=0)
    (line,) = lines
    assert (line["ended"], line["kind"], line["first_seconds"], line["batch"]) == (
        *("aborted", "other"),
        *(None, None),
    )
    assert ledger.describe_kinds()["other"].aborted == 1
    assert ledger.tokens == 0
