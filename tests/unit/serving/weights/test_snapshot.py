"""A model of the hub comes through huggingface_hub's cache, and is checked before every start.

The real huggingface_hub runs against a local server.
"""

import resource
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from threading import Thread
from types import SimpleNamespace

import pytest

from slipstream.errors import InvalidInputError, MissingPartError, SlipstreamError
from slipstream.serving.weights.lock import WeightsLock
from slipstream.serving.weights.obtaining import LocalModel, obtain, obtain_settings
from tests.unit.checkpoints.hub_server import FakeHub, Fault, Repository, run_hub
from tests.unit.serving.weights.pieces import CONFIG, flip, make_index, make_shard

NAME, COMMIT, OTHER = "maker/model", "0123456789abcdef0123456789abcdef01234567", "f" * 40
FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
INDEX = "model.safetensors.index.json"
NEEDED = {
    "config.json": CONFIG,
    "chat_template.jinja": b"{{ messages }}",
    "additional_chat_templates/tools.jinja": b"{{ tools }}",
    "tokenizer.json": b"{}",
    "empty.txt": b"",
    INDEX: make_index(FIRST, SECOND),
    FIRST: make_shard(300_000, seed=1),
    SECOND: make_shard(200_000, seed=2),
}
OTHERS = {
    "README.md": b"# A model",
    "modeling.py": b"print('mine now')",
    "pytorch_model.bin": b"pickle",
    "consolidated.safetensors": make_shard(100, seed=3),
    "original/model.safetensors": make_shard(100, seed=4),
}


class HubBench:
    """Obtains the model, and remembers what was said."""

    def __init__(self, hub: FakeHub, root: Path) -> None:
        self.hub, self.lines, self.drawn = hub, list[str](), list[str]()
        self.environment = {"HF_ENDPOINT": hub.endpoint, "HOME": str(root / "home")}
        self.hub_cache = root / "home" / ".cache" / "huggingface" / "hub"

    def obtain(self, revision: str | None = None, *, with_code: bool = False) -> LocalModel:
        """Obtain, and forget what was said and asked before."""
        self.lines.clear()
        self.hub.log.clear()
        return obtain(
            NAME,
            revision=revision,
            environment=self.environment,
            report=self.lines.append,
            draw=self.drawn.append,
            with_code=with_code,
        )

    def refuse(self, kind: type[SlipstreamError], revision: str | None = None) -> SlipstreamError:
        with pytest.raises(kind) as caught:
            self.obtain(revision)
        return caught.value

    def damage(self, model: LocalModel, name: str, content: bytes) -> None:
        """Write to a file of the cache, as a failing disk would."""
        blob = (model.folder / name).resolve()
        blob.chmod(0o600)
        blob.write_bytes(content)


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubBench]:
    """Serve the model to a client that does not pause and asks no other host."""
    from huggingface_hub import close_session

    folder = tmp_path / "remote"
    for name, content in (NEEDED | OTHERS).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_TELEMETRY", True)
    hasty = SimpleNamespace(sleep=lambda _: None)
    monkeypatch.setattr("huggingface_hub.file_download.time", hasty)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("HF_TOKEN", "hf_ThisIsNobodysToken")
    with run_hub({NAME: Repository(folder, COMMIT)}) as hub:
        yield HubBench(hub, tmp_path)
    close_session()


def is_whole(model: LocalModel) -> bool:
    return all((model.folder / name).read_bytes() == NEEDED[name] for name in NEEDED)


def test_what_an_engine_needs_is_fetched_at_the_commit_and_nothing_else(bench: HubBench) -> None:
    model = bench.obtain("main")
    assert is_whole(model)
    assert (model.name, model.commit, model.files) == (NAME, COMMIT, len(NEEDED))
    assert model.size_bytes == sum(map(len, NEEDED.values()))
    assert model.folder.is_relative_to(bench.hub_cache)
    here = [path for path in model.folder.rglob("*") if path.is_file()]
    assert {str(path.relative_to(model.folder)) for path in here} == set(NEEDED)
    assert set(bench.hub.fetched()) == set(NEEDED) - {"empty.txt"}
    assert {answer.authorization for answer in bench.hub.log} == {"Bearer hf_ThisIsNobodysToken"}


def test_the_lock_names_commit_size_and_hash_of_every_file(bench: HubBench) -> None:
    model = bench.obtain()
    lock = WeightsLock.model_validate_json(model.lock.read_bytes())
    assert (lock.repository, lock.commit, lock.folder) == (NAME, COMMIT, str(model.folder))
    assert {file.name: (file.size_bytes, file.sha256) for file in lock.files} == {
        name: (len(content), sha256(content).hexdigest()) for name, content in NEEDED.items()
    }


def test_progress_is_a_bar_that_ends_in_a_line(
    bench: HubBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slipstream.serving.weights.progress.DRAW_EVERY_SECONDS", 0.0)
    bench.obtain()
    bars = [line for line in bench.drawn if line.startswith("[")]
    assert any(
        line.startswith(f"[{'#' * 24}] downloading {NAME}: 0.5 MiB of 0.5 MiB") for line in bars
    )
    assert bench.drawn[-1] == ""
    assert bench.lines[0].startswith(f"downloading {NAME}: 0.5 MiB of 0.5 MiB, ")


def test_what_the_users_cache_has_is_not_fetched_again(bench: HubBench) -> None:
    from huggingface_hub import hf_hub_download

    for name in (FIRST, "config.json"):
        hf_hub_download(NAME, name, endpoint=bench.hub.endpoint, cache_dir=bench.hub_cache)
    assert is_whole(bench.obtain())
    assert set(bench.hub.fetched()) == set(NEEDED) - {FIRST, "config.json", "empty.txt"}


def test_a_commit_that_is_here_needs_no_hub_and_no_hashing(bench: HubBench) -> None:
    first = bench.obtain()
    assert bench.obtain(COMMIT) == first
    assert bench.hub.log == []
    assert bench.lines == []


def test_a_branch_that_moved_is_another_snapshot(bench: HubBench) -> None:
    first = bench.obtain()
    bench.hub.repositories[NAME] = replace(bench.hub.repositories[NAME], sha=OTHER)
    second = bench.obtain()
    assert (first.commit, second.commit) == (COMMIT, OTHER)
    assert is_whole(second)
    assert FIRST not in bench.hub.fetched()


@pytest.mark.parametrize("off", ["unreachable", "busy", "forbidden"])
def test_without_the_hub_a_branch_is_the_commit_that_it_was(bench: HubBench, off: str) -> None:
    first = bench.obtain()
    if off == "unreachable":
        with run_hub({}) as closed:
            bench.environment["HF_ENDPOINT"] = closed.endpoint
    elif off == "busy":
        bench.hub.faults["api"] = [Fault(status=502)] * 9
    else:
        bench.environment["HF_HUB_OFFLINE"] = "1"
    assert bench.obtain() == first


def test_offline_a_start_takes_what_the_user_fetched_before(bench: HubBench) -> None:
    from huggingface_hub import snapshot_download

    snapshot_download(NAME, endpoint=bench.hub.endpoint, cache_dir=bench.hub_cache)
    bench.environment["HF_HUB_OFFLINE"] = "1"
    model = bench.obtain()
    assert is_whole(model)
    assert (model.commit, bench.hub.log) == (COMMIT, [])
    bench.damage(model, FIRST, flip(NEEDED[FIRST]))
    assert bench.refuse(InvalidInputError).message.startswith(
        f"{FIRST} of {model.folder} has changed"
    )


def test_offline_what_is_not_here_is_missing(bench: HubBench) -> None:
    bench.environment["HF_HUB_OFFLINE"] = "1"
    for revision in (None, COMMIT):
        fault = bench.refuse(MissingPartError, revision)
        assert fault.message.startswith(f"{NAME} is not in the cache, and HF_HUB_OFFLINE")
    assert bench.hub.log == []


@pytest.mark.parametrize(
    "content",
    [flip(NEEDED[FIRST]), NEEDED[FIRST][:-1], NEEDED[FIRST] + b"\0" * 4096],
    ids=["flipped", "truncated", "oversized"],
)
def test_a_file_that_went_bad_is_fetched_again_online_and_refused_offline(
    bench: HubBench, content: bytes
) -> None:
    model = bench.obtain()
    bench.damage(model, FIRST, content)
    bench.environment["HF_HUB_OFFLINE"] = "1"
    bench.refuse(InvalidInputError)
    bench.environment.pop("HF_HUB_OFFLINE")
    assert is_whole(bench.obtain(COMMIT))
    assert bench.hub.fetched() == [FIRST]
    assert f"checksum mismatch, downloading again: {FIRST}" in bench.lines
    bench.obtain(COMMIT)
    assert bench.hub.log == []


def test_wrong_bytes_are_fetched_a_second_time(bench: HubBench) -> None:
    bench.hub.faults = {FIRST: [Fault(change=flip)], "config.json": [Fault(change=flip)]}
    assert is_whole(bench.obtain())
    assert bench.hub.fetched().count(FIRST) == 2


def test_wrong_bytes_twice_are_refused_with_both_hashes(bench: HubBench) -> None:
    bench.hub.faults[FIRST] = [Fault(change=flip)] * 2
    fault = bench.refuse(InvalidInputError)
    right, wrong = (sha256(content).hexdigest() for content in (NEEDED[FIRST], flip(NEEDED[FIRST])))
    assert fault.message == f"1 files of {NAME} had a wrong checksum twice"
    assert fault.details == (f"{FIRST}: sha256 {wrong}, but the hub lists {right}",)
    assert is_whole(bench.obtain())


def test_a_cut_connection_goes_on_and_a_lost_one_keeps_what_arrived(bench: HubBench) -> None:
    bench.hub.faults = {FIRST: [Fault(cut_after=1000)], SECOND: [Fault(cut_after=0)] * 6}
    fault = bench.refuse(MissingPartError)
    assert fault.message == f"cannot read {NAME} from the hub"
    assert fault.details[0].startswith("RemoteProtocolError: ")
    assert is_whole(bench.obtain())
    assert FIRST not in bench.hub.fetched()


@pytest.mark.parametrize(
    ("status", "code", "told", "hint"),
    [
        (404, "RepoNotFound", f"the hub has no {NAME}", "check the name"),
        (401, "GatedRepo", f"{NAME} is gated", "accept the terms"),
        (403, "", f"{NAME} is gated", "HF_TOKEN"),
        (502, "", f"the hub cannot serve {NAME} now: 502", "again later"),
    ],
)
@pytest.mark.parametrize("where", ["api", FIRST])
def test_a_refusal_comes_with_a_way_out(
    bench: HubBench, where: str, status: int, code: str, told: str, hint: str
) -> None:
    bench.hub.faults[where] = [Fault(status=status, code=code)] * 9
    fault = bench.refuse(MissingPartError)
    assert fault.message.startswith(told)
    assert hint in fault.hint


def test_a_revision_that_the_hub_does_not_have_is_named(bench: HubBench) -> None:
    for revision in ("v1", "0" * 40):
        fault = bench.refuse(InvalidInputError, revision)
        assert fault.message == f"{NAME} has no revision {revision}"


def test_a_model_larger_than_the_disk_is_refused_before_a_shard_is_asked_for(
    bench: HubBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.hub.repositories[NAME].files[FIRST]["size"] = 10 << 40
    fault = bench.refuse(InvalidInputError)
    assert fault.message.startswith(f"{NAME} needs 10240.0 GiB more in {bench.hub_cache}, and ")
    assert bench.hub.fetched() == [INDEX]


def test_a_disk_that_fills_up_keeps_what_arrived(bench: HubBench) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (250_000, limits[1]))
    try:
        fault = bench.refuse(InvalidInputError)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert fault.message == "the disk is full: File too large"
    assert "HF_HUB_CACHE" in fault.hint
    assert is_whole(bench.obtain())
    assert "config.json" not in bench.hub.fetched()


def test_a_cache_that_cannot_be_written_is_named(bench: HubBench) -> None:
    bench.hub_cache.parent.mkdir(parents=True)
    bench.hub_cache.write_bytes(b"a file")
    fault = bench.refuse(InvalidInputError)
    assert fault.message.startswith(f"cannot use {bench.hub_cache}")


def test_code_is_fetched_only_where_it_is_asked_for_and_at_a_commit(bench: HubBench) -> None:
    bench.obtain(COMMIT)
    model = bench.obtain(COMMIT, with_code=True)
    assert bench.hub.fetched() == ["modeling.py"]
    assert model.files == len(NEEDED) + 1
    with pytest.raises(InvalidInputError, match="is used only at a fixed commit"):
        bench.obtain("main", with_code=True)


def test_a_repository_without_safetensors_is_refused(bench: HubBench) -> None:
    for path in bench.hub.repositories[NAME].folder.rglob("*.safetensors"):
        path.unlink()
    assert bench.refuse(InvalidInputError).message == f"{NAME} has no safetensors"


def test_a_name_that_leaves_the_folder_is_not_fetched(bench: HubBench) -> None:
    escaping = replace(bench.hub.repositories[NAME], only_listed=("../../escaped.json",))
    bench.hub.repositories[NAME] = escaping
    assert is_whole(bench.obtain())
    assert not any(path.name == "escaped.json" for path in bench.hub_cache.rglob("*"))


def test_two_at_the_same_time_end_with_the_same_model(bench: HubBench) -> None:
    models: list[LocalModel] = []
    threads = [Thread(target=lambda: models.append(bench.obtain())) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(models) == 2
    assert models[0] == models[1]
    assert is_whole(models[0])


def test_the_settings_of_a_model_come_without_its_weights(bench: HubBench) -> None:
    folder = obtain_settings(NAME, revision=COMMIT, environment=bench.environment)
    assert (folder / "config.json").read_bytes() == CONFIG
    small = [name for name in bench.hub.fetched() if not name.endswith((".safetensors", ".bin"))]
    assert bench.hub.fetched() == small
    bench.hub.faults["api"] = [Fault(status=401, code="GatedRepo")]
    with pytest.raises(MissingPartError, match="is gated"):
        obtain_settings(NAME, revision="main", environment=bench.environment)
