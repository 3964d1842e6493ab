"""`slipstream config`: which defaults count here, and where each comes from."""

import argparse
import os
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from slipstream.cli.arguments import ONE_WORD_VERBS, load_verb, make_verb_parser
from slipstream.cli.defaults import find_config_file, find_configured, list_options, read_config
from slipstream.cli.screen import Screen
from slipstream.errors import ExitCode
from slipstream.records import Record
from slipstream.reporting.tables import align
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


class ConfigValue(Record):
    """A default, its source, and the variable or the line of the file that sets it."""

    verb: str | None
    name: str
    value: str | None
    source: Literal["variable", "file", "default"]
    place: str | None


class ConfigList(Record):
    """The defaults that count; `file` is there only if `exists`."""

    schema_version: Literal[1] = 1
    file: str | None
    exists: bool
    values: tuple[ConfigValue, ...]


EXAMPLES = """\
# folders, and every default that was set
slipstream config
# all options of a verb, and where each default comes from
slipstream config serve
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `config`."""
    parser.add_argument(
        "verb",
        metavar="VERB",
        nargs="?",
        choices=tuple(ONE_WORD_VERBS),
        help="show every option of this verb (default: folders, and what was set for any verb)",
    )


def run(options: argparse.Namespace, screen: Screen) -> ExitCode:
    """Show where each default comes from."""
    environment = os.environ
    tables = read_config(environment, ONE_WORD_VERBS)
    values = list[ConfigValue]()
    if options.verb is None:
        values += _list_folders(environment)
    for verb in ONE_WORD_VERBS if options.verb is None else (options.verb,):
        listed = _list_values(verb, tables, environment)
        values += [one for one in listed if options.verb is not None or one.source != "default"]
    file = find_config_file(environment)
    document = ConfigList(
        file=None if file is None else str(file),
        exists=file is not None and file.exists(),
        values=tuple(values),
    )
    screen.show_data(text=_render(document), document=document.to_json())
    return ExitCode.DONE


def _list_folders(environment: Mapping[str, str]) -> Iterator[ConfigValue]:
    for name, (find, variables) in _FOLDERS.items():
        place = next((one for one in variables if environment.get(one)), None)
        yield ConfigValue(
            verb=None,
            name=name,
            value=str(find(environment)),
            source="variable" if place else "default",
            place=place,
        )


def _list_values(
    verb: str, tables: Mapping[str, Any], environment: Mapping[str, str]
) -> Iterator[ConfigValue]:
    parser = make_verb_parser(verb, load_verb(verb))
    configured = find_configured(verb, parser, tables, environment)
    for name, action in list_options(parser).items():
        one = configured.get(action.dest)
        yield ConfigValue(
            verb=verb,
            name=name,
            value=_show(one.value if one else action.default),
            source=one.source if one else "default",
            place=one.place if one else None,
        )


def _show(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return str(value).lower()
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _render(document: ConfigList) -> str:
    """Show a table of values with their sources."""
    rows = [
        (
            f"{one.verb} --{one.name}" if one.verb else one.name,
            "not set" if one.value is None else one.value,
            one.place or one.source,
        )
        for one in document.values
    ]
    known = document.file or "unknown without HOME"
    file = f"file: {known}{'' if document.exists else ' (not there)'}"
    return "\n".join([file, "", *align(rows)])
