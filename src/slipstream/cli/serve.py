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
from slipstream.cli.plan import PLAN_HINT, add_wishes, make_plan, take_plan
from slipstream.cli.screen import Screen
from slipstream.cli.weights import Weights, add_accept_changes
from slipstream.engines.installed import find_versions
from slipstream.errors import ExitCode, InvalidInputError, UsageError
from slipstream.hardware import Host, read_host, this_machine
from slipstream.planning import LaunchPlan, Wishes
from slipstream.reporting.text.plan import render_plan
from slipstream.reporting.text.run import render_event
from slipstream.serving.access.addresses import Address
from slipstream.serving.access.gate_file import GateRecording, require_key_for
from slipstream.serving.access.keys import find_key_file, read_keys
from slipstream.serving.container import (
    decide_bind,
    read_variable_key,
    require_readable,
    without_key,
    write_key,
)
from slipstream.serving.pruning import prune_runs
from slipstream.serving.run import (
    Event,
    Run,
    RunFolder,
    Terms,
    find_runs_root,
    name_run,
    read_process,
)
from slipstream.serving.run_status import find_standing
from slipstream.serving.served_plan import listen_at, put_behind_gate
from slipstream.serving.supervision.chronicle import Chronicle
from slipstream.serving.supervision.detaching import detach, follow_to_ready
from slipstream.serving.supervision.engine_process import require_accepted
from slipstream.serving.supervision.supervisor import Supervisor
from slipstream.serving.systemd import Service, render_unit
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
        "--drain",
        type=natural_number,
        metavar="SECONDS",
        help=f"for open requests to finish at a stop; default {Terms().drain_seconds}",
    )
    parser.add_argument("--record", metavar="FOLDER", type=Path, help="keep requests, for train")
    parser.add_argument("--redact", metavar="PATTERN", nargs="+", help="struck out of what is kept")
    add_accept_changes(parser)
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
    plan = listen_at(plan, bind, options.port)
    address = Address.of(put_behind_gate(plan, folder))
    address.require_free()
    require_key_for(address.socket or address.host, keys, now=now)
    earlier = RunFolder(Path(options.target).absolute()) if options.target else None
    pruned = prune_runs(folder.path.parent, now=now, spared=earlier.path if earlier else None)
    begun = _describe_run(folder, put_behind_gate(plan, folder), host, terms)
    try:
        folder.begin(begun)
    except InvalidInputError:
        if earlier is None or not _was_cut_off(earlier):
            raise
        folder = earlier  # A full disk leaves no room for another folder: this one has some.
        begun = _describe_run(folder, put_behind_gate(plan, folder), host, terms)
    if handed is not None:
        write_key(folder.path / "keys.json", handed)
    if options.detach and detach(folder.supervisor_log):
        return follow_to_ready(folder, lambda event: _show_event(event, screen))
    chronicle = Chronicle(folder, begun, lambda event: _show_event(event, screen))
    chronicle.update(supervisor=read_process(os.getpid()))
    if pruned.names:
        chronicle.note(str(pruned))
    kept = without_key(environment)
    weights = Weights(screen, kept, options.accept_changes, chronicle.note)
    return _supervise(chronicle, kept, weights)


def _find_plan(options: argparse.Namespace, host: Host) -> tuple[LaunchPlan, Terms]:
    """Take a run's plan, a saved one, or make it now."""
    terms = Terms(keys_file=find_key_file(os.environ))
    if options.target is None:
        if not (options.from_env and os.environ.get("MODEL_PATH")):
            hint = "slipstream serve TARGET; with --from-env MODEL_PATH names it"
            raise UsageError("no target was named", hint=hint)
        require_readable(os.environ)
        return make_plan(options, host), _read_terms(options, terms)
    target = Path(options.target)
    if (target / "run.json").is_file():
        _refuse_wishes(options, "a run is served again as it was", "slipstream serve TARGET")
        earlier = RunFolder(target).read()
        return earlier.plan, _read_terms(options, earlier.terms)
    if target.is_file():
        _refuse_wishes(options, "a saved plan is taken as it is", PLAN_HINT)
    return take_plan(options, host), _read_terms(options, terms)


def _was_cut_off(folder: RunFolder) -> bool:
    """Say whether a run's supervisor was killed, so that this is its successor."""
    return folder.record.is_file() and find_standing(folder.read()) == "supervisor gone"


def _refuse_wishes(options: argparse.Namespace, why: str, hint: str) -> None:
    """Refuse what would change a plan that is already made."""
    wishes = {
        "--drafter": options.drafter,
        "--context": options.context,
        "--users": options.users,
        "--goal": options.goal != Wishes().goal,
        "--k": options.k,
        "--no-speculation": options.no_speculation,
        "--from-env": options.from_env,
        "--": options.raw,
    }
    if refused := [flag for flag, value in wishes.items() if value]:
        raise UsageError(f"{why}, without {', '.join(refused)}", hint=f"{hint} [options]")


def _find_bind(
    options: argparse.Namespace, plan: LaunchPlan, host: Host, *, has_key: bool
) -> str | None:
    """Take the address that was named, or with a container's variables the one for a container."""
    named: str | None = options.bind
    asked = (plan.settings.host, plan.settings.uds)
    if named or not options.from_env or any(one and one.source != "default" for one in asked):
        return named
    return decide_bind(host, has_key=has_key)


def _read_terms(options: argparse.Namespace, terms: Terms) -> Terms:
    """Change terms as far as the options say."""
    recording = terms.recording
    if options.record is not None:
        recording = GateRecording(folder=options.record.expanduser().resolve())
    if options.redact is not None:
        if recording is None:
            raise UsageError(
                "--redact was given, and no requests are kept", hint="--record FOLDER keeps them"
            )
        recording = GateRecording(
            folder=recording.folder,
            limit_bytes=recording.limit_bytes,
            redact=tuple(options.redact),
        )
    drain = terms.drain_seconds if options.drain is None else options.drain
    return terms.model_copy(
        update={"drain_seconds": drain, "recording": recording, "detached": options.detach}
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


def _supervise(chronicle: Chronicle, environment: Mapping[str, str], weights: Weights) -> ExitCode:
    """Have the weights here and checked, then keep an engine up."""
    chronicle.move("downloading", "the weights are fetched, or checked if they are here")
    try:
        chronicle.update(plan=weights.localize(chronicle.run.plan))
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
    if options.detach or options.accept_changes:
        raise UsageError(
            "a unit neither detaches nor accepts changed files",
            hint="slipstream serve PLAN --unit, without --detach and --accept-changes",
        )
    command = shutil.which("slipstream") or sys.argv[0]
    recording = terms.recording
    given = {
        "--bind": options.bind,
        "--port": options.port,
        "--drain": options.drain,
        "--record": recording.folder if recording else None,
    }
    words = [word for flag, value in given.items() if value is not None for word in (flag, value)]
    if recording and recording.redact:
        words += ["--redact", *recording.redact]
    keys = terms.keys_file if terms.keys_file and terms.keys_file.exists() else None
    service = Service(
        command=Path(command).resolve(),
        plan=plan,
        user=getpass.getuser(),
        state=find_runs_root(os.environ).parents[1],
        cache=slipstream_cache(os.environ),
        models=model_cache(os.environ),
        drain_seconds=terms.drain_seconds,
        options=tuple(map(str, words)),
        keys=keys,
        recording=recording.folder if recording else None,
    )
    screen.output.write(render_unit(service))
    return ExitCode.DONE
