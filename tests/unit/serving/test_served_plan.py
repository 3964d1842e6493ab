"""What is served is the plan, from local copies, behind the gate, where the user wants it."""

import json
from pathlib import Path

import pytest

from slipstream.errors import InvalidInputError
from slipstream.planning.group import Member
from slipstream.planning.plan import Decision, LaunchPlan
from slipstream.planning.settings import Choice
from slipstream.planning.settings.patches import DFLASH_V2_COPY
from slipstream.planning.spreading import spread_plan
from slipstream.serving.access.gate_file import GATE_CLASS, GateMedia, GateRules
from slipstream.serving.run import RunFolder, Terms
from slipstream.serving.served_plan import (
    describe_gate,
    follow_head,
    leave_without_gate,
    listen_at,
    localize,
    put_behind_gate,
)
from slipstream.serving.weights.obtaining import LocalModel
from tests.unit.planning.bare_plans import bare_plan

FOLDER = RunFolder(Path("/runs/one"))
COMMIT = "0" * 40
MEMBERS = (Member(name="one", address="10.0.0.1"), Member(name="two", address="10.0.0.2"))


def obtain(name: str, revision: str | None) -> LocalModel:
    return LocalModel(
        name=name,
        folder=Path("/cache", name, revision or "folder"),
        commit=revision,
        files=1,
        size_bytes=1,
        lock=Path("/cache/lock"),
    )


def value(plan: LaunchPlan, flag: str) -> str | None:
    decision = plan.find(flag)
    return decision.value if decision else None


def test_a_hub_model_is_served_from_its_copy_under_its_own_name() -> None:
    plan = bare_plan(
        *("--revision", COMMIT),
        *("--speculative-config.revision", "abc"),
        drafter="owner/drafter",
    )
    local = localize(plan, obtain)
    assert value(local, "--model") == f"/cache/owner/model/{COMMIT}"
    assert value(local, "--speculative-config.model") == "/cache/owner/drafter/abc"
    assert value(local, "--served-model-name") == "owner/model"
    assert value(local, "HF_HUB_OFFLINE") == "1"
    assert value(local, "VLLM_NO_USAGE_STATS") == "1"
    assert "--revision" not in local.argv()
    assert "revision" not in " ".join(local.argv())


@pytest.mark.parametrize(
    ("words", "target", "name"),
    [
        (("--model", "models/mine"), "models/mine", "folder"),
        (("--model", "owner/model", "--served-model-name", "house"), "owner/model", "house"),
    ],
)
def test_a_folder_is_served_under_its_last_part_or_the_name_that_the_user_chose(
    words: tuple[str, ...], target: str, name: str
) -> None:
    local = localize(bare_plan(*words, target=target), obtain)
    assert value(local, "--served-model-name") == name


@pytest.mark.parametrize("planned", ["owner/drafter", None])
def test_the_users_own_drafter_within_json_is_local_too(planned: str | None) -> None:
    given = json.dumps({"method": "dflash", "model": "me/my-drafter"})
    local = localize(bare_plan("--speculative-config", given, drafter=planned), obtain)
    assert local.drafter == "/cache/me/my-drafter/folder"


def test_a_method_without_a_drafter_gets_none() -> None:
    ngram = bare_plan("--spec-method", "ngram", "--spec-tokens", "3")
    argv = localize(ngram, obtain).argv()
    assert json.loads(argv[-1]) == {"method": "ngram", "num_speculative_tokens": 3}


@pytest.mark.parametrize("given", [("a.B",), ("a.B", GATE_CLASS), (GATE_CLASS, "a.B"), ()])
def test_the_gate_is_always_there_and_outermost(given: tuple[str, ...]) -> None:
    words = [word for name in given for word in ("--middleware", name)]
    plan = put_behind_gate(bare_plan(*words), FOLDER)
    middleware = plan.settings.middleware
    assert middleware is not None
    assert middleware.value[-1] == GATE_CLASS
    assert middleware.value.count(GATE_CLASS) == 1
    assert set(given) <= set(middleware.value)


def test_a_served_plan_is_served_again_from_the_same_files() -> None:
    once = localize(bare_plan("--model", "owner/model", "--revision", COMMIT), obtain)
    asked = []

    def remember(name: str, revision: str | None) -> LocalModel:
        asked.append((name, revision))
        return obtain(name, revision)

    localize(once, remember)
    assert asked == [(f"/cache/owner/model/{COMMIT}", None)]


def test_the_gate_is_in_the_plan_with_its_reason() -> None:
    plan = put_behind_gate(bare_plan(), FOLDER)
    assert value(plan, "--middleware") == GATE_CLASS
    assert value(plan, "SLIPSTREAM_GATE") == "/runs/one/gate.json"
    assert value(plan, "--port") == "8000"
    assert value(plan, "VLLM_ENABLE_RESPONSES_API_STORE") == "0"
    assert all(decision.because for decision in plan.decisions)


def test_a_plan_of_another_run_gets_this_runs_gate() -> None:
    before = put_behind_gate(bare_plan(), RunFolder(Path("/runs/before")))
    again = put_behind_gate(before, FOLDER)
    assert value(again, "SLIPSTREAM_GATE") == "/runs/one/gate.json"
    assert again.argv() == before.argv()


def test_images_pass_only_where_the_user_lets_them_in() -> None:
    for limits, text_only in (('{"image": 0}', True), ('{"image": 4}', False)):
        plan = bare_plan("--limit-mm-per-prompt", limits)
        assert describe_gate(plan, Terms(), FOLDER, "a" * 64).text_only is text_only
    assert describe_gate(bare_plan(), Terms(), FOLDER, "a" * 64).text_only


IMAGES = ("--limit-mm-per-prompt", '{"image": 4}')


def test_the_engine_fetches_images_from_the_listed_hosts_only_and_goes_nowhere_else() -> None:
    rules = GateRules(media=GateMedia(hosts=("a.org", "b.org"), pixels=99))
    plan = put_behind_gate(bare_plan(*IMAGES), FOLDER, rules)
    argv = plan.argv()
    at = argv.index("--allowed-media-domains")
    assert argv[at + 1 : at + 3] == ["a.org", "b.org"]
    assert value(plan, "VLLM_MEDIA_URL_ALLOW_REDIRECTS") == "0"
    assert value(plan, "VLLM_MAX_IMAGE_PIXELS") == "99"
    again = put_behind_gate(plan, FOLDER)
    assert value(again, "--allowed-media-domains") == "none.invalid"
    assert put_behind_gate(again, FOLDER) == again


def test_a_list_of_the_users_own_stays_and_text_needs_none() -> None:
    own = put_behind_gate(bare_plan(*IMAGES, "--allowed-media-domains", "c.org"), FOLDER)
    assert value(own, "--allowed-media-domains") == "c.org"
    text = put_behind_gate(bare_plan(), FOLDER)
    assert text.find("--allowed-media-domains") is None
    assert text.find("VLLM_MEDIA_URL_ALLOW_REDIRECTS") is None


def test_the_gate_knows_the_context_and_whether_the_model_generates() -> None:
    plan = bare_plan("--max-model-len", "4096", "--runner", "pooling")
    gate = describe_gate(plan, Terms(), FOLDER, "a" * 64)
    assert (gate.context, gate.generates) == (4096, False)
    assert "POST /v1/embeddings" in gate.routes
    plain = describe_gate(bare_plan(), Terms(), FOLDER, "a" * 64)
    assert (plain.context, plain.generates) == (None, True)


def test_a_socket_needs_no_port() -> None:
    assert put_behind_gate(bare_plan("--uds", "/run/it"), FOLDER).find("--port") is None


def test_the_user_decides_where_it_listens() -> None:
    plan = listen_at(bare_plan("--host", "127.0.0.1", "--port", "1"), "0.0.0.0", 9000)
    assert (value(plan, "--host"), value(plan, "--port")) == ("0.0.0.0", "9000")
    assert listen_at(plan, None, None) == plan
    decision = plan.find("--host")
    assert decision == Decision(flag="--host", value="0.0.0.0", source="user", because="requested")


def test_the_gate_learns_the_address_the_drafts_and_the_terms() -> None:
    terms = Terms(keys_file=Path("/keys"))
    gate = describe_gate(bare_plan("--host", "::1", drafter="d"), terms, FOLDER, "a" * 64)
    assert (gate.host, gate.speculation, gate.keys_file) == ("::1", True, Path("/keys"))
    assert (gate.socket, gate.access_log) == (FOLDER.socket, FOLDER.path / "access.jsonl")
    plain = describe_gate(bare_plan("--uds", "/run/it"), terms, FOLDER, "a" * 64)
    assert (plain.host, plain.speculation) == ("/run/it", False)


@pytest.mark.parametrize(
    ("words", "seats", "most"),
    [
        ((), None, None),
        (("--max-num-seqs", "8"), 8, "1032"),
        (("--max-num-seqs", "8", "-dp", "2"), 16, "1040"),
        (("--max-num-seqs", "8", "--api-server-count", "1"), 8, "1032"),
        (("--max-num-seqs", "8", "--max-num-queued-reqs", "9"), 8, "9"),
    ],
)
def test_the_gate_knows_the_engines_seats_and_the_engines_queue_has_an_end(
    words: tuple[str, ...], seats: int | None, most: str | None
) -> None:
    plan = put_behind_gate(bare_plan(*words), FOLDER)
    assert describe_gate(plan, Terms(), FOLDER, "a" * 64).seats == seats
    assert value(plan, "--max-num-queued-reqs") == most
    assert put_behind_gate(plan, FOLDER) == plan


def test_the_gate_has_the_users_rules_and_the_models_names() -> None:
    rules = GateRules(retry_after_seconds=9)
    plan = bare_plan("--served-model-name", "house", "--scheduling-policy", "priority")
    gate = describe_gate(plan, Terms(gate_rules=rules, keys_required=True), FOLDER, "a" * 64)
    assert (gate.retry_after_seconds, gate.keys_required) == (9, True)
    assert (gate.served_names, gate.priorities) == (("house",), True)
    plain = describe_gate(bare_plan(), Terms(), FOLDER, "a" * 64)
    assert (plain.keys_required, plain.priorities) == (False, False)


def test_without_a_gate_only_this_machine_is_served() -> None:
    gated = put_behind_gate(bare_plan("--host", "127.0.0.1", "--middleware", "a.B"), FOLDER)
    plan = leave_without_gate(gated)
    assert value(plan, "--middleware") == "a.B"
    assert value(plan, "SLIPSTREAM_GATE") is None
    copying = gated.change_variables({"SLIPSTREAM_COPY": Choice("31", "default", "pays")})
    assert value(leave_without_gate(copying), "SLIPSTREAM_COPY") is None
    by_patch = copying.model_copy(update={"patches": (DFLASH_V2_COPY,)})
    assert value(leave_without_gate(by_patch), "SLIPSTREAM_COPY") == "31"
    assert leave_without_gate(bare_plan("--uds", "/run/it")).settings.middleware is None
    for words in (("--host", "0.0.0.0"), ()):
        with pytest.raises(InvalidInputError, match="nothing protects the server") as refused:
            leave_without_gate(bare_plan(*words))
        assert "--bind 127.0.0.1" in refused.value.hint


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ((), "--disable-uvicorn-access-log"),
        (("--no-disable-uvicorn-access-log",), "--no-disable-uvicorn-access-log"),
        (
            ("--disable-access-log-for-endpoints", "/health"),
            "--disable-access-log-for-endpoints /health",
        ),
    ],
)
def test_the_engine_logs_no_line_per_request_unless_it_is_asked_to(
    words: tuple[str, ...], shown: str
) -> None:
    argv = put_behind_gate(bare_plan(*words), FOLDER).argv()
    assert [word for word in " ".join(argv).split(" --") if "access-log" in word] == [shown[2:]]


@pytest.mark.parametrize(
    "words",
    [
        ("--grpc",),
        ("--grpc-port", "9000"),
        ("--data-parallel-multi-port-external-lb",),
    ],
)
def test_nothing_listens_beside_the_gate(words: tuple[str, ...]) -> None:
    plan = bare_plan("--host", "127.0.0.1", *words)
    with pytest.raises(InvalidInputError, match=f"{words[0]} makes the engine listen") as refused:
        put_behind_gate(plan, FOLDER)
    assert "--no-gate" in refused.value.hint
    assert words[0] in leave_without_gate(plan).argv()


def test_only_a_rank_that_follows_may_be_headless() -> None:
    typed = bare_plan("--host", "127.0.0.1", "--headless")
    with pytest.raises(InvalidInputError, match="--headless is for the ranks of a group"):
        put_behind_gate(typed, FOLDER)
    with pytest.raises(InvalidInputError, match="--headless is for the ranks of a group"):
        leave_without_gate(typed)
    head, follower = spread_plan(bare_plan("--host", "0.0.0.0"), "a", MEMBERS, secret_file="s")
    assert "--headless" not in put_behind_gate(head, FOLDER).argv()
    forged = follower.change(headless=None, host=head.settings.host, port=Choice(80, "user", ""))
    for plan in (follower, forged):
        argv = follow_head(plan).argv()
        assert argv[:3] == ["python", "-m", "slipstream.vllm_plugin.headless"]
        assert "--headless" in argv
        assert not {"--host", "--port", "--uds", "--middleware"} & {*argv}
    with pytest.raises(InvalidInputError, match="--grpc makes the engine listen"):
        follow_head(follower.change(rest={"--grpc": Choice(True, "user", "")}))


def test_one_backend_compiles_all_constraints_unless_another_is_asked_for() -> None:
    assert value(put_behind_gate(bare_plan(), FOLDER), "--structured-outputs-config") == (
        '{"backend": "xgrammar"}'
    )
    asked = put_behind_gate(
        bare_plan("--structured-outputs-config", '{"backend": "guidance"}'), FOLDER
    )
    assert "guidance" in (value(asked, "--structured-outputs-config") or "")
