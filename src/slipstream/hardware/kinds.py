"""Kinds of machine, as recipes and plans name them."""

from slipstream.hardware.host import Host

_BY_ACCELERATOR = {
    "GB10": "gb10",
    "Thor": "jetson-thor",
    "RTX 5090": "rtx-5090",
    "RTX 4090": "rtx-4090",
    "RTX 3090": "rtx-3090",
    "RTX PRO 6000": "rtx-pro-6000",
    "H100": "h100",
    "B200": "b200",
    "B300": "b300",
}


def name_kind(host: Host) -> str | None:
    """Return the kind of a machine; one without an accelerator is a `cpu`."""
    if not host.accelerators:
        return "cpu"
    name = host.accelerators[0].name
    return next((kind for part, kind in _BY_ACCELERATOR.items() if part in name), None)
