"""`slipstream serve`: start an engine, test it and keep it running."""

import argparse
import asyncio
import os
import shutil
import signal
import sys
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from slipstream.cli.arguments import ENGINE_ARGUMENTS, natural_number, whole_number
from slipstream.cli.plan import (
    PLAN_HINT,
    add_chat_wishes,
    add_wishes,
    make_plan,
    take_plan,
)
from slipstream.cli.screen import Screen
from slipstream.cli.weights import Weights, add_accept_changes
from slipstream.engines.installed import find_versions, require_engine
from slipstream.errors import EngineError, ExitCode, InvalidInputError, UsageError
from slipstream.hardware import Host, read_host, this_machine
from slipstream.planning import LaunchPlan, Wishes
from slipstream.reporting.text.plan import render_plan
from slipstream.reporting.text.run import render_event
from slipstream.serving.access.addresses import Address
from slipstream.serving.access.gate_file import GateRecording, require_key_for
from slipstream.serving.access.gate_rules import read_rules
from slipstream.serving.access.keys import find_key_file, read_keys
from slipstream.serving.access.tls import Certificate
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
from slipstream.serving.served_plan import (
    ask_for_certificates,
    follow_head,
    leave_without_gate,
    listen_at,
    put_behind_gate,
)
from slipstream.serving.supervision.chronicle import Chronicle
from slipstream.serving.supervision.detaching import detach, follow_to_ready
from slipstream.serving.supervision.early_stop import stopping_early
from slipstream.serving.supervision.engine_process import require_accepted
from slipstream.serving.supervision.follower import Follower
from slipstream.serving.supervision.ladder import Rung
from slipstream.serving.supervision.supervisor import SIGNALS, Supervisor
from slipstream.serving.systemd import USER, Service, is_hidden, render_unit
from slipstream.steering.guardian import ACTIONS, GuardianRules
from slipstream.user_folders import model_cache

EXAMPLES = """\
# serve a model on this machine, in the background
slipstream serve Qwen/Qwen3-8B --detach
# serve other machines with a longer context and an argument for vLLM; needs `slipstream keys new`
slipstream serve Qwen/Qwen3-8B --bind 0.0.0.0 --context 65536 -- --max-num-seqs 16
"""

MOST_SUCCESSIONS = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `serve`."""
    parser.add_argument(
        "target",
        metavar="TARGET",
        nargs="?",
        help="local folder or hub name of a model, file of a saved plan, or folder of an earlier "
        "run",
    )
    add_wishes(parser)
    add_chat_wishes(parser)
    _add_access_options(parser)
    _add_running_options(parser)
    parser.usage = f"slipstream serve TARGET [options] {ENGINE_ARGUMENTS}"


def _add_access_options(parser: argparse.ArgumentParser) -> None:
    access = parser.add_argument_group("address and access")
    access.add_argument(
        "--bind",
        metavar="ADDRESS",
        help="address to listen on; other machines need a key (default 127.0.0.1)",
    )
    access.add_argument("--port", metavar="N", type=whole_number, help="TCP port (default 8000)")
    access.add_argument(
        "--tls",
        metavar="FOLDER",
        type=Path,
        help="folder of a fleet's machine.pem, its .key and ca.pem; clients need a certificate of "
        "that authority, too (default: no TLS)",
    )
    access.add_argument(
        "--gate",
        metavar="FILE",
        type=Path,
        help="TOML file with the gate's routes, limits and key defaults (default: built-in rules)",
    )
    access.add_argument(
        "--no-gate",
        action="store_true",
        help="serve bare vLLM without keys and limits, on this machine only",
    )
    access.add_argument(
        "--record",
        metavar="FOLDER",
        type=Path,
        help="record requests in this folder, for `slipstream train` (default: none)",
    )
    access.add_argument(
        "--redact",
        metavar="PATTERN",
        nargs="+",
        help="regular expressions of text to remove from what --record writes",
    )


def _add_running_options(parser: argparse.ArgumentParser) -> None:
    running = parser.add_argument_group("running")
    running.add_argument(
        "--fixed-length",
        action="store_true",
        help="keep the planned draft length (default: adapt it to the measured cost of steps)",
    )
    running.add_argument(
        "--guardian",
        metavar="ACTIONS",
        type=_read_actions,
        help="actions allowed when acceptance or speed falls, comma-separated: "
        f"{', '.join(ACTIONS)}; or off (default {','.join(GuardianRules().allowed)})",
    )
    running.add_argument(
        "--detach",
        action="store_true",
        help="return once the server is ready, and leave it running",
    )
    running.add_argument(
        "--drain",
        type=natural_number,
        metavar="SECONDS",
        help="time that open requests have to finish when the run is stopped "
        f"(default {Terms().drain_seconds})",
    )
    running.add_argument(
        "--hold",
        action="store_true",
        help="stay alive without an engine when starts keep failing, so that a container's "
        "restart policy does not try again",
    )
    running.add_argument(
        "--unit", action="store_true", help="print a systemd unit for a saved plan, and exit"
    )
    add_accept_changes(running)


def run(options: argparse.Namespace, screen: Screen) -> ExitCode:
    """Serve until a signal or `slipstream stop` ends it."""
    environment = os.environ
    host = read_host(this_machine(environment, datetime.now(UTC)))
    with screen.busy("reading checkpoints and planning"):
        plan, terms = _find_plan(options, host)
    if plan.group is not None and plan.group.is_follower:
        terms = terms.model_copy(update={"gated": False})
    if options.unit:
        return _show_unit(options, plan, terms, screen)
    if options.from_env:
        screen.show_progress(render_plan(plan, explain=False))
    require_engine(host)
    require_accepted(plan)
    now = datetime.now(UTC)
    folder = RunFolder(find_runs_root(environment) / name_run(plan, now, os.getpid()))
    keys = read_keys(terms.keys_file) if terms.keys_file else ()
    handed = None if keys else read_variable_key(environment, now)
    if handed is not None:
        keys = (handed,)
        terms = terms.model_copy(update={"keys_file": folder.path / "keys.json"})
    if keys or (terms.keys_file and terms.keys_file.exists()):
        terms = terms.model_copy(update={"keys_required": True})
    bind = _find_bind(options, plan, host, has_key=any(key.is_valid(now) for key in keys))
    plan = listen_at(plan, bind, options.port)
    if options.tls is not None:
        plan = ask_for_certificates(plan, options.tls.expanduser().resolve())
    plan = _set_gate(plan, terms, folder)
    address, successions = Address.of(plan), _list_successions(options, now)
    if not successions:  # A successor waits until it is free.
        address.require_free()
    warnings = [*address.certificate.check(now)] if address.certificate else []
    if terms.gated:
        require_key_for(address.socket or address.host, keys, now=now)
    earlier = RunFolder(Path(options.target).absolute()) if options.target else None
    pruned = prune_runs(folder.path.parent, now=now, spared=earlier.path if earlier else None)
    warnings += [str(pruned)] if pruned.names else []
    begun = _describe_run(folder, plan, host, terms, successions)
    if plan.group is not None:  # Every rank has to know how far the plan has come down.
        begun = begun.model_copy(update={"rungs": _list_rungs(options)})
    chronicle = Chronicle(folder, begun, lambda event: _show_event(event, screen))
    with stopping_early(chronicle):
        try:
            folder.begin(begun)
        except InvalidInputError:
            if earlier is None or not successions:
                raise
            folder = earlier  # A full disk leaves no room for another folder: this one has some.
            if handed is not None:
                terms = terms.model_copy(update={"keys_file": folder.path / "keys.json"})
            plan = _set_gate(plan, terms, folder)
            chronicle.go_on_in(folder, _describe_run(folder, plan, host, terms, successions))
        if handed is not None:
            write_key(folder.path / "keys.json", handed)
        screen.rest()
        if not (options.detach and detach(folder.supervisor_log)):
            if options.detach:
                screen = replace(screen, status=None)  # Its messages go to a log from here on.
            chronicle.update(supervisor=read_process(os.getpid()))
            for warning in warnings:
                chronicle.note(warning)
            kept = without_key(environment)
            weights = Weights(screen, kept, options.accept_changes, chronicle.note)
            return _supervise(chronicle, kept, weights, hold=options.hold)
    return follow_to_ready(folder, lambda event: _show_event(event, screen))


def _find_plan(options: argparse.Namespace, host: Host) -> tuple[LaunchPlan, Terms]:
    """Return the plan of a run or file, or a new one; terms are checked before planning."""
    terms = Terms(keys_file=find_key_file(os.environ))
    if options.target is None:
        if not (options.from_env and os.environ.get("MODEL_PATH")):
            hint = "slipstream serve TARGET; with --from-env MODEL_PATH names it"
            raise UsageError("TARGET is missing", hint=hint)
        require_readable(os.environ)
        terms = _read_terms(options, terms)
        return make_plan(options, host), terms
    target = Path(options.target)
    if (target / "run.json").is_file():
        _refuse_wishes(
            options, "a run is served again with its own plan", "slipstream serve TARGET"
        )
        earlier = RunFolder(target).read()
        return earlier.plan, _read_terms(options, earlier.terms)
    if target.is_file():
        _refuse_wishes(options, "a saved plan cannot be changed", PLAN_HINT)
        terms = terms.model_copy(update={"plan_file": target.resolve()})
    terms = _read_terms(options, terms)
    return take_plan(options, host), terms


def _set_gate(plan: LaunchPlan, terms: Terms, folder: RunFolder) -> LaunchPlan:
    """Put the engine behind the gate of a run's folder, unless the terms say otherwise."""
    if plan.group is not None and plan.group.is_follower:
        return follow_head(plan, steered=terms.steered)
    if not terms.gated:
        return leave_without_gate(plan)
    return put_behind_gate(plan, folder, terms.gate_rules, steered=terms.steered)


def _list_successions(options: argparse.Namespace, now: datetime) -> tuple[datetime, ...]:
    """Return when supervisors of this run were killed and succeeded, up to now."""
    earlier = Path(options.target or "") / "run.json"
    if not (options.target and earlier.is_file()):
        return ()
    run = RunFolder(earlier.parent).read()
    if find_standing(run) != "supervisor gone":
        return ()
    return (*run.successions, now)[-MOST_SUCCESSIONS:]


def _list_rungs(options: argparse.Namespace) -> tuple[Rung, ...]:
    """Return the rungs that a run which is served again had stepped down."""
    folder = RunFolder(Path(options.target or ""))
    return folder.read().rungs if folder.record.is_file() else ()


def _refuse_wishes(options: argparse.Namespace, why: str, hint: str) -> None:
    """Raise if an option would change a plan that is already made."""
    wishes = {
        "--drafter": options.drafter,
        "--context": options.context,
        "--users": options.users,
        "--goal": options.goal != Wishes().goal,
        "--k": options.k,
        "--no-speculation": options.no_speculation,
        "--thinking": options.default_thinking,
        "--pictures": options.pictures,
        "--from-env": options.from_env,
        "--": options.raw,
    }
    if refused := [flag for flag, value in wishes.items() if value]:
        raise UsageError(f"{why}, without {', '.join(refused)}", hint=f"{hint} [options]")


def _find_bind(
    options: argparse.Namespace, plan: LaunchPlan, host: Host, *, has_key: bool
) -> str | None:
    """Return the address to listen on; with a container's variables, one that fits a container."""
    named: str | None = options.bind
    asked = (plan.settings.host, plan.settings.uds)
    if named or not options.from_env or any(one and one.source != "default" for one in asked):
        return named
    return decide_bind(host, has_key=has_key)


def _read_terms(options: argparse.Namespace, terms: Terms) -> Terms:
    """Return the terms with the options applied."""
    recording = terms.recording
    if options.record is not None:
        recording = GateRecording(folder=options.record.expanduser().resolve())
    if options.redact is not None:
        if recording is None:
            raise UsageError(
                "--redact needs --record",
                hint="slipstream serve TARGET --record FOLDER --redact PATTERN",
            )
        recording = GateRecording(
            folder=recording.folder,
            limit_bytes=recording.limit_bytes,
            redact=tuple(options.redact),
        )
    gate = _read_gate(options, terms)
    drain = terms.drain_seconds if options.drain is None else options.drain
    return terms.model_copy(
        update={
            "drain_seconds": drain,
            "recording": recording,
            "detached": options.detach,
            "guardian": options.guardian or terms.guardian,
            "steered": terms.steered and not options.fixed_length,
            **gate,
        }
    )


def _read_actions(text: str) -> GuardianRules:
    """Parse the guardian's actions; argparse names the option in its error message."""
    words = () if text == "off" else tuple(text.split(","))
    if unknown := [word for word in words if word not in ACTIONS]:
        raise argparse.ArgumentTypeError(f"'{unknown[0]}' is not one of {', '.join(ACTIONS)}, off")
    return GuardianRules(allowed=tuple(action for action in ACTIONS if action in words))


def _read_gate(options: argparse.Namespace, terms: Terms) -> dict[str, object]:
    """Read the gate's rules, unless the gate is off."""
    gated = not options.no_gate and (terms.gated or options.gate is not None)
    if not gated and (options.gate or options.record or options.redact):
        raise UsageError(
            "--gate, --record and --redact need the gate, which --no-gate turns off",
            hint="slipstream serve TARGET --no-gate, without them",
        )
    if options.gate is None:
        return {"gated": gated}
    file = options.gate.expanduser().resolve()
    return {"gated": True, "gate_file": file, "gate_rules": read_rules(file)}


def _describe_run(
    folder: RunFolder,
    plan: LaunchPlan,
    host: Host,
    terms: Terms,
    successions: tuple[datetime, ...],
) -> Run:
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
        successions=successions,
    )


def _supervise(
    chronicle: Chronicle, environment: Mapping[str, str], weights: Weights, *, hold: bool
) -> ExitCode:
    """Download and check the weights, then keep an engine running."""
    group = chronicle.run.plan.group
    kind = Follower if group and group.is_follower else Supervisor
    supervisor = kind(chronicle, environment)
    chronicle.move("downloading", "downloading the weights, or checking those that are here")
    try:
        chronicle.update(plan=weights.localize(chronicle.run.plan))
    except BaseException as fault:
        chronicle.move("failed", f"given up: {fault}")
        raise
    try:
        asyncio.run(supervisor.serve())
    except EngineError as fault:
        if not hold:
            raise
        chronicle.note(f"{fault.message}; waiting without an engine to be stopped")
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        signal.sigwait(SIGNALS)
        raise
    return ExitCode.DONE


def _show_event(event: Event, screen: Screen) -> None:
    if screen.json:
        screen.show_data(text="", document=event.model_dump_json())
    else:
        screen.show_progress(render_event(event))
        if event.state in ("ready", "stopped", "failed"):
            screen.rest()
        else:
            screen.begin(event.message)


def _show_unit(
    options: argparse.Namespace, plan: LaunchPlan, terms: Terms, screen: Screen
) -> ExitCode:
    file = Path(options.target or "").resolve()
    if not file.is_file():
        raise UsageError("a unit needs a saved plan", hint="slipstream plan TARGET --json > PLAN")
    if options.detach or options.accept_changes or options.hold:
        raise UsageError(
            "--unit excludes --detach, --hold and --accept-changes",
            hint="slipstream serve PLAN --unit, without --detach, --hold and --accept-changes",
        )
    command = Path(shutil.which("slipstream") or sys.argv[0]).absolute()
    recording = terms.recording
    tls = options.tls.expanduser().resolve() if options.tls else None
    given = {
        "--bind": options.bind,
        "--port": options.port,
        "--tls": tls,
        "--drain": options.drain,
        "--gate": terms.gate_file,
        "--guardian": ",".join(options.guardian.allowed) or "off" if options.guardian else None,
        "--record": recording.folder if recording else None,
    }
    words = [word for flag, value in given.items() if value is not None for word in (flag, value)]
    if recording and recording.redact:
        words += ["--redact", *recording.redact]
    words += [] if terms.gated else ["--no-gate"]
    words += [] if terms.steered else ["--fixed-length"]
    keys, models = os.environ.get("SLIPSTREAM_KEYS"), model_cache(os.environ)
    service = Service(
        command=command,
        plan=file,
        drain_seconds=terms.drain_seconds,
        options=tuple(map(str, words)),
        keys=Path(keys).expanduser().absolute() if keys else None,
        models=None if is_hidden(models) else models,
        recording=recording.folder if recording else None,
        read=(*_list_programs(command), *_list_files(plan), *([tls] if tls else [])),
    )
    screen.output.write(render_unit(service))
    screen.show_progress(
        f"the unit runs as user {USER} with its own keys; docs/howto-secure.md has the commands"
    )
    return ExitCode.DONE


def _list_programs(command: Path) -> tuple[Path, ...]:
    """Return the folders that hold the command, its packages and its interpreter."""
    return (command.parent, Path(sys.prefix), Path(sys.base_prefix), Path(__file__).parents[2])


def _list_files(plan: LaunchPlan) -> tuple[Path, ...]:
    """Return the local models and certificate folders that a plan reads."""
    settings, certificate = plan.settings, Certificate.of(plan)
    drafter = settings.speculation.drafter if settings.speculation else None
    models = [Path(one.value) for one in (settings.model, drafter) if one is not None]
    files = [certificate.file, certificate.key, certificate.authority] if certificate else []
    if relative := [str(file) for file in files if file and not file.is_absolute()]:
        raise InvalidInputError(
            f"a service starts in another folder and would not find {', '.join(relative)}",
            hint="plan again with absolute paths of the certificate and its key",
        )
    folders = [file.parent for file in files if file is not None]
    return (*(path for path in models if path.is_absolute()), *folders)
