"""A look at every machine of a fleet over SSH, all at a time; what could not be seen is a fault."""

import math
import re
import time
from collections.abc import Callable
from pathlib import Path

from slipstream import __version__
from slipstream.checkpoints.pairing import Fault
from slipstream.errors import SlipstreamError, UnreachableError
from slipstream.fleet.far_side.this_machine import DescribeMachine
from slipstream.fleet.machines.commands import Machines, name_command
from slipstream.fleet.machines.installing import install, make_wheel
from slipstream.fleet.machines.transport import ask_all, escape
from slipstream.fleet.plan import FleetProbe, MachineView
from slipstream.fleet.planning.links import list_ends, measure_links

PROBE_SECONDS = 120
Report = Callable[[str], None]


class _RefusedError(UnreachableError):
    """A machine's Slipstream does not know what it was asked."""


def probe_fleet(
    far: Machines,
    report: Report,
    *,
    installing: bool = False,
    wheels: Path | None = None,
    measuring: bool = True,
) -> FleetProbe:
    """Look at every machine and measure the links; a machine that fails does not stop the others.

    With `installing`, machines without this version get it first.
    """
    wheel = make_wheel() if installing else None

    def look(machine: str) -> MachineView:
        offset = _read_clock(far, machine)
        if wheel is not None and _read_version(far, machine) != __version__:
            report(f"{machine}: slipstream {__version__} is installed")
            install(far, machine, wheel, wheels)
        view = _look(far, machine)
        report(f"{machine}: {view.engine or 'no engine'}, slipstream {view.slipstream}")
        first = next((str(end.ip) for _, end in list_ends(view)), None)
        address = far.fleet.machines[machine].address or view.address or first
        return view.model_copy(update={"clock_offset_seconds": offset, "address": address})

    seen = ask_all(far.fleet.machines, look)
    views = {name: one for name, one in seen.items() if isinstance(one, MachineView)}
    failed = [one for one in seen.values() if isinstance(one, SlipstreamError)]
    faults = tuple(_describe(one, code="fleet-machine") for one in failed)
    if not measuring:
        return FleetProbe(machines=views, faults=faults)
    report("the links are measured")
    links, missing = measure_links(far, views)
    faults += tuple(_describe(fault, code="fleet-link") for fault in missing)
    return FleetProbe(machines=views, links=links, faults=faults)


def _look(far: Machines, machine: str) -> MachineView:
    models = tuple(name for name in (far.fleet.model.target, far.fleet.model.drafter) if name)
    request = DescribeMachine(models=models)
    try:
        return far.ask(machine, request, MachineView, timeout=PROBE_SECONDS, fault=_RefusedError)
    except _RefusedError as fault:
        version = _read_version(far, machine)
        raise UnreachableError(
            f"{machine} has slipstream {version or 'of an unknown version'}, and this is "
            f"{__version__}: {fault.message.removeprefix(f'{machine}: ')}",
            hint="slipstream fleet probe --install",
        ) from fault


def _read_version(far: Machines, machine: str) -> str | None:
    """Return the version that a machine has, None if it has none that answers."""
    command = name_command(far.fleet.machines[machine], ["--version"])
    answer = far.transport.run(machine, command, timeout=PROBE_SECONDS)
    if answer.code:
        return None
    # A login may print something first; the engine's version follows a comma.
    found = re.findall(r"^slipstream ([^\s,]+)", answer.stdout.decode(errors="replace"), re.M)
    return escape(found[-1], 40) if found else None


def _read_clock(far: Machines, machine: str) -> float | None:
    """Return how far a machine's clock is ahead of ours, None where the way there hides it."""
    far.transport.run(machine, ["true"], timeout=PROBE_SECONDS)  # Connecting takes its time.
    begun = time.time()
    answer = far.transport.run(machine, ["date", "+%s.%N"], timeout=PROBE_SECONDS)
    middle = (begun + time.time()) / 2
    try:
        offset = float(answer.stdout.split()[-1][:64]) - middle
    except (ValueError, IndexError):
        return None
    return round(offset, 3) if math.isfinite(offset) else None


def _describe(error: SlipstreamError, *, code: str) -> Fault:
    details = f" ({'; '.join(error.details)})" if error.details else ""
    return Fault(code=code, verdict="refuse", message=f"{error.message}{details}", hint=error.hint)
