"""`slipstream serve`: an engine that is started, proven and kept up."""

import argparse
import asyncio
import os
import shutil
import signal
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from slipstream.cli.arguments import natural_number, whole_number
from slipstream.cli.plan import PLAN_HINT, add_chat_wishes, add_wishes, make_plan, take_plan
from slipstream.cli.screen import Screen
from slipstream.cli.weights import Weights, add_accept_changes
from slipstream.engines.installed import find_versions
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

MOST_SUCCESSIONS = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `serve` takes."""
    parser.add_argument(
        "target",
        metavar="TARGET",
        nargs="?",
        help="a folder, a hub model, a saved plan, or a run's folder",
    )
    add_wishes(parser)
    add_chat_wishes(parser)
    parser.add_argument("--bind", metavar="ADDRESS", help="to listen at; default this machine only")
    parser.add_argument("--port", type=whole_number, help="default 8000")
    parser.add_argument(
        "--tls",
        metavar="FOLDER",
        type=Path,
        help="machine.pem, its .key and ca.pem of a fleet: clients need a certificate, too",
    )
    parser.add_argument(
        "--fixed-length",
        action="store_true",
        help="keep the planned draft length; by default it follows what a step costs and brings",
    )
    parser.add_argument("--detach", action="store_true", help="leave once it is ready")
    parser.add_argument(
        "--drain",
        type=natural_number,
        metavar="SECONDS",
        help=f"for open requests to finish at a stop; default {Terms().drain_seconds}",
    )
    parser.add_argument("--record", metavar="FOLDER", type=Path, help="keep requests, for train")
    parser.add_argument("--redact", metavar="PATTERN", nargs="+", help="struck out of what is kept")
    parser.add_argument(
        "--gate", metavar="FILE", type=Path, help="TOML file of routes, limits and key defaults"
    )
    parser.add_argument(
        "--no-gate",
        action="store_true",
        help="serve bare vLLM, without keys and limits, to this machine only",
    )
    parser.add_argument(
        "--guardian",
        metavar="ACTIONS",
        type=_read_actions,
        help="what may be done if acceptance or speed falls, comma-separated: "
        f"{', '.join(ACTIONS)}, or off; default {','.join(GuardianRules().allowed)}",
    )
    add_accept_changes(parser)
    parser.add_argument(
        "--hold",
        action="store_true",
        help="after giving up, stay without an engine until stopped: for restart policies",
    )
    parser.add_argument("--unit", action="store_true", help="print a systemd unit for a saved plan")
    parser.usage = "slipstream serve TARGET [options] [-- ENGINE ARGUMENTS]"


def run(options: argparse.Namespace, screen: Screen) -> ExitCode:
    """Serve until asked to stop."""
    environment = os.environ
    host = read_host(this_machine(environment, datetime.now(UTC)))
    plan, terms = _find_plan(options, host)
    if plan.group is not None and plan.group.is_follower:
        terms = terms.model_copy(update={"gated": False})
    if options.unit:
        return _show_unit(options, plan, terms, screen)
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
        if not (options.detach and detach(folder.supervisor_log)):
            chronicle.update(supervisor=read_process(os.getpid()))
            for warning in warnings:
                chronicle.note(warning)
            kept = without_key(environment)
            weights = Weights(screen, kept, options.accept_changes, chronicle.note)
            return _supervise(chronicle, kept, weights, hold=options.hold)
    return follow_to_ready(folder, lambda event: _show_event(event, screen))


def _find_plan(options: argparse.Namespace, host: Host) -> tuple[LaunchPlan, Terms]:
    """Take a run's plan, a saved one, or make it now, which takes long: faulty terms come first."""
    terms = Terms(keys_file=find_key_file(os.environ))
    if options.target is None:
        if not (options.from_env and os.environ.get("MODEL_PATH")):
            hint = "slipstream serve TARGET; with --from-env MODEL_PATH names it"
            raise UsageError("no target was named", hint=hint)
        require_readable(os.environ)
        terms = _read_terms(options, terms)
        return make_plan(options, host), terms
    target = Path(options.target)
    if (target / "run.json").is_file():
        _refuse_wishes(options, "a run is served again as it was", "slipstream serve TARGET")
        earlier = RunFolder(target).read()
        return earlier.plan, _read_terms(options, earlier.terms)
    if target.is_file():
        _refuse_wishes(options, "a saved plan is taken as it is", PLAN_HINT)
        terms = terms.model_copy(update={"plan_file": target.resolve()})
    terms = _read_terms(options, terms)
    return take_plan(options, host), terms


def _set_gate(plan: LaunchPlan, terms: Terms, folder: RunFolder) -> LaunchPlan:
    """Put the engine behind the gate of a run's folder, unless there is to be none."""
    if plan.group is not None and plan.group.is_follower:
        return follow_head(plan, steered=terms.steered)
    if not terms.gated:
        return leave_without_gate(plan)
    return put_behind_gate(plan, folder, terms.gate_rules, steered=terms.steered)


def _list_successions(options: argparse.Namespace, now: datetime) -> tuple[datetime, ...]:
    """Return when killed supervisors were succeeded, down to this run if it succeeds one."""
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
    """Refuse what would change a plan that is already made."""
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
    """Read what the guardian may do; argparse names the option in its complaint."""
    words = () if text == "off" else tuple(text.split(","))
    if unknown := [word for word in words if word not in ACTIONS]:
        raise argparse.ArgumentTypeError(f"'{unknown[0]}' is not one of {', '.join(ACTIONS)}, off")
    return GuardianRules(allowed=tuple(action for action in ACTIONS if action in words))


def _read_gate(options: argparse.Namespace, terms: Terms) -> dict[str, object]:
    """Read the gate's rules, unless there is to be no gate."""
    gated = not options.no_gate and (terms.gated or options.gate is not None)
    if not gated and (options.gate or options.record or options.redact):
        raise UsageError(
            "--gate, --record and --redact are for the gate, and there is to be none",
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
    """Have the weights here and checked, then keep an engine up."""
    group = chronicle.run.plan.group
    kind = Follower if group and group.is_follower else Supervisor
    supervisor = kind(chronicle, environment)
    chronicle.move("downloading", "the weights are fetched, or checked if they are here")
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
        chronicle.note(f"{fault.message}; it is not tried again until this is restarted")
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        signal.sigwait(SIGNALS)
        raise
    return ExitCode.DONE


def _show_event(event: Event, screen: Screen) -> None:
    if screen.json:
        screen.show_data(text="", document=event.model_dump_json())
    else:
        screen.show_progress(render_event(event))


def _show_unit(
    options: argparse.Namespace, plan: LaunchPlan, terms: Terms, screen: Screen
) -> ExitCode:
    file = Path(options.target or "").resolve()
    if not file.is_file():
        raise UsageError("a unit needs a saved plan", hint="slipstream plan TARGET --json > PLAN")
    if options.detach or options.accept_changes or options.hold:
        raise UsageError(
            "a unit neither detaches nor holds nor accepts changed files",
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
        f"it runs as user {USER}, with keys of its own: docs/howto-secure.md has the commands"
    )
    return ExitCode.DONE


def _list_programs(command: Path) -> tuple[Path, ...]:
    """Return the folders that hold the command, its packages and its interpreter."""
    return (command.parent, Path(sys.prefix), Path(sys.base_prefix), Path(__file__).parents[2])


def _list_files(plan: LaunchPlan) -> tuple[Path, ...]:
    """Return what a plan takes from this disk: local models, and the folders of certificates."""
    settings, certificate = plan.settings, Certificate.of(plan)
    drafter = settings.speculation.drafter if settings.speculation else None
    models = [Path(one.value) for one in (settings.model, drafter) if one is not None]
    files = [certificate.file, certificate.key, certificate.authority] if certificate else []
    if relative := [str(file) for file in files if file and not file.is_absolute()]:
        raise InvalidInputError(
            f"a service starts in another folder, and does not find {', '.join(relative)}",
            hint="plan again with the whole path of the certificate and its key",
        )
    folders = [file.parent for file in files if file is not None]
    return (*(path for path in models if path.is_absolute()), *folders)
