"""What the command says of itself: the man page and the reference, examples and options."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from slipstream.cli.arguments import PUBLIC_VERBS, load_verb, make_verb_parser, parse_arguments
from slipstream.errors import ExitCode
from tests.docs.documents import Block, find_commands

SCRIPT = Path(__file__).parents[3] / "scripts" / "make-pages"


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Return the man page and the reference, made as a release makes them."""
    files = [tmp_path_factory.mktemp("pages") / name for name in ("slipstream.1", "reference.md")]
    subprocess.run([sys.executable, str(SCRIPT), *map(str, files)], check=True)
    manual, reference = (file.read_text() for file in files)
    return manual, reference


def test_every_verb_and_exit_code_has_its_place(pages: tuple[str, str]) -> None:
    manual, reference = pages
    for verb in PUBLIC_VERBS:
        assert f"\n.SH SLIPSTREAM {verb.upper()}\n" in manual
        assert f"\n## slipstream {verb}\n\n```\nusage: slipstream {verb} " in reference
    assert all(f"\n.B {int(code)}\n" in manual for code in ExitCode)


@pytest.mark.parametrize(
    ("page", "cell"),
    [
        ("patches.md", "drops the last block"),
        ("steering.md", "fixed at 15"),
        ("how-dflash-works.md", "32: 1.9 to 3.8"),
    ],
)
def test_a_table_of_a_page_is_the_one_that_is_made(page: str, cell: str, tmp_path: Path) -> None:
    kept = SCRIPT.parents[1] / "docs" / page
    made = tmp_path / kept.name
    assert cell in kept.read_text()
    made.write_text(kept.read_text().replace(cell, "old"))
    subprocess.run([sys.executable, str(SCRIPT), str(made)], check=True)
    assert made.read_text() == kept.read_text(), f"scripts/make-pages docs/{page}"


@pytest.mark.skipif(shutil.which("groff") is None, reason="groff is not installed")
def test_roff_formats_the_page_without_a_warning(pages: tuple[str, str]) -> None:
    done = subprocess.run(
        ["groff", "-man", "-ww", "-Tascii", "-P-cbou"],
        input=pages[0].encode(),
        capture_output=True,
        check=True,
        env={"PATH": os.environ["PATH"]},
    )
    assert done.stderr == b""
    assert b"--no-speculation" in done.stdout


def test_a_verbs_module_is_in_the_package_of_its_group() -> None:
    assert vars(load_verb("status"))["__name__"] == "slipstream.cli.serving.status"
    assert vars(load_verb("fleet status"))["__name__"] == "slipstream.cli.fleet.status"
    assert vars(load_verb("config"))["__name__"] == "slipstream.cli.config"


@pytest.mark.parametrize("name", PUBLIC_VERBS)
def test_every_verb_shows_two_examples_that_can_be_typed(name: str) -> None:
    verb = load_verb(name)
    commands = list(find_commands(Block(name, ("sh",), getattr(verb, "EXAMPLES", ""))))
    assert len(commands) >= 2
    for words in commands:
        assert words[: len(name.split())] == name.split()
        parse_arguments(words)


@pytest.mark.parametrize("name", PUBLIC_VERBS)
def test_every_option_says_what_it_sets(name: str) -> None:
    parser = make_verb_parser(name, load_verb(name))
    unexplained = [action.dest for action in parser._actions if len(action.help or "") < 12]
    assert unexplained == []
