"""`slipstream serve`: an engine that is started, proven and kept up."""

import argparse
import asyncio
import getpass
import os
import shutil
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from slipstream.cli.arguments import natural_number, whole_number
from slipstream.cli.plan import add_wishes, make_plan, take_plan
from slipstream.cli.screen import Screen
from slipstream.engines.installed import find_versions
from slipstream.errors import ExitCode, UsageError
from slipstream.hardware import Host, read_host, this_machine
from slipstream.planning import LaunchPlan
from slipstream.reporting.plan_text import render_plan
from slipstream.reporting.run_text import render_event
from slipstream.serving.addresses import Address
from slipstream.serving.chronicle import Chronicle
from slipstream.serving.container import (
    decide_bind,
    read_variable_key,
    require_readable,
    without_key,
    write_key,
)
from slipstream.serving.detaching import detach, follow_to_ready
from slipstream.serving.engine_process import require_accepted
from slipstream.serving.gate_file import GateRecording, require_key_for
from slipstream.serving.keys import find_key_file, read_keys
from slipstream.serving.run import (
    Event,
    Run,
    RunFolder,
    Terms,
    find_runs_root,
    name_run,
    read_process,
)
from slipstream.serving.served_plan import listen_at, localize, put_behind_gate
from slipstream.serving.supervisor import Supervisor
from slipstream.serving.systemd import Service, render_unit
from slipstream.serving.weights import LocalModel, obtain
from slipstream.user_folders import model_cache, slipstream_cache


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `serve` takes."""
    parser.add_argument(
        "target",
        metavar="TARGET",
        nargs="?",
        help="a folder, a hub model, a saved plan, or a run's folder",
    )
    add_wishes(parser)
    parser.add_argument("--bind", metavar="ADDRESS", help="to listen at; default this machine only")
    parser.add_argument("--port", type=whole_number, help="default 8000")
    parser.add_argument("--detach", action="store_true", help="leave once it is ready")
    parser.add_argument(
        "--drain", type=natural_number, metavar="SECONDS", default=30, help="for open requests"
    )
    parser.add_argument("--record", metavar="FOLDER", type=Path, help="keep requests, for train")
    parser.add_argument(
        "--redact", metavar="PATTERN", nargs="+", default=(), help="struck out of what is kept"
    )
    parser.add_argument("--accept-changes", action="store_true", help="of files in a folder")
    parser.add_argument("--unit", action="store_true", help="print a systemd unit for a saved plan")
    parser.usage = "slipstream serve TARGET [options] [-- ENGINE ARGUMENTS]"


def run(options: argparse.Namespace, screen: Screen) -> ExitCode:
    """Serve until asked to stop."""
    environment = os.environ
    host = read_host(this_machine(environment, datetime.now(UTC)))
    plan, terms = _find_plan(options, host)
    if options.unit:
        return _show_unit(options, terms, screen)
    if options.from_env:
        screen.show_progress(render_plan(plan, explain=False))
    require_accepted(plan)
    now = datetime.now(UTC)
    folder = RunFolder(find_runs_root(environment) / name_run(plan, now, os.getpid()))
    keys = read_keys(terms.keys_file) if terms.keys_file else ()
    handed = None if keys else read_variable_key(environment, now)
    if handed is not None:
        keys = (handed,)
        terms = terms.model_copy(update={"keys_file": folder.path / "keys.json"})
    bind = _find_bind(options, plan, host, has_key=any(key.is_valid(now) for key in keys))
    plan = put_behind_gate(listen_at(plan, bind, options.port), folder)
    address = Address.of(plan)
    address.require_free()
    require_key_for(address.socket or address.host, keys, now=now)
    begun = _describe_run(folder, plan, host, terms)
    folder.begin(begun)
    if handed is not None:
        write_key(folder.path / "keys.json", handed)
    if options.detach and detach(folder.supervisor_log):
        return follow_to_ready(folder, lambda event: _show_event(event, screen))
    chronicle = Chronicle(folder, begun, lambda event: _show_event(event, screen))
    chronicle.update(supervisor=read_process(os.getpid()))
    return _supervise(chronicle, without_key(environment), accept_changes=options.accept_changes)


def _find_plan(options: argparse.Namespace, host: Host) -> tuple[LaunchPlan, Terms]:
    """Take a run's plan, a saved one, or make it now."""
    terms = _read_terms(options)
    if options.target is None:
        if not (options.from_env and os.environ.get("MODEL_PATH")):
            hint = "slipstream serve TARGET; with --from-env MODEL_PATH names it"
            raise UsageError("no target was named", hint=hint)
        require_readable(os.environ)
        return make_plan(options, host), terms
    target = Path(options.target)
    if (target / "run.json").is_file():
        earlier = RunFolder(target).read()
        return earlier.plan, earlier.terms.model_copy(update={"detached": options.detach})
    return take_plan(options, host), terms


def _find_bind(
    options: argparse.Namespace, plan: LaunchPlan, host: Host, *, has_key: bool
) -> str | None:
    """Take the address that was named, or with a container's variables the one for a container."""
    named: str | None = options.bind
    said = [plan.find(flag) for flag in ("--host", "--uds")]
    if named or not options.from_env or any(one and one.source == "user" for one in said):
        return named
    return decide_bind(host, has_key=has_key)


def _read_terms(options: argparse.Namespace) -> Terms:
    recording = None
    if options.record is not None:
        recording = GateRecording(
            folder=options.record.expanduser().resolve(), redact=tuple(options.redact)
        )
    return Terms(
        keys_file=find_key_file(os.environ),
        drain_seconds=options.drain,
        recording=recording,
        detached=options.detach,
    )


def _describe_run(folder: RunFolder, plan: LaunchPlan, host: Host, terms: Terms) -> Run:
    here = read_process(os.getpid())
    assert here is not None
    return Run(
        id=folder.path.name,
        began_at=datetime.now(UTC),
        plan=plan,
        host=host,
        versions=find_versions(),
        terms=terms,
        argv=tuple(plan.argv()),
        supervisor=here,
    )


def _supervise(
    chronicle: Chronicle, environment: Mapping[str, str], *, accept_changes: bool
) -> ExitCode:
    """Have the weights here and checked, then keep an engine up."""
    chronicle.move("downloading", "the weights are fetched, or checked if they are here")

    def have(name: str, revision: str | None) -> LocalModel:
        return obtain(
            name,
            revision=revision,
            cache=slipstream_cache(environment),
            environment=environment,
            report=chronicle.note,
            accept_changes=accept_changes,
            with_code=chronicle.run.plan.find("--trust-remote-code") is not None,
        )

    try:
        chronicle.update(plan=localize(chronicle.run.plan, have))
    except BaseException as fault:
        chronicle.move("failed", f"given up: {fault}")
        raise
    asyncio.run(Supervisor(chronicle, environment).serve())
    return ExitCode.DONE


def _show_event(event: Event, screen: Screen) -> None:
    if screen.json:
        screen.show_data(text="", document=event.model_dump_json())
    else:
        screen.show_progress(render_event(event))


def _show_unit(options: argparse.Namespace, terms: Terms, screen: Screen) -> ExitCode:
    plan = Path(options.target or "").resolve()
    if not plan.is_file():
        raise UsageError("a unit needs a saved plan", hint="slipstream plan TARGET --json > PLAN")
    command = shutil.which("slipstream") or sys.argv[0]
    given = {"--bind": options.bind, "--port": options.port, "--drain": options.drain}
    words = [word for flag, value in given.items() if value for word in (flag, str(value))]
    keys = terms.keys_file if terms.keys_file and terms.keys_file.exists() else None
    service = Service(
        command=Path(command).resolve(),
        plan=plan,
        user=getpass.getuser(),
        state=find_runs_root(os.environ).parents[1],
        cache=slipstream_cache(os.environ),
        models=model_cache(os.environ),
        drain_seconds=terms.drain_seconds,
        options=tuple(words),
        keys=keys,
    )
    screen.output.write(render_unit(service))
    return ExitCode.DONE
