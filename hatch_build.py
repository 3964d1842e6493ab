"""A build hook: the man page goes into the wheel where scripts/make-pages has made it."""

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PAGE = "man/slipstream.1"


class ManPage(BuildHookInterface[Any]):
    """Adds the page to the files beside the package."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Look for the page; a wheel that is built from a checkout has none."""
        if Path(self.root, PAGE).is_file():
            build_data["shared_data"][PAGE] = "share/man/man1/slipstream.1"
