"""`SteeringOrder`: an order to the engine's scheduler while it runs."""

from pathlib import Path
from typing import Literal

from pydantic import NonNegativeInt

from slipstream.atomic_files import write_even_if_full
from slipstream.records import Record


class SteeringOrder(Record):
    """The shortest and the longest draft allowed: 0 for none, None for any."""

    schema_version: Literal[1] = 1
    least: NonNegativeInt | None = None
    most: NonNegativeInt | None = None

    def write(self, path: Path) -> None:
        """Write the order where the scheduler reads it once a second."""
        write_even_if_full(path, self.to_json().encode())
