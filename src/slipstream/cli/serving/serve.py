"""`slipstream serve`: start an engine, test it and keep it running."""

import argparse
import asyncio
import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from slipstream.cli.arguments import ENGINE_ARGUMENTS
from slipstream.cli.options import OptionAdder
from slipstream.cli.planning.plan import add_chat_options, add_plan_options
from slipstream.cli.planning.saved_plans import (
    add_allow,
    read_saved_plan,
    require_no_plan_options,
    take_plan,
)
from slipstream.cli.screen import Screen
from slipstream.cli.serving.serve_options import (
    add_access_options,
    add_running_options,
    read_terms,
    show_unit,
)
from slipstream.cli.weights import WeightsOnDisk
from slipstream.engines.vllm import find_versions, require_engine
from slipstream.errors import EngineError, ExitCode, InvalidInputError, UsageError
from slipstream.hardware import Host, read_host, this_machine
from slipstream.planning import LaunchPlan
from slipstream.reporting.serving.run import render_event
from slipstream.reporting.text.plan import render_plan
from slipstream.serving.access.addresses import Address
from slipstream.serving.access.gate_file import require_key_for
from slipstream.serving.access.keys import Key, find_key_file, read_keys
from slipstream.serving.learnt import digest_plan, inherit_learnt
from slipstream.serving.plugin_settings import leave_trial
from slipstream.serving.run import (
    Event,
    Run,
    RunFolder,
    Terms,
    find_live,
    find_runs_root,
    name_run,
    read_process,
)
from slipstream.serving.run_status import find_shown_state
from slipstream.serving.served_plan import (
    ask_for_certificates,
    follow_head,
    leave_without_gate,
    listen_at,
    put_behind_gate,
)
from slipstream.serving.service.container import (
    decide_bind,
    read_variable_key,
    require_readable,
    without_key,
    write_key,
)
from slipstream.serving.service.detaching import detach, follow_to_ready, stopping_early
from slipstream.serving.service.pruning import prune_runs
from slipstream.serving.supervision.engine_process import require_accepted
from slipstream.serving.supervision.event_log import EventLog
from slipstream.serving.supervision.follower import Follower
from slipstream.serving.supervision.learning_job import require_learnable
from slipstream.serving.supervision.supervisor import SIGNALS, Supervisor
from slipstream.training.preparation import require_parts
from slipstream.user_folders import find_local

EXAMPLES = """\
# serve a model on this machine, in the background
slipstream serve Qwen/Qwen3-8B --detach
# serve other machines with a longer context and an argument for vLLM; needs `slipstream keys new`
slipstream serve Qwen/Qwen3-8B --bind 0.0.0.0 --context 65536 -- --max-num-seqs 16
"""

MOST_TAKEOVERS = 10


def add_arguments(add: OptionAdder) -> None:
    add(
        "[TARGET]",
        "local folder or hub name of a model, file of a saved plan, or folder of an earlier run",
    )
    add_plan_options(add)
    add_allow(add)
    add_chat_options(add)
    add_access_options(add)
    add_running_options(add)
    add.parser.usage = f"slipstream serve TARGET [options] {ENGINE_ARGUMENTS}"


@dataclass(frozen=True, slots=True)
class _Serving:
    """What is decided before a run begins; `handed` is a key out of the environment."""

    plan: LaunchPlan
    terms: Terms
    host: Host
    keys: tuple[Key, ...]
    handed: Key | None
    takeovers: tuple[datetime, ...]

    def describe(self, folder: RunFolder) -> Run:
        """Return the run as its folder holds it, with the engine behind the folder's gate."""
        here, terms = read_process(os.getpid()), self.terms
        assert here is not None
        if self.handed is not None:
            terms = terms.model_copy(update={"keys_file": folder.path / "keys.json"})
        plan, versions = _set_gate(self.plan, terms, folder), find_versions()
        return Run(
            id=folder.path.name,
            began_at=datetime.now(UTC),
            plan=plan,
            host=self.host,
            versions=versions,
            terms=terms,
            argv=tuple(plan.argv()),
            plan_digest=digest_plan(self.plan, versions, steered=terms.steered),
            supervisor=here,
            takeovers=self.takeovers,
        )


def run(options: argparse.Namespace, screen: Screen) -> ExitCode:
    """Serve until a signal or `slipstream stop` ends it."""
    environment, now = os.environ, datetime.now(UTC)
    host = read_host(this_machine(environment, now))
    before = RunFolder(find_local(options.target or "").absolute())
    earlier = _read_earlier(before) if options.target and before.record.is_file() else None
    with screen.busy("reading checkpoints and planning"):
        plan, terms = _find_plan(options, earlier, host, screen)
    if plan.group is not None and plan.group.is_follower:
        terms = terms.model_copy(update={"gated": False})
    if options.unit:
        return show_unit(options, plan, terms, screen)
    if options.from_env:
        screen.show_progress(render_plan(plan, explain=False))
    require_engine(host)
    require_accepted(plan)
    serving = _decide(options, plan, terms, host, now, earlier)
    folder = RunFolder(find_runs_root(environment) / name_run(plan, now, os.getpid()))
    begun = serving.describe(folder)
    if earlier is not None:
        # Every rank has to know how far the plan has come down.
        rungs = earlier.rungs if plan.group is not None else ()
        begun = begun.model_copy(update={"rungs": rungs, "trial": leave_trial(earlier)[1]})
        if not earlier.drafters:  # Its plan names local copies by now, and is the same.
            begun = begun.model_copy(update={"plan_digest": earlier.plan_digest})
    if begun.terms.learning is not None:
        require_parts()
        require_learnable(begun)
    warnings = list(_check_address(serving, Address.of(begun.plan), now))
    if options.dry_run:
        for warning in warnings:
            screen.show_progress(warning)
        screen.show_data(text=render_plan(begun.plan, explain=True), document=begun.plan.to_json())
        return ExitCode.DONE
    pruned = prune_runs(folder.path.parent, now=now, spared=before.path)
    warnings += [str(pruned)] if pruned.names else []
    event_log = EventLog(folder, begun, lambda event: _show_event(event, screen))
    with stopping_early(event_log):
        try:
            folder.begin(begun)
        except InvalidInputError:
            if not serving.takeovers:
                raise
            folder = before  # A full disk leaves no room for another folder: this one has some.
            event_log.go_on_in(folder, serving.describe(folder))
        if terms.gated and inherit_learnt(folder, begun) is not None:
            warnings.append("steering starts with the measurements of an earlier run of this plan")
        if serving.handed is not None:
            write_key(folder.path / "keys.json", serving.handed)
        screen.rest()
        if not (options.detach and detach(folder.supervisor_log)):
            if options.detach:
                screen = replace(screen, status=None)  # Its messages go to a log from here on.
            event_log.update(supervisor=read_process(os.getpid()))
            for warning in warnings:
                event_log.note(warning)
            kept = without_key(environment)
            weights = WeightsOnDisk(screen, kept, options.accept_changes, event_log.note)
            return _supervise(event_log, kept, weights, hold=options.hold)
    return follow_to_ready(folder, lambda event: _show_event(event, screen))


def _decide(
    options: argparse.Namespace,
    plan: LaunchPlan,
    terms: Terms,
    host: Host,
    now: datetime,
    earlier: Run | None,
) -> _Serving:
    """Decide where to listen, with which keys, and whose successor this supervisor is."""
    keys = read_keys(terms.keys_file) if terms.keys_file else ()
    handed = None if keys else read_variable_key(os.environ, now)
    keys = keys if handed is None else (handed,)
    if keys or (terms.keys_file and terms.keys_file.exists()):
        terms = terms.model_copy(update={"keys_required": True})
    bind = _find_bind(options, plan, host, has_key=any(key.is_valid(now) for key in keys))
    plan = listen_at(plan, bind, options.port)
    if options.tls is not None:
        plan = ask_for_certificates(plan, options.tls.expanduser().resolve())
    takeovers: tuple[datetime, ...] = ()
    if earlier is not None and find_shown_state(earlier) == "supervisor gone":
        takeovers = (*earlier.takeovers, now)[-MOST_TAKEOVERS:]
    return _Serving(plan, terms, host, keys, handed, takeovers)


def _check_address(serving: _Serving, address: Address, now: datetime) -> tuple[str, ...]:
    """Raise if the address is taken or open without a key; warn of its certificate."""
    if not serving.takeovers:  # A successor waits until it is free.
        _require_free(address)
    if serving.terms.gated:
        require_key_for(address.socket or address.host, serving.keys, now=now)
    return address.certificate.check(now) if address.certificate else ()


def _require_free(address: Address) -> None:
    """Raise if the address is taken; where a run of ours has it, with that run's name."""
    try:
        address.require_free()
    except InvalidInputError as fault:
        for _, run in find_live(find_runs_root(os.environ)):
            if address.port and Address.of(run.plan).port == address.port:
                fault.hint = f"choose another with --port, or slipstream stop {run.id}"
        raise


def _read_earlier(folder: RunFolder) -> Run:
    """Read a run to serve it again; its arguments are not looked through, so it has to be ours."""
    if folder.path.resolve().parent != find_runs_root(os.environ).resolve():
        raise InvalidInputError(
            f"{folder.path} is not among your runs", hint="to list them: slipstream status"
        )
    return folder.read()


def _find_plan(
    options: argparse.Namespace, earlier: Run | None, host: Host, screen: Screen
) -> tuple[LaunchPlan, Terms]:
    """Return the plan of a run or file, or a new one; terms are checked before planning."""
    if earlier is not None:
        require_no_plan_options(
            options,
            "a run's folder is served with the run's own plan",
            "slipstream serve TARGET [options]",
        )
        return leave_trial(earlier)[0], read_terms(options, earlier.terms)
    terms = Terms(keys_file=find_key_file(os.environ))
    if options.target is None:
        if not (options.from_env and os.environ.get("MODEL_PATH")):
            hint = "with --from-env MODEL_PATH names it; else slipstream serve TARGET"
            raise UsageError("TARGET is missing", hint=hint)
        require_readable(os.environ)
    elif find_local(options.target).is_file():
        terms = terms.model_copy(update={"plan_file": find_local(options.target).resolve()})
    terms = read_terms(options, terms)
    if options.unit and terms.plan_file is not None:
        # A unit may be for another machine, which compares the plan with itself when it starts.
        return read_saved_plan(options), terms
    return take_plan(options, host, screen), terms


def _set_gate(plan: LaunchPlan, terms: Terms, folder: RunFolder) -> LaunchPlan:
    """Put the engine behind the gate of a run's folder, unless the terms say otherwise."""
    if plan.group is not None and plan.group.is_follower:
        return follow_head(plan, steered=terms.steered)
    if not terms.gated:
        return leave_without_gate(plan)
    return put_behind_gate(plan, folder, terms.gate_rules, steered=terms.steered)


def _find_bind(
    options: argparse.Namespace, plan: LaunchPlan, host: Host, *, has_key: bool
) -> str | None:
    """Return the address to listen on; with a container's variables, one that fits a container."""
    named: str | None = options.bind
    places = (plan.settings.host, plan.settings.uds)
    if named or not options.from_env or any(one and one.source != "default" for one in places):
        return named
    return decide_bind(host, has_key=has_key)


def _supervise(
    event_log: EventLog, environment: Mapping[str, str], weights: WeightsOnDisk, *, hold: bool
) -> ExitCode:
    """Download and check the weights, then keep an engine running."""
    group = event_log.run.plan.group
    kind = Follower if group and group.is_follower else Supervisor
    supervisor = kind(event_log, environment)
    event_log.move("downloading", "downloading the weights, or checking those that are here")
    try:
        event_log.update(plan=weights.localize(event_log.run.plan))
    except BaseException as fault:
        event_log.give_up(fault)
        raise
    try:
        asyncio.run(supervisor.serve())
    except EngineError as fault:
        if not hold:
            raise
        event_log.note(f"{fault.message}; waiting without an engine until it is stopped")
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
