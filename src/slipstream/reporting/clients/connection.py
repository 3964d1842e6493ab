"""Clients and their settings as text; settings are lines for a shell, the rest its comments."""

import shlex
from collections.abc import Sequence

from slipstream.clients.config_files import Written
from slipstream.clients.connection import ClientList, Connection, ConnectionCheck
from slipstream.reporting.report import align

_STATES = {True: "works", False: "fails", None: "unknown"}


def render_clients(listed: ClientList) -> str:
    rows = [(one.name, one.route.split()[-1], one.install) for one in listed.clients]
    table = align([("CLIENT", "ROUTE", "INSTALL"), *rows])
    return "\n".join([*table, "", f"next: slipstream connect {listed.clients[0].name}"])


def render_settings(connection: Connection) -> str:
    """Write a client's settings as a shell takes them; what is no variable is in comments."""
    one = connection
    variables = {**one.trust, **one.variables}
    lines = [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]
    lines += [f"export {name}={one.key_source}" for name in one.key_variables]
    lines += [f"unset {name}" for name in one.cleared]
    comments = [f"then: {shlex.join(one.command)}"] if one.command else []
    for file in one.files:
        comments += ["", f"{file.path}:", *(f"  {line}" for line in file.text.splitlines())]
    if one.files:
        words = ["slipstream", "connect", one.client, *([] if one.run else [one.url]), "--write"]
        comments += ["", f"to write it: {shlex.join(words)}"]
    if one.written_command and one.written_command != one.command:
        comments.append(f"and then: {shlex.join(one.written_command)}")
    comments += one.notes
    return "\n".join([*lines, *(f"# {line}".rstrip() for line in comments)])


def render_written(connection: Connection) -> str:
    """Return what was written where, how it is undone and what to type now."""
    lines = [line for file in connection.written for line in _describe_written(file)]
    trust = [f"export {name}={shlex.quote(value)}" for name, value in connection.trust.items()]
    keys = [f"export {name}={connection.key_source}" for name in connection.written_key_variables]
    steps = [*trust, *keys, shlex.join(connection.written_command)]
    return "\n".join([*lines, *connection.notes, "", *(f"next: {step}" for step in steps)])


def _describe_written(file: Written) -> list[str]:
    if not file.changed:
        return [f"{file.path} is already up to date"]
    lines = [f"{file.path}: set {', '.join(file.changed)}"]
    if file.backup:
        old, new = shlex.quote(file.backup), shlex.quote(file.path)
        lines.append(f"undo: mv {old} {new}")
    return lines


def render_checks(checks: Sequence[ConnectionCheck]) -> str:
    """List what was checked, with what to type where something fails."""
    rows = [(one.what, _STATES[one.works], one.message) for one in checks]
    hints = list(dict.fromkeys(one.hint for one in checks if one.hint and not one.works))
    return "\n".join([*align(rows), *([""] if hints else []), *(f"hint: {one}" for one in hints)])
