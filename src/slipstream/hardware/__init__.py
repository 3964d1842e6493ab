"""The machine's portrait: `read_host` looks, `Host` is what later stages plan from."""

from slipstream.hardware.host import Host
from slipstream.hardware.probe import Surface, read_host, this_machine
from slipstream.hardware.support import find_obstacle, require_supported

__all__ = ["Host", "Surface", "find_obstacle", "read_host", "require_supported", "this_machine"]
