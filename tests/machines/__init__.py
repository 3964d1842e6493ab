"""The captured and reconstructed machines under tests/machines/, by name."""

from pathlib import Path

from slipstream.hardware import Host

FOLDER = Path(__file__).parent
NAMES = tuple(sorted(path.stem for path in FOLDER.glob("*.json")))


def load_machine(name: str) -> Host:
    """Read one machine."""
    return Host.model_validate_json((FOLDER / f"{name}.json").read_bytes())
