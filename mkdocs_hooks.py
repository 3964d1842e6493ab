"""Hooks of mkdocs: README.md is the first page, docs/index.md the menu, and both are as on GitHub.

Marks for the tests are removed from code fences; links to files outside docs/ lead to the page of
that file here, or else to the repository. scripts/build-site writes the reference and names it.
"""

import os
import re
import tomllib
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

REPOSITORY = Path(__file__).resolve().parent
# Where pages from outside docs/, and docs/index.md, are on the site.
MOVED = {
    "README.md": "index.md",
    "docs/index.md": "documents.md",
    "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/working.md",
    "SECURITY.md": "project/security.md",
    "CODE_OF_CONDUCT.md": "project/conduct.md",
}
REFERENCE = os.environ.get("SLIPSTREAM_REFERENCE")
LINK = re.compile(r"(\])\(([^)\s:]+)\)")
FENCE = re.compile(r"^(\s*```\w+)[^\n`]*$", re.MULTILINE)
# A page that begins an entry of docs/index.md is on the menu; others in that entry are linked only.
ENTRY = re.compile(r"^- \[([^\]]+)\]\(([^)\s:]+\.md)\)", re.MULTILINE)


def on_config(config: Any) -> Any:
    """Make the menu from the sections of docs/index.md."""
    nav: list[Any] = [{"Overview": "index.md"}, {"All documents": "documents.md"}]
    text = (REPOSITORY / "docs" / "index.md").read_text()
    for section in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        title, _, body = section.partition("\n")
        found = {to: name.replace("`", "") for name, to in ENTRY.findall(body)}
        pages = [{_shorten(name): _find_place(f"docs/{to}")} for to, name in found.items()]
        if title == "Reference" and REFERENCE:
            pages.insert(0, {"Every verb and flag": "reference.md"})
        nav.append({title.partition(":")[0]: pages})
    config.nav = nav
    return config


def on_files(files: Files, config: Any) -> Files:
    """Put the pages of the repository's root at their places."""
    files.remove(next(file for file in files if file.src_uri == "index.md"))
    for source, place in MOVED.items():
        text = (REPOSITORY / source).read_text()
        files.append(File.generated(config, place, content=text))
    if REFERENCE:
        content = Path(REFERENCE).read_text()
        files.append(File.generated(config, "reference.md", content=content))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Remove the tests' marks, and make every link lead somewhere."""
    place = page.file.src_uri
    source = next((source for source, to in MOVED.items() if to == place), f"docs/{place}")
    text = FENCE.sub(r"\1", markdown)
    return LINK.sub(lambda found: f"{found[1]}({_lead(found[2], source, place)})", text)


def _lead(link: str, source: str, place: str) -> str:
    path, mark, heading = link.partition("#")
    if not path:
        return link
    target = os.path.normpath(Path(source).parent / path)
    if (REPOSITORY / target).is_file() and (to := _find_place(target)) is not None:
        return os.path.relpath(to, Path(place).parent) + mark + heading
    kind = "tree" if (REPOSITORY / target).is_dir() else "blob"
    return f"{_find_repository()}/{kind}/main/{target}"


def _find_place(source: str) -> str | None:
    source = os.path.normpath(source)
    inside = source.removeprefix("docs/") if source.startswith("docs/") else None
    return MOVED.get(source, inside)


def _shorten(name: str) -> str:
    return name[0].upper() + name[1:]


def _find_repository() -> str:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    return str(project["urls"]["Homepage"])
