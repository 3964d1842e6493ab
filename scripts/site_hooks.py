"""Hooks of mkdocs: the site's menu is docs/index.md, and the repository's own pages are in it.

The pages stay as GitHub shows them. Marks for the tests are taken off code fences, links to files
outside docs/ lead to the page of that file here, or else to the repository.
"""

import re
import tomllib
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

REPOSITORY = Path(__file__).resolve().parents[1]
ROOT_PAGES = ("README", "CHANGELOG", "CONTRIBUTING", "SECURITY", "CODE_OF_CONDUCT")
HOME = "Documents"
EXAMPLES = {"A comparison": "example-comparison.html"}
LINK = re.compile(r"\]\(([^)\s:]+)\)")
FENCE = re.compile(r"^(\s*```\w+)[^\n`]*$", re.MULTILINE)
ENTRY = re.compile(r"\[([^\]]+)\]\(([^)\s:]+\.md)\)")


def on_config(config: Any) -> Any:
    """Make the menu from the sections of docs/index.md."""
    nav: list[Any] = [{HOME: "index.md"}, {"Overview": "project/README.md"}]
    text = (REPOSITORY / "docs" / "index.md").read_text()
    for section in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        title, _, body = section.partition("\n")
        found = {to: name.replace("`", "") for name, to in ENTRY.findall(body)}
        pages = [{_shorten(name): _place(to)} for to, name in found.items()]
        nav.append({title.partition(":")[0]: pages})
    nav.append({"Examples": [{name: page} for name, page in EXAMPLES.items()]})
    config.nav = nav
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the pages of the repository's root."""
    for name in ROOT_PAGES:
        text = (REPOSITORY / f"{name}.md").read_text()
        files.append(File.generated(config, f"project/{name}.md", content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Take off the tests' marks, and have every link lead somewhere on the site."""
    source = page.file.src_uri
    is_root = source.startswith("project/")
    folder = REPOSITORY if is_root else REPOSITORY / "docs"
    text = FENCE.sub(r"\1", markdown)
    return LINK.sub(lambda found: f"]({_lead(found[1], folder, is_root)})", text)


def _lead(link: str, folder: Path, is_root: bool) -> str:
    path, mark, heading = link.partition("#")
    if not path:
        return link
    target = (folder / path).resolve()
    up = "../" if is_root else ""
    if target.is_relative_to(REPOSITORY / "docs") and target.is_file():
        return f"{up}{target.relative_to(REPOSITORY / 'docs')}{mark}{heading}"
    if target.parent == REPOSITORY and target.stem in ROOT_PAGES:
        return f"{up}project/{target.name}{mark}{heading}"
    inside = target.relative_to(REPOSITORY)
    return f"{_find_repository()}/{'tree' if target.is_dir() else 'blob'}/main/{inside}"


def _place(link: str) -> str:
    return f"project/{Path(link).name}" if link.startswith("../") else link


def _shorten(name: str) -> str:
    return name[0].upper() + name[1:]


def _find_repository() -> str:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    return str(project["urls"]["Homepage"])
