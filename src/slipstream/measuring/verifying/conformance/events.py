"""Server-sent events from bytes that may be cut anywhere."""

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from slipstream.measuring.verifying.conformance.answers import WireError

_SHOWN_CHARACTERS = 200


class Event(NamedTuple):
    """One event: its name, empty if it has none, and its data."""

    name: str
    data: str

    def read(self) -> dict[str, Any]:
        """Return the data as an object; an error that was sent as one is raised."""
        try:
            told = json.loads(self.data)
        except ValueError:
            raise WireError(f"an event is not JSON: {self.data[:_SHOWN_CHARACTERS]}") from None
        if not isinstance(told, dict):
            raise WireError(f"an event is not an object: {self.data[:_SHOWN_CHARACTERS]}")
        if self.name == "error" or told.get("type") == "error" or told.get("error"):
            raise WireError(f"an error within the stream: {self.data[:_SHOWN_CHARACTERS]}")
        return told


class EventReader:
    """Splits at line ends only: Unicode's other separators may be part of the data."""

    def __init__(self) -> None:
        self._rest = b""
        self._name = ""
        self._data: list[str] = []

    def take(self, data: bytes) -> Iterator[Event]:
        """Yield the events that these bytes complete."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            text = line.removesuffix(b"\r").decode(errors="replace")
            if text:
                self._take_field(text)
            elif self._data:
                yield Event(self._name, "\n".join(self._data))
                self._name, self._data = "", []

    def _take_field(self, line: str) -> None:
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "event":
            self._name = value
        elif field == "data":
            self._data.append(value)
