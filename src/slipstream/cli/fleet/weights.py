"""`slipstream fleet weights`: a model on this machine; `fleet up` runs it on each."""

import argparse
import json
import os

from slipstream.cli.screen import Screen
from slipstream.errors import ExitCode
from slipstream.fleet.far_side.held_model import find_tree, hold_model


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `fleet weights`."""
    parser.add_argument("--model", required=True, help="local folder or hub name of the model")
    parser.add_argument("--revision", help="revision of the hub model")
    parser.add_argument("--with-code", action="store_true", help="download its Python files, too")
    parser.add_argument(
        "--where", action="store_true", help="print only the path of the model, present or not"
    )


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
