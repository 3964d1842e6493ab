"""The machine: `read_host` probes it, `Host` is what later stages plan from."""

from slipstream.hardware.host import Host
from slipstream.hardware.kinds import name_kind
from slipstream.hardware.known_machines import list_machines, load_host
from slipstream.hardware.probe import Surface, read_host, this_machine
from slipstream.hardware.support import find_obstacle, require_supported

__all__ = [
    "Host",
    "Surface",
    "find_obstacle",
    "list_machines",
    "load_host",
    "name_kind",
    "read_host",
    "require_supported",
    "this_machine",
]
