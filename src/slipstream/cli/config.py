"""`slipstream config`: which defaults take effect here, and where each comes from."""

import argparse
import json
import os
from collections.abc import Iterator
from typing import Any

from slipstream.cli.arguments import ONE_WORD_VERBS, load_verb, make_verb_parser
from slipstream.cli.defaults import apply_defaults, find_config_file, list_options, read_config
from slipstream.cli.options import OptionAdder
from slipstream.cli.screen import Screen
from slipstream.errors import ExitCode
from slipstream.reporting.report import align
from slipstream.serving.access.keys import find_key_file
from slipstream.serving.run import find_runs_root
from slipstream.user_folders import model_cache, recipe_overlay, slipstream_cache

_FOLDERS = {
    "cache": (slipstream_cache, ("SLIPSTREAM_CACHE", "XDG_CACHE_HOME")),
    "models": (model_cache, ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME")),
    "keys": (find_key_file, ("SLIPSTREAM_KEYS", "XDG_CONFIG_HOME")),
    "recipes": (recipe_overlay, ("XDG_CONFIG_HOME",)),
    "runs": (find_runs_root, ("XDG_STATE_HOME",)),
}
EXAMPLES = """\
# folders, and every default that was set
slipstream config
# all options of a verb, and where each default comes from
slipstream config serve
"""


def add_arguments(add: OptionAdder) -> None:
    add(
        "[VERB]",
        "verb whose options to show (default: the folders and every default that was set)",
        choices=tuple(ONE_WORD_VERBS),
    )


def run(options: argparse.Namespace, screen: Screen) -> ExitCode:
    """Show the name of each default, its value, and the variable or file that sets it."""
    tables = read_config(os.environ, ONE_WORD_VERBS)
    if options.verb:
        rows = [*_list_options(options.verb, tables.get(options.verb, {}))]
    else:
        rows = [*_list_folders()]
        for verb, table in tables.items():
            rows += [row for row in _list_options(verb, table) if row[2] != "default"]
    file = find_config_file(os.environ)
    exists = file is not None and file.exists()
    values = [dict(zip(("name", "value", "source"), row, strict=True)) for row in rows]
    document = {"schema_version": 2, "file": file and str(file), "exists": exists, "values": values}
    title = f"file: {file or 'unknown without HOME'}{'' if exists else ' (not there)'}"
    shown = [(name, value or "not set", source) for name, value, source in rows]
    screen.show_data(text="\n".join([title, "", *align(shown)]), document=json.dumps(document))
    return ExitCode.DONE


def _list_folders() -> Iterator[tuple[str, str | None, str]]:
    for name, (find, variables) in _FOLDERS.items():
        source = next((one for one in variables if os.environ.get(one)), "default")
        yield name, str(find(os.environ)), source


def _list_options(verb: str, table: dict[str, Any]) -> Iterator[tuple[str, str | None, str]]:
    parser = make_verb_parser(verb, load_verb(verb))
    apply_defaults(verb, parser, table)
    for name, action in list_options(parser).items():
        source = "config.toml" if name in table else "default"
        yield f"{verb} --{name}", _show(action.default), source


def _show(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return str(value).lower()
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
