"""What the hub refuses is told by what can be done about it, and what it tells is not trusted."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from slipstream.errors import InvalidInputError, MissingPartError, SlipstreamError
from slipstream.serving.hub_listing import find_token
from tests.unit.serving.fake_hub import COMMIT, NAME, Fault, run_hub
from tests.unit.serving.hub_bench import FIRST, HubBench, open_bench

NONE = f"the hub has no {NAME}, or does not show it to this user"
GATED = f"the hub does not give {NAME} to this user"
BUSY = f"the hub cannot give {NAME} now"


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[HubBench]:
    with open_bench(tmp_path / "cache") as opened:
        yield opened


@pytest.mark.parametrize(
    ("status", "code", "kind", "told", "hint"),
    [
        (401, "RepoNotFound", InvalidInputError, f"{NONE}: 401 RepoNotFound", "HF_TOKEN"),
        (404, "RepoNotFound", InvalidInputError, f"{NONE}: 404 RepoNotFound", "check the name"),
        (401, "GatedRepo", InvalidInputError, f"{GATED}: 401 GatedRepo", "accept the terms"),
        (403, "", InvalidInputError, f"{GATED}: 403", "HF_TOKEN"),
        (429, "", MissingPartError, f"{BUSY}: 429", "again later"),
        (502, "", MissingPartError, f"{BUSY}: 502", "again later"),
    ],
)
def test_a_refusal_is_told_with_a_way_out(
    bench: HubBench, status: int, code: str, kind: type[SlipstreamError], told: str, hint: str
) -> None:
    bench.fail("api", [Fault(status=status, code=code)])
    fault = bench.refuse(kind)
    assert fault.message == told
    assert hint in fault.hint


@pytest.mark.parametrize("status", [401, 403])
def test_a_gated_model_may_be_listed_and_still_not_be_given(bench: HubBench, status: int) -> None:
    bench.fail(FIRST, [Fault(status=status, code="GatedRepo")])
    fault = bench.refuse(InvalidInputError)
    assert fault.message == f"{GATED}: {status} GatedRepo"
    assert fault.hint == f"accept the terms on the hub's page of {NAME}, then set HF_TOKEN"
    assert len(bench.hub.asked(FIRST)) == 1


@pytest.mark.parametrize("revision", ["v1", "0" * 40])
def test_a_revision_that_the_hub_does_not_have_is_named(bench: HubBench, revision: str) -> None:
    fault = bench.refuse(InvalidInputError, revision)
    assert fault.message == f"{NAME} has no revision {revision}"
    assert fault.hint == "name a branch, a tag or a commit of it"


def test_a_hub_that_cannot_be_reached_is_missing_with_a_way_out(bench: HubBench) -> None:
    with run_hub({}) as closed:
        bench.environment["HF_ENDPOINT"] = closed.endpoint
    fault = bench.refuse(MissingPartError)
    assert fault.message == f"no answer from the hub about {NAME}"
    assert fault.details == ("ConnectError [Errno 111] Connection refused",)
    assert "HF_ENDPOINT" in fault.hint


def test_a_page_that_is_no_answer_of_the_hub_is_none(bench: HubBench) -> None:
    bench.fail("api", [Fault(change=lambda _: b"<html>Please log in</html>")])
    assert bench.refuse(MissingPartError).message == f"no answer from the hub about {NAME}"


def test_the_hub_is_not_asked_where_that_is_forbidden(bench: HubBench) -> None:
    bench.environment["HF_HUB_OFFLINE"] = "true"
    fault = bench.refuse(MissingPartError)
    assert fault.message == f"HF_HUB_OFFLINE forbids to ask the hub about {NAME}"
    assert bench.hub.log == []


@pytest.mark.parametrize("commit", ["f" * 40, "../../../../etc", ""])
def test_a_hub_that_gives_another_commit_than_was_asked_for_is_refused(
    bench: HubBench, commit: str
) -> None:
    bench.hub.commit = commit
    fault = bench.refuse(InvalidInputError, COMMIT)
    assert fault.message == f"the hub gives commit '{commit}' for {NAME} at {COMMIT}"


def test_a_branch_has_to_be_a_commit(bench: HubBench) -> None:
    bench.hub.commit = "main"
    fault = bench.refuse(InvalidInputError)
    assert fault.message == f"the hub gives commit 'main' for {NAME} at its default branch"


def test_a_file_without_a_hash_is_not_fetched(bench: HubBench) -> None:
    bench.hub.claims[FIRST] = {"lfs": None, "blobId": None}
    fault = bench.refuse(InvalidInputError)
    assert fault.message == f"the hub lists no hash for 1 files of {NAME}"
    assert fault.details == (FIRST,)
    assert bench.hub.asked(FIRST) == []


def test_a_token_is_taken_from_the_environment_without_its_line_end() -> None:
    assert find_token({"HF_TOKEN": " hf_mine\n"}) == "hf_mine"


def test_the_token_of_a_login_is_taken_unless_that_is_forbidden(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("huggingface_hub.get_token", lambda: "hf_kept")
    assert find_token({}) == "hf_kept"
    assert find_token({"HF_HUB_DISABLE_IMPLICIT_TOKEN": "1"}) is None


def test_a_token_that_cannot_be_one_is_refused_unshown() -> None:
    with pytest.raises(InvalidInputError, match="HF_TOKEN holds characters") as caught:
        find_token({"HF_TOKEN": "hf_\0secret"})
    assert "secret" not in caught.value.message
