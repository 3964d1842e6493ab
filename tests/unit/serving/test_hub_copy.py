"""A copy from the hub is one commit, whole and known, and needs no hub the next time."""

from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from threading import Thread

import pytest

from slipstream.errors import InvalidInputError, MissingPartError
from slipstream.serving.weights import LocalModel, obtain, verify
from slipstream.serving.weights_lock import WeightsLock
from tests.unit.serving.fake_hub import COMMIT, NAME, Fault, flip, run_hub
from tests.unit.serving.hub_bench import (
    FIRST,
    INDEX,
    NEEDED,
    SECOND,
    HubBench,
    is_whole,
    open_bench,
)

OTHER_COMMIT = "f" * 40


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[HubBench]:
    with open_bench(tmp_path / "cache") as opened:
        yield opened


def read_lock(model: LocalModel) -> WeightsLock:
    return WeightsLock.model_validate_json(model.lock.read_bytes())


def test_what_an_engine_needs_is_fetched_at_the_commit_and_nothing_else(bench: HubBench) -> None:
    model = bench.obtain("main")
    assert is_whole(model)
    assert (model.name, model.commit, model.files) == (NAME, COMMIT, len(NEEDED))
    assert model.size_bytes == sum(map(len, NEEDED.values()))
    here = [path for path in model.folder.rglob("*") if path.is_file()]
    assert {str(path.relative_to(model.folder)) for path in here} == set(NEEDED)
    paths = [request.path for request in bench.hub.log]
    assert paths[0] == f"/api/models/{NAME}/revision/main"
    asked = {path.removeprefix(f"/{NAME}/resolve/{COMMIT}/") for path in paths[1:]}
    assert asked == {name for name, content in NEEDED.items() if content}


def test_the_lock_names_commit_size_and_hash_of_every_file(bench: HubBench) -> None:
    model = bench.obtain()
    lock = read_lock(model)
    assert (lock.repository, lock.commit, lock.complete) == (NAME, COMMIT, True)
    assert {file.name: (file.size_bytes, file.sha256) for file in lock.files} == {
        name: (len(content), sha256(content).hexdigest()) for name, content in NEEDED.items()
    }
    assert verify(model.lock) == ()


def test_progress_is_told_in_bytes_with_a_rate(bench: HubBench) -> None:
    bench.obtain()
    assert bench.lines[-1].startswith(f"fetching {NAME}: 0.5 MiB of 0.5 MiB, ")
    assert bench.lines[-1].endswith(" MB/s")


def test_a_commit_that_is_here_needs_no_hub_and_no_hashing(bench: HubBench) -> None:
    first = bench.obtain()
    assert bench.obtain(COMMIT) == first
    assert bench.hub.log == []
    assert bench.lines == []


def test_a_branch_that_has_not_moved_is_asked_for_and_not_fetched(bench: HubBench) -> None:
    first = bench.obtain()
    assert bench.obtain() == first
    assert [request.path for request in bench.hub.log] == [f"/api/models/{NAME}"]


def test_a_branch_that_moved_is_another_copy(bench: HubBench) -> None:
    first = bench.obtain()
    bench.hub.commit = OTHER_COMMIT
    second = bench.obtain()
    assert (first.commit, second.commit) == (COMMIT, OTHER_COMMIT)
    assert is_whole(first)
    assert is_whole(second)


@pytest.mark.parametrize("off", ["unreachable", "busy", "forbidden"])
def test_without_the_hub_a_branch_is_the_commit_that_it_was(bench: HubBench, off: str) -> None:
    first = bench.obtain("main")
    if off == "busy":
        bench.fail("api", [Fault(status=503)] * 2)
    elif off == "forbidden":
        bench.environment["HF_HUB_OFFLINE"] = "1"
    else:
        with run_hub({}) as closed:
            bench.environment["HF_ENDPOINT"] = closed.endpoint
    assert bench.obtain("main") == first
    assert bench.lines[-1].endswith(f": taking commit {COMMIT}, which is here")
    bench.refuse(MissingPartError, "another")


def test_a_copy_that_moved_with_its_cache_is_hashed_and_taken(
    bench: HubBench, tmp_path: Path
) -> None:
    bench.obtain()
    bench.environment["HF_HUB_OFFLINE"] = "1"
    bench.cache = bench.cache.rename(tmp_path / "moved")
    assert bench.obtain(COMMIT).folder.is_relative_to(tmp_path / "moved")
    assert bench.lines == []


def test_a_file_of_the_copy_that_was_touched_is_hashed_once_more(bench: HubBench) -> None:
    (bench.obtain().folder / FIRST).touch()
    bench.obtain(COMMIT)
    assert len(bench.lines) == 1
    bench.obtain(COMMIT)
    assert bench.lines == []
    assert bench.hub.log == []


def test_a_file_of_the_copy_that_changed_is_fetched_again_alone(bench: HubBench) -> None:
    path = bench.obtain().folder / FIRST
    path.unlink()
    path.write_bytes(flip(NEEDED[FIRST]))
    assert is_whole(bench.obtain(COMMIT))
    assert bench.hub.asked(FIRST) == [None]
    assert [request.path for request in bench.hub.log if "resolve" in request.path][1:] == []
    assert any(f"{FIRST} of " in line and "is not the file it was" in line for line in bench.lines)


def test_a_file_of_the_copy_that_changed_is_not_served_without_the_hub(bench: HubBench) -> None:
    path = bench.obtain().folder / FIRST
    path.unlink()
    bench.environment["HF_HUB_OFFLINE"] = "1"
    bench.refuse(MissingPartError, COMMIT)
    bench.refuse(MissingPartError)
    assert any(line == f"{FIRST} of {path.parent} is gone" for line in bench.lines)


def test_a_copy_that_is_half_here_is_not_served_without_the_hub(bench: HubBench) -> None:
    bench.fail(SECOND, [Fault(status=403, code="GatedRepo")])
    bench.refuse(InvalidInputError)
    assert any(path.name == FIRST for path in bench.cache.rglob("*"))
    bench.environment["HF_HUB_OFFLINE"] = "1"
    bench.refuse(MissingPartError, COMMIT)


def test_files_that_lost_their_lock_are_hashed_and_not_fetched(bench: HubBench) -> None:
    bench.obtain().lock.unlink()
    assert is_whole(bench.obtain(COMMIT))
    assert {request.path for request in bench.hub.log} == {f"/api/models/{NAME}/revision/{COMMIT}"}
    assert f"hashing {FIRST}" in bench.lines


def test_code_is_fetched_at_a_commit_only_and_is_hashed(bench: HubBench) -> None:
    with pytest.raises(InvalidInputError, match="is taken at a commit only"):
        bench.obtain("main", with_code=True)
    bench.obtain(COMMIT)
    model = bench.obtain(COMMIT, with_code=True)
    assert len(bench.hub.asked("modeling.py")) == 1
    assert "modeling.py" in {file.name for file in read_lock(model).files}
    assert bench.hub.asked(FIRST) == []


def test_a_shard_that_was_published_broken_is_refused(bench: HubBench) -> None:
    bench.hub.files[FIRST] = NEEDED[FIRST][:-1000]
    fault = bench.refuse(InvalidInputError)
    found, needed = len(bench.hub.files[FIRST]), len(NEEDED[FIRST])
    assert fault.details == (f"{FIRST} has {found} bytes, but its header needs {needed}",)
    assert "cannot be loaded" in bench.refuse(InvalidInputError, COMMIT).message


def test_an_index_without_its_shard_is_refused(bench: HubBench) -> None:
    del bench.hub.files[SECOND]
    assert bench.refuse(InvalidInputError).message == f"{NAME} lacks 1 of its 2 shards"
    assert bench.hub.asked(FIRST) == []
    assert bench.hub.asked(INDEX) == [None]


def test_a_cache_that_cannot_be_written_is_named(bench: HubBench) -> None:
    bench.cache.write_bytes(b"a file")
    fault = bench.refuse(InvalidInputError)
    assert fault.message == f"cannot use {bench.cache / 'models' / NAME}: Not a directory"
    assert "SLIPSTREAM_CACHE" in fault.hint


def test_two_at_once_fetch_once(bench: HubBench) -> None:
    said, models, asked_meanwhile = list[str](), list[LocalModel](), list[int]()

    def fetch_too() -> None:
        models.append(
            obtain(
                NAME,
                revision=None,
                cache=bench.cache,
                environment=bench.environment,
                report=said.append,
            )
        )

    second = Thread(target=fetch_too)

    def start_second() -> None:
        before = len(bench.hub.log)
        second.start()
        for _ in range(3000):
            if not said:
                second.join(0.01)
        second.join(1)
        asked_meanwhile.append(len(bench.hub.log) - before)

    bench.fail(FIRST, [Fault(after=1000, meanwhile=start_second)])
    first = bench.obtain()
    second.join(30)
    assert said[0] == f"another process fetches {NAME}: waiting for it"
    assert asked_meanwhile == [0]
    assert models == [first]
    assert bench.hub.asked(FIRST) == [None]
