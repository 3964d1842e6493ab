"""The options of `slipstream serve`: the terms of a run that they ask for, and its unit."""

import argparse
import os
import shutil
import sys
from pathlib import Path

from slipstream.cli.options import OptionAdder, add_accept_changes, natural_number
from slipstream.cli.screen import Screen
from slipstream.errors import ExitCode, InvalidInputError, UsageError
from slipstream.planning import LaunchPlan
from slipstream.serving.access.gate_file import GateRecording, read_rules
from slipstream.serving.access.tls import TlsCertificate
from slipstream.serving.learning import LearningTerms
from slipstream.serving.run import Terms
from slipstream.serving.service.systemd import USER, Service, is_hidden, render_unit
from slipstream.steering.guardian import ACTIONS, GuardianRules
from slipstream.user_folders import model_cache


def add_access_options(add: OptionAdder) -> None:
    """Add the options for the address, the gate and recordings."""
    add = add.group("address and access")
    add("--bind ADDRESS", "address to listen on; other machines need a key (default 127.0.0.1)")
    add("--port N", "TCP port (default 8000)")
    add(
        "--tls FOLDER",
        "folder of a fleet's machine.pem, its .key and ca.pem; clients need a certificate of "
        "that authority, too (default: no TLS)",
    )
    add(
        "--gate FILE",
        "TOML file with the gate's routes, limits and key defaults (default: built-in rules)",
    )
    add("--no-gate", "serve bare vLLM without keys and limits, on this machine only")
    add("--record FOLDER", "record requests in this folder, for `slipstream train` (default: none)")
    add(
        "--redact PATTERN ...",
        "regular expressions of text to remove from what --record writes and --learn keeps",
    )


def add_running_options(add: OptionAdder) -> None:
    """Add the options for how the engine is kept running."""
    add = add.group("running")
    add(
        "--fixed-length",
        "keep the planned draft length (default: choose the length of every step by measured cost)",
    )
    add(
        "--guardian ACTIONS",
        "actions allowed when acceptance or speed falls, comma-separated: "
        f"{', '.join(ACTIONS)}; or off (default {','.join(GuardianRules().allowed)})",
        _read_actions,
    )
    add(
        "--learn",
        "keep questions and answers, and train the drafter on them when that pays "
        "(docs/learning.md; default: keep nothing)",
    )
    add("--detach", "return once the server is ready, and leave it running")
    add(
        "--drain SECONDS",
        "seconds that open requests get to finish when the run is stopped "
        f"(default {Terms().drain_seconds})",
        natural_number,
    )
    add(
        "--hold",
        "stay alive without an engine when starts keep failing, so that a container's "
        "restart policy does not try again",
    )
    add(
        "--dry-run",
        "check keys, address and certificate, print the plan as it would be served, with the "
        "gate's settings, and exit",
    )
    add("--unit", "print a systemd unit for a saved plan, and exit")
    add_accept_changes(add)


def read_terms(options: argparse.Namespace, terms: Terms) -> Terms:
    """Return the terms with the options applied."""
    recording = terms.recording
    if options.record is not None:
        recording = GateRecording(folder=options.record.expanduser().resolve())
    learning = terms.learning or (LearningTerms() if options.learn else None)
    if options.redact is not None:
        if recording is None and learning is None:
            raise UsageError(
                "--redact needs --record or --learn",
                hint="slipstream serve TARGET --record FOLDER --redact PATTERN",
            )
        patterns = {"redact": GateRecording(folder=Path(), redact=tuple(options.redact)).redact}
        recording = recording and recording.model_copy(update=patterns)
        learning = learning and learning.model_copy(update=patterns)
    gate = _read_gate(options, terms)
    drain = terms.drain_seconds if options.drain is None else options.drain
    return terms.model_copy(
        update={
            "drain_seconds": drain,
            "recording": recording,
            "learning": learning,
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
    if not gated and (options.gate or options.record or options.redact or options.learn):
        raise UsageError(
            "--gate, --record, --redact and --learn need the gate, which --no-gate turns off",
            hint="without them: slipstream serve TARGET --no-gate",
        )
    if options.gate is None:
        return {"gated": gated}
    file = options.gate.expanduser().resolve()
    return {"gated": True, "gate_file": file, "gate_rules": read_rules(file)}


def show_unit(
    options: argparse.Namespace, plan: LaunchPlan, terms: Terms, screen: Screen
) -> ExitCode:
    """Print the unit that runs this command; what it must read is listed in it."""
    file = Path(options.target or "").resolve()
    if not file.is_file():
        raise UsageError("a unit needs a saved plan", hint="slipstream plan TARGET --json > PLAN")
    if options.detach or options.accept_changes or options.hold:
        raise UsageError(
            "--unit cannot be combined with --detach, --hold or --accept-changes",
            hint="without --detach, --hold and --accept-changes: slipstream serve PLAN --unit",
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
    words += ["--learn"] if options.learn else []
    if options.redact:
        words += ["--redact", *options.redact]
    words += ["--allow", *options.allow] if options.allow else []
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
        f"the unit runs as user {USER} with its own keys; docs/secure.md has the commands"
    )
    return ExitCode.DONE


def _list_programs(command: Path) -> tuple[Path, ...]:
    """Return the folders that hold the command, its packages and its interpreter."""
    return (command.parent, Path(sys.prefix), Path(sys.base_prefix), Path(__file__).parents[2])


def _list_files(plan: LaunchPlan) -> tuple[Path, ...]:
    """Return the local models, certificate folders and group secret that a plan reads."""
    settings, certificate = plan.settings, TlsCertificate.of(plan)
    drafter = settings.speculation.drafter if settings.speculation else None
    named = [Path(one.value) for one in (settings.model, drafter) if one is not None]
    files = [certificate.file, certificate.key, certificate.authority] if certificate else []
    if relative := [str(file) for file in files if file and not file.is_absolute()]:
        raise InvalidInputError(
            f"a service starts in another folder and would not find {', '.join(relative)}",
            hint="plan again with absolute paths of the certificate and its key",
        )
    folders = [file.parent for file in files if file is not None]
    if plan.group:  # One below ~ is in the service's own home.
        named.append(Path(plan.group.secret_file))
    return (*(path for path in named if path.is_absolute()), *folders)
