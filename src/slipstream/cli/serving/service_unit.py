"""`slipstream serve PLAN --unit`: the systemd unit that serves a saved plan."""

import argparse
import os
import shutil
import sys
from pathlib import Path

from slipstream.cli.screen import Screen
from slipstream.errors import ExitCode, InvalidInputError, UsageError
from slipstream.planning import LaunchPlan
from slipstream.serving.access.tls import Certificate
from slipstream.serving.run import Terms
from slipstream.serving.service.systemd import USER, Service, is_hidden, render_unit
from slipstream.user_folders import model_cache


def show_unit(
    options: argparse.Namespace, plan: LaunchPlan, terms: Terms, screen: Screen
) -> ExitCode:
    """Print the unit that runs this command; what it must read is listed in it."""
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
        f"the unit runs as user {USER} with its own keys; docs/secure.md has the commands"
    )
    return ExitCode.DONE


def _list_programs(command: Path) -> tuple[Path, ...]:
    """Return the folders that hold the command, its packages and its interpreter."""
    return (command.parent, Path(sys.prefix), Path(sys.base_prefix), Path(__file__).parents[2])


def _list_files(plan: LaunchPlan) -> tuple[Path, ...]:
    """Return the local models, certificate folders and group secret that a plan reads."""
    settings, certificate = plan.settings, Certificate.of(plan)
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
