"""`slipstream fleet weights`: a model on this machine; `fleet up` runs it on each."""

import argparse
import json
import os

from slipstream.cli.screen import Screen
from slipstream.errors import ExitCode
from slipstream.fleet.far_side.held_model import find_tree, hold_model


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `fleet weights` takes."""
    parser.add_argument("--model", required=True, help="a folder, or a hub model")
    parser.add_argument("--revision", help="of the hub model")
    parser.add_argument("--with-code", action="store_true", help="take its Python files, too")
    parser.add_argument("--where", action="store_true", help="only say where it lies, or would")


def run(options: argparse.Namespace, screen: Screen) -> ExitCode:
    """Have the model here and checked, and describe it."""
    if options.where:
        tree = str(find_tree(options.model, os.environ))
        screen.show_data(text=tree, document=json.dumps({"tree": tree}))
        return ExitCode.DONE
    held = hold_model(
        options.model,
        options.revision,
        os.environ,
        screen.show_progress,
        with_code=options.with_code,
    )
    screen.show_data(text=held.tree, document=held.to_json())
    return ExitCode.DONE
