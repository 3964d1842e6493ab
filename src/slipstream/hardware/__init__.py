"""The machine: `read_host` probes it, `Host` is what later stages plan from."""

from slipstream.hardware.host import Host, find_capability, find_obstacle, name_kind
from slipstream.hardware.known_machines import list_machines, load_host
from slipstream.hardware.probe import ProbeSources, read_host, this_machine
from slipstream.hardware.surroundings import read_text

__all__ = [
    "Host",
    "ProbeSources",
    "find_capability",
    "find_obstacle",
    "list_machines",
    "load_host",
    "name_kind",
    "read_host",
    "read_text",
    "this_machine",
]
