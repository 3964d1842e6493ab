"""The ledger: counts by request and by kind, and nothing of what a client wrote."""

import pytest

from slipstream.steering.drafts import Drafts
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


def test_a_request_is_counted_from_its_first_step_to_its_line() -> None:
    lines: list[dict[str, object]] = []
    ledger = RequestLedger(3, lines.append)
    ledger.begin("r", {"slipstream": "one team code chat"}, 0.0)
    ledger.see_cached("r", 16)
    ledger.see_tokens("r", 1, 2, 1.0)
    ledger.see_draft("r", 3, 2)
    ledger.see_tokens("r", 3, 2, 2.0)
    ledger.see_draft("r", 2, 0)
    ledger.see_tokens("r", 1, 4, 3.0)
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
    drafts = Drafts(drafts=2, drafted=5, accepted=(1, 1, 0)).model_dump()
    expected = KindCounts(requests=1, aborted=0, tokens=5, steps=3, **drafts)
    assert ledger.describe_kinds() == {"code": expected}


def test_a_client_that_left_has_its_line_and_a_stranger_none() -> None:
    lines: list[dict[str, object]] = []
    ledger = RequestLedger(3, lines.append)
    ledger.begin("r", None, None)
    ledger.see_draft("stranger", 3, 3)
    ledger.see_tokens("stranger", 3, 1, 1.0)
    ledger.end("stranger", "stop", prompt=1, tokens=1)
    ledger.end("r", "aborted", prompt=9, tokens=0)
    ledger.end("r", "aborted", prompt=9, tokens=0)
    (line,) = lines
    assert (line["ended"], line["kind"], line["first_seconds"], line["batch"]) == (
        *("aborted", "other"),
        *(None, None),
    )
    assert ledger.kinds["other"].aborted == 1
    assert ledger.tokens == 0
