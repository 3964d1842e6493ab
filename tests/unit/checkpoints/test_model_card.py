"""A card names what a model was made from; whatever else it holds does no harm."""

from pathlib import Path

import pytest

from slipstream.checkpoints import read_checkpoint
from slipstream.checkpoints.model_card import parse_base_models
from tests.unit.checkpoints.folders import LLAMA, write_checkpoint


def card(front_matter: str) -> bytes:
    return f"---\n{front_matter}\n---\n# A model\n".encode()


@pytest.mark.parametrize(
    ("front_matter", "names"),
    [
        ("base_model: Qwen/Qwen3-8B", ("Qwen/Qwen3-8B",)),
        ("license: mit\nbase_model:\n- Qwen/Qwen3-8B\n- a/b\n", ("Qwen/Qwen3-8B", "a/b")),
        ("base_model: [a/b, a/b]", ("a/b",)),
        ("base_model: Qwen3-8B", None),
        ("base_model: ../../etc/passwd", None),
        ("base_model: {a: b}", None),
        ("base_model: [1, null, [a/b]]", None),
        ("license: mit", None),
        ("- a list", None),
        ("base_model: [a/b", None),
        ("base_model: !!python/object/apply:os.system [false]", None),
        (
            "base_model: [" + ", ".join(f"a/{at}" for at in range(9)) + "]",
            ("a/0", "a/1", "a/2", "a/3"),
        ),
        ("[" * 5000, None),
    ],
)
def test_names_of_repositories_are_taken_and_few(
    front_matter: str, names: tuple[str, ...] | None
) -> None:
    assert parse_base_models(card(front_matter)) == names


@pytest.mark.parametrize(
    "content", [None, b"", b"# A model\n", b"\xff---\n", b"---\nbase_model: a/b\n"]
)
def test_a_readme_without_front_matter_names_nothing(content: bytes | None) -> None:
    assert parse_base_models(content) is None


def test_the_card_of_a_folder_is_read(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "model", LLAMA)
    assert read_checkpoint(str(folder)).base_models is None
    (folder / "README.md").write_bytes(card("base_model: Qwen/Qwen3-8B"))
    assert read_checkpoint(str(folder)).base_models == ("Qwen/Qwen3-8B",)
