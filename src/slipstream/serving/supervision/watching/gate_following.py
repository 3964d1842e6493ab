"""Changes of the gate while its engine runs: the rules in its file, and the first keys.

The gate follows its own settings file; here that file is kept up to date. Rules that cannot be
used are reported and change nothing. Once there were keys, this run needs them to its end.
"""

from pathlib import Path

from slipstream.errors import InvalidInputError
from slipstream.records import read_record
from slipstream.serving.access.gate_file import GateRules, GateSettings, apply_rules, read_rules
from slipstream.serving.supervision.event_log import EventLog

LOOK_EVERY_SECONDS = 1.0


class GateFollowing:
    """Keeps a run's terms, and with them its gate, up to date with the user's files."""

    def __init__(self, event_log: EventLog) -> None:
        self._event_log = event_log
        # Where the settings of the engine that runs are.
        self.path = event_log.folder.gate
        self._seen: tuple[int, int, int] | None = None
        self._is_notified = True

    async def follow(self) -> None:
        """Check once a second; what cannot be written now is tried again."""

        async def look() -> None:
            self._is_notified = not self.look() and self._is_notified
            if not self._is_notified:
                self._tell_gate()
                self._is_notified = True

        name = "the gate's settings cannot be followed"
        await self._event_log.keep_looking(name, look, LOOK_EVERY_SECONDS)

    def look(self) -> bool:
        """Apply what has changed, and return whether anything has."""
        terms = self._event_log.run.terms
        if not terms.gated:
            return False
        changes: dict[str, object] = {}
        if not terms.keys_required and terms.keys_file and terms.keys_file.exists():
            changes["keys_required"] = True
        if terms.gate_file and (rules := self._read_new(terms.gate_file)) not in (
            None,
            terms.gate_rules,
        ):
            changes["gate_rules"] = rules
        if changes:
            self._event_log.update(terms=terms.model_copy(update=changes))
            if "gate_rules" in changes:
                self._event_log.note(f"the gate has reloaded {terms.gate_file}")
        return bool(changes)

    def _read_new(self, file: Path) -> GateRules | None:
        try:
            status = file.stat()
            version = (status.st_mtime_ns, status.st_size, status.st_ino)
        except OSError:
            version = None
        if version == self._seen:
            return None
        self._seen = version
        try:
            return read_rules(file)
        except InvalidInputError as fault:
            why = "; ".join((fault.message, *fault.details))
            self._event_log.note(f"the gate keeps its previous rules: {why}")
            return None

    def _tell_gate(self) -> None:
        terms = self._event_log.run.terms
        settings = read_record(
            self.path, GateSettings, hint="stop the run, then slipstream serve TARGET"
        )
        rules = terms.gate_rules or GateRules()
        apply_rules(settings, rules, keys_required=terms.keys_required).write(self.path)
