"""A folder is hashed once, and a changed or broken file is refused before an engine starts."""

import os
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path

import pytest

from slipstream.errors import InvalidInputError
from slipstream.serving.weights.lock import WeightsLock
from slipstream.serving.weights.obtaining import LocalModel, obtain
from tests.unit.serving.weights.pieces import CONFIG, flip, make_index, make_shard

FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
INDEX = "model.safetensors.index.json"
FILES = {
    "config.json": CONFIG,
    "chat_template.jinja": b"{{ messages }}",
    INDEX: make_index(FIRST, SECOND),
    FIRST: make_shard(5000, seed=1),
    SECOND: make_shard(7000, seed=2),
}
HINT = "download it again; if you changed it yourself, --accept-changes"


class Bench:
    """A model's folder, a cache, and what was reported."""

    def __init__(self, root: Path) -> None:
        self.folder, self.cache, self.lines = root / "mine", root / "cache", list[str]()
        self.folder.mkdir()
        for name, content in FILES.items():
            (self.folder / name).write_bytes(content)

    def obtain(self, *, accept_changes: bool = False, with_code: bool = False) -> LocalModel:
        self.lines.clear()
        return obtain(
            str(self.folder),
            revision=None,
            environment={"SLIPSTREAM_CACHE": str(self.cache)},
            report=self.lines.append,
            accept_changes=accept_changes,
            with_code=with_code,
        )

    def refuse(self) -> InvalidInputError:
        with pytest.raises(InvalidInputError) as caught:
            self.obtain()
        return caught.value

    def write(self, name: str, content: bytes, *, later_ns: int = 10**9) -> None:
        """Change a file in place; a clock that ticks too seldom is helped along."""
        path = self.folder / name
        before = path.stat()
        path.write_bytes(content)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + later_ns))


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def hash_of(content: bytes) -> str:
    return sha256(content).hexdigest()


def test_a_folder_is_described_and_every_file_is_hashed_into_the_cache(bench: Bench) -> None:
    model = bench.obtain()
    assert (model.folder, model.commit, model.files) == (bench.folder, None, len(FILES))
    assert model.size_bytes == sum(map(len, FILES.values()))
    lock = WeightsLock.model_validate_json(model.lock.read_bytes())
    assert {file.name: file.sha256 for file in lock.files} == {
        name: hash_of(content) for name, content in FILES.items()
    }
    assert model.lock.is_relative_to(bench.cache)
    assert sorted(path.name for path in bench.folder.iterdir()) == sorted(FILES)
    assert LocalModel.model_validate_json(model.to_json()) == model


def test_a_folder_is_hashed_only_once(bench: Bench) -> None:
    first = bench.obtain()
    assert bench.lines[-1].startswith(f"hashing {bench.folder}: 0.0 MiB of 0.0 MiB, ")
    written = first.lock.stat().st_mtime_ns
    assert bench.obtain() == first
    assert bench.lines == []
    assert first.lock.stat().st_mtime_ns == written


def test_a_file_of_another_time_is_hashed_again_and_is_the_same(bench: Bench) -> None:
    bench.obtain()
    bench.write(FIRST, FILES[FIRST])
    bench.obtain()
    assert len(bench.lines) == 1
    bench.obtain()
    assert bench.lines == []


def test_a_file_of_another_length_or_another_place_is_hashed_again(bench: Bench) -> None:
    bench.obtain()
    bench.write("config.json", b"{}", later_ns=0)
    assert bench.refuse().message.startswith("config.json of ")
    bench.write("config.json", CONFIG, later_ns=0)
    copy = bench.folder / "copy"
    copy.write_bytes(flip(CONFIG))
    was = (bench.folder / "config.json").stat()
    os.utime(copy, ns=(was.st_atime_ns, was.st_mtime_ns))
    copy.replace(bench.folder / "config.json")
    assert bench.refuse().message.startswith("config.json of ")


def test_a_flipped_bit_is_refused_with_both_hashes_until_it_is_accepted(bench: Bench) -> None:
    bench.obtain()
    flipped = flip(FILES[SECOND])
    bench.write(SECOND, flipped)
    today = datetime.now(UTC).date()
    for _ in range(2):
        fault = bench.refuse()
        assert fault.message == (
            f"{SECOND} of {bench.folder} has changed since {today}: "
            f"sha256 {hash_of(FILES[SECOND])} then, {hash_of(flipped)} now"
        )
        assert fault.hint == HINT
    model = bench.obtain(accept_changes=True)
    assert bench.obtain() == model


def test_every_change_is_told_at_once_and_a_file_that_is_gone_is_one(bench: Bench) -> None:
    bench.obtain()
    bench.write(FIRST, flip(FILES[FIRST]))
    bench.write("config.json", b"{}")
    (bench.folder / "chat_template.jinja").unlink()
    fault = bench.refuse()
    told = sorted(line.split()[0] for line in (fault.message, *fault.details))
    assert told == ["chat_template.jinja", "config.json", FIRST]
    assert f"chat_template.jinja of {bench.folder} is missing" in fault.details
    assert bench.obtain(accept_changes=True).files == len(FILES) - 1
    assert bench.obtain().files == len(FILES) - 1


def test_shards_cut_short_or_too_long_are_refused_before_they_are_hashed(bench: Bench) -> None:
    bench.write(FIRST, FILES[FIRST][:-1])
    bench.write(SECOND, FILES[SECOND] + b"\0" * 781)
    fault = bench.refuse()
    assert fault.message == f"2 of the files in {bench.folder} cannot be loaded"
    first, second = len(FILES[FIRST]), len(FILES[SECOND])
    assert fault.details == (
        f"{FIRST} has {first - 1} bytes, but its header needs {first}",
        f"{SECOND} has {second + 781} bytes, but its header needs {second}",
    )
    assert bench.lines == []
    assert not bench.cache.exists()


def test_a_shard_cut_short_after_it_was_hashed_is_refused_too(bench: Bench) -> None:
    bench.obtain()
    bench.write(FIRST, FILES[FIRST][: len(FILES[FIRST]) // 2])
    assert "cannot be loaded" in bench.refuse().message


def test_what_an_engine_does_not_read_may_change(bench: Bench) -> None:
    others = ("README.md", "modeling.py", "consolidated.safetensors", "pytorch_model.bin")
    for name in others:
        (bench.folder / name).write_bytes(b"one")
    assert bench.obtain().files == len(FILES)
    for name in others:
        bench.write(name, b"two")
    assert bench.obtain().files == len(FILES)


def test_code_that_was_hashed_once_stays_so(bench: Bench) -> None:
    (bench.folder / "modeling.py").write_bytes(b"one")
    assert bench.obtain(with_code=True).files == len(FILES) + 1
    assert bench.obtain().files == len(FILES)
    bench.write("modeling.py", b"two")
    with pytest.raises(InvalidInputError, match=r"modeling\.py of .* has changed since"):
        bench.obtain(with_code=True)


def test_a_disk_that_cannot_be_read_is_named(bench: Bench) -> None:
    # Reading the start of this file is a real input/output error.
    (bench.folder / "vocab.txt").symlink_to("/proc/self/mem")
    fault = bench.refuse()
    assert fault.message == f"cannot read {bench.folder / 'vocab.txt'}: Input/output error"


def test_a_cache_that_cannot_be_written_is_named(bench: Bench) -> None:
    bench.cache.write_bytes(b"a file")
    fault = bench.refuse()
    assert fault.message.startswith("cannot ")
    assert str(bench.cache) in fault.message
    assert "Not a directory" in fault.message
    assert "SLIPSTREAM_CACHE" in fault.hint


def test_a_lock_that_is_broken_is_not_taken_for_none(bench: Bench) -> None:
    lock = bench.obtain().lock
    lock.write_bytes(b"{}")
    fault = bench.refuse()
    assert fault.message == f"{lock} is not a WeightsLock that this version reads"
    assert fault.hint == f"remove {lock}, and run the same command again"


def test_a_cache_that_was_named_from_here_is_named_for_everywhere(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(bench.cache.parent)
    bench.cache = Path("cache")
    assert bench.obtain().lock.is_absolute()


def test_a_folder_has_no_revision(bench: Bench) -> None:
    with pytest.raises(InvalidInputError, match="is a local folder and has no revision main"):
        obtain(str(bench.folder), revision="main", environment={}, report=bench.lines.append)


@pytest.mark.parametrize(
    "name", ["nothing", "./a/b", "/no/such", "~/none", "a/b/c", "../b", "a/.."]
)
def test_neither_a_folder_nor_a_name_is_refused(name: str) -> None:
    with pytest.raises(InvalidInputError, match="it is not the name of a model on the hub"):
        obtain(name, revision=None, environment={}, report=lambda _: None)
