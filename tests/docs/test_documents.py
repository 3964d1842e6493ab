"""What the documents say to type can be typed, what they show is printed, and no link is dead."""

import re
from contextlib import suppress
from pathlib import Path

import pytest

from slipstream.cli.arguments import parse_arguments
from slipstream.errors import UsageError
from tests.docs.documents import (
    DOCUMENTS,
    MARKS,
    REPOSITORY,
    Block,
    find_commands,
    read_blocks,
    run_blocks,
)

LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"`(slipstream [^`]+)`")
RUNNABLE = [
    document
    for document in DOCUMENTS
    if any(block.is_commands and not set(MARKS) & {*block.info} for block in read_blocks(document))
]


def list_links(document: str) -> list[tuple[str, str]]:
    """Return the files that a document links to, each with the heading in it."""
    text = FENCED.sub("", (REPOSITORY / document).read_text())
    links = [link for link in LINK.findall(text) if "://" not in link]
    return [(link.partition("#")[0], link.partition("#")[2]) for link in links]


def find_linked(document: str, link: str) -> Path:
    return ((REPOSITORY / document).parent / link).resolve() if link else REPOSITORY / document


def list_headings(page: Path) -> set[str]:
    """Return the names by which a heading can be linked, as GitHub makes them."""
    headings = HEADING.findall(FENCED.sub("", page.read_text()))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def find_complaint(words: list[str]) -> str | None:
    try:
        with suppress(SystemExit):  # of --help
            parse_arguments(words)
    except UsageError as fault:
        return f"slipstream {' '.join(words)}: {fault.message}"
    return None


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_command_is_understood(document: str) -> None:
    blocks = [block for block in read_blocks(document) if block.is_commands]
    asked = [
        (block.place, find_complaint(words)) for block in blocks for words in find_commands(block)
    ]
    assert [(place, complaint) for place, complaint in asked if complaint] == []


@pytest.mark.parametrize("document", DOCUMENTS)
def test_what_a_sentence_says_of_a_command_is_so(document: str) -> None:
    spans = SPAN.findall(FENCED.sub("", (REPOSITORY / document).read_text()))
    commands = [words for span in spans for words in find_commands(Block(document, (), span))]
    complaints = [find_complaint(words) for words in commands]
    assert [one for one in complaints if one and "required" not in one] == []


@pytest.mark.parametrize("document", DOCUMENTS)
def test_no_command_hides_in_a_block_without_a_mark(document: str) -> None:
    for block in read_blocks(document):
        if block.is_commands:
            marks = {mark for mark in block.info[1:] if not mark.startswith(("exit=", "columns="))}
            unknown = marks - {*MARKS}
            assert not unknown, f"{block.place}: nobody knows what to do with {unknown}"
        elif block.info != ("text",):
            assert not re.search(r"^(\$ )?slipstream ", block.text, re.MULTILINE), block.place


@pytest.mark.e2e
@pytest.mark.parametrize("document", RUNNABLE)
def test_what_runs_anywhere_does_what_the_document_says(document: str, tmp_path: Path) -> None:
    blocks = [block for block in read_blocks(document) if block.is_commands]
    free = [block for block in blocks if not set(MARKS) & {*block.info}]
    assert run_blocks(free, tmp_path) is None


@pytest.mark.parametrize("document", DOCUMENTS)
def test_no_link_is_dead(document: str) -> None:
    for link, heading in list_links(document):
        page = find_linked(document, link)
        assert page.exists(), f"{document} links to {link}"
        if heading:
            assert heading in list_headings(page), f"{document} links to {link}#{heading}"


def test_every_document_can_be_reached_from_the_readme() -> None:
    reached, left = set(), ["README.md"]
    while left:
        document = left.pop()
        reached.add(document)
        pages = [find_linked(document, link) for link, _ in list_links(document)]
        names = [str(page.relative_to(REPOSITORY)) for page in pages if page.suffix == ".md"]
        left += [name for name in names if name not in reached]
    assert set(DOCUMENTS) - reached == set()


def make_block(text: str, *info: str, shown: str | None = None) -> Block:
    return Block("here", ("sh", *info), text, shown)


def test_commands_are_found_wherever_a_shell_finds_them() -> None:
    text = (
        "KEY=$(slipstream keys new --name alice)  # slipstream says it once\n"
        "HF_HUB_OFFLINE=1 slipstream plan A \\\n  --json > plan.json && slipstream stop | cat\n"
        "slipstream tune A --goal 'tpot<30ms@p95'\npip install slipstream\n"
    )
    assert list(find_commands(make_block(text))) == [
        ["keys", "new", "--name", "alice"],
        ["plan", "A", "--json"],
        ["stop"],
        ["tune", "A", "--goal", "tpot<30ms@p95"],
    ]


@pytest.mark.parametrize(
    ("block", "complaint"),
    [
        (make_block("false\ntrue\n"), "here failed"),
        (make_block("false | true\n"), "here failed"),
        (make_block("true\n", "exit=1"), "here failed"),
        (make_block("echo one; echo two\n", shown="two\none\n"), "does not print 'one'"),
        (make_block("echo one\n", shown="on\n"), "does not print 'on'"),
        (make_block("echo one two\n", "columns=4", shown="one two\n"), "does not print 'one two'"),
    ],
)
def test_a_block_that_does_something_else_is_caught(
    block: Block, complaint: str, tmp_path: Path
) -> None:
    told = run_blocks([make_block("echo before\n"), block], tmp_path)
    assert re.search(complaint, told or "")


def test_blocks_share_a_shell_and_what_it_shows_may_have_gaps(tmp_path: Path) -> None:
    blocks = [
        make_block("word=one\n"),
        make_block("exit 3\n", "exit=3"),
        make_block("echo $word; echo two; echo three\n", shown="one\n...\nthree\n"),
    ]
    assert run_blocks(blocks, tmp_path) is None
