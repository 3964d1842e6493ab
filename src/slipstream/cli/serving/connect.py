"""`slipstream connect`: the settings of a client program for a server, and a test of both."""

import argparse
import asyncio
import os
import shutil
from collections.abc import Sequence

from slipstream.cli.options import OptionAdder, add_server
from slipstream.cli.screen import Screen
from slipstream.clients.catalogue import CLIENTS
from slipstream.clients.config_files import Written, plan_change, write_change
from slipstream.clients.connection import (
    NO_KEY,
    Client,
    ClientKey,
    ClientList,
    ClientSummary,
    Connection,
    ServedModel,
    check_plan,
    find_served,
)
from slipstream.clients.testing import Tester
from slipstream.errors import ExitCode, InvalidInputError, MissingPartError, UsageError
from slipstream.measuring.client.endpoint import KEY_VARIABLE, read_key
from slipstream.reporting.clients.connection import (
    render_checks,
    render_clients,
    render_settings,
    render_written,
)
from slipstream.serving.run import find_runs_root

EXAMPLES = """\
# test the newest run with the requests of Claude Code, and write its settings
slipstream connect claude --test --write
# start Codex with a server on another machine
slipstream connect codex http://spark:8000 --key ~/.spark-key --launch
"""


def add_arguments(add: OptionAdder) -> None:
    add(
        "[CLIENT]",
        f"client to configure: {', '.join(CLIENTS)} (default: list them)",
        choices=tuple(CLIENTS),
        aliases={"claude-code": "claude", "open-webui": "openwebui", "openai": "openai-python"},
    )
    add_server(add)
    add(
        "--key FILE",
        "file with the client's API key; the client's settings refer to it and do not hold "
        f"the key (default: the variable {KEY_VARIABLE})",
    )
    action = add.exclusive()
    action(
        "--write", "merge the settings into the client's configuration file (default: print them)"
    )
    action("--launch", "start the client with these settings and the arguments after --")
    add(
        "--test",
        "send the server requests as the client does: streamed, with a tool call, with a "
        "full context",
    )
    add.parser.usage = "slipstream connect [CLIENT] [URL|RUN] [options] [-- CLIENT ARGUMENTS]"


def run(options: argparse.Namespace, screen: Screen) -> ExitCode:
    """Print or write a client's settings, test the server, or start the client."""
    _require_fitting(options, screen)
    if options.client is None:
        known = [
            ClientSummary(name=one.name, title=one.title, route=one.route, install=one.install)
            for one in CLIENTS.values()
        ]
        listed = ClientList(clients=tuple(known))
        screen.show_data(text=render_clients(listed), document=listed.to_json())
        return ExitCode.DONE
    client, served = CLIENTS[options.client], _find_served(options)
    connection = client.connect(served, os.environ)
    checks = check_plan(client, served)
    if options.test:
        with screen.busy("testing the server"):
            checks += asyncio.run(Tester(client, served, screen.show_progress).test())
    written = _write(connection) if options.write else ()
    connection = connection.model_copy(update={"checks": tuple(checks), "written": written})
    failed = [check for check in checks if check.works is False]
    for check in () if options.test else failed:
        fault = InvalidInputError(check.message, hint=check.hint or "slipstream status")
        if options.launch and check.what == "key":
            raise fault
        screen.warn(fault)
    if options.launch:
        _launch(client, connection, served.key.secret or NO_KEY, options.raw)
    parts = [render_written(connection)] if connection.written else []
    parts += [render_checks(connection.checks)] if options.test else []
    text = "\n\n".join(parts) or render_settings(connection)
    screen.show_data(text=text, document=connection.to_json(), as_is=not parts)
    return ExitCode.EXPECTED_FAILURE if options.test and failed else ExitCode.DONE


def _require_fitting(options: argparse.Namespace, screen: Screen) -> None:
    if options.raw and not options.launch:
        raise UsageError(
            "arguments after -- are for the client and need --launch",
            hint=f"slipstream connect {options.client or 'claude'} --launch -- ...",
        )
    if options.launch and (screen.json or options.test or options.client is None):
        raise UsageError(
            "--launch needs a client, and cannot be combined with --json or --test",
            hint=f"slipstream connect {options.client or 'claude'} --launch",
        )
    if options.write and options.client is None:
        raise UsageError("--write needs a client", hint="slipstream connect")


def _find_served(options: argparse.Namespace) -> ServedModel:
    key = ClientKey(None, options.key, read_key(options.key, os.environ))
    hint = "name a server as http://HOST:PORT, or slipstream serve TARGET"
    return find_served(find_runs_root(os.environ), options.server, key, hint=hint)


def _write(connection: Connection) -> tuple[Written, ...]:
    """Write all of a client's files, or none if one of them cannot be written."""
    if not connection.files:
        raise InvalidInputError(
            f"{connection.title} has no configuration file, only environment variables",
            hint=f'eval "$(slipstream connect {connection.client})"',
        )
    for file in connection.files:
        plan_change(file)
    return tuple(write_change(file) for file in connection.files)


def _launch(client: Client, connection: Connection, key: str, words: Sequence[str]) -> None:
    """Replace this process by the client."""
    command = connection.command
    if not command:
        raise UsageError(
            f"{client.title} cannot be started by --launch",
            hint=f"slipstream connect {client.name}",
        )
    if shutil.which(command[0]) is None:
        raise MissingPartError(f"{command[0]} is not installed", hint=client.install)
    environment = {
        **{name: value for name, value in os.environ.items() if name not in connection.cleared},
        **connection.trust,
        **connection.variables,
        **dict.fromkeys(connection.key_variables, key),
    }
    os.execvpe(command[0], [*command, *words], environment)
