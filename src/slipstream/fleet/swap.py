"""Another drafter for a whole fleet: group after group, or on a canary first.

Every group is swapped by `slipstream swap` on its own machine, which proves the drafter, watches it
and keeps the one before. If a group does not take it, those that did go back.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from slipstream.errors import EngineError, InvalidInputError, SlipstreamError
from slipstream.fleet.canary.far_groups import FarGroups, TrialLimits, open_trial
from slipstream.fleet.canary.record import Canary
from slipstream.fleet.far_commands import explain, read_answer
from slipstream.fleet.record import Fleet
from slipstream.fleet.transport import Transport, escape
from slipstream.serving.swaps import Swap

# The machine's own command waits for half an hour.
SWAP_SECONDS = 1900.0
_GATE_MISSED = 4


@dataclass(slots=True)
class FleetSwap:
    """A drafter on its way through a fleet; `name` is what the machines know it by.

    `require` fails if the fleet may no longer be changed from here.
    """

    far: FarGroups
    name: str
    require: Callable[[], None]
    swapped: list[str] = field(default_factory=list)
    done: list[str] = field(default_factory=list)

    def swap_groups(self, groups: Sequence[str]) -> None:
        """Swap one group after the other; if one does not take it, all that did go back."""
        for group in groups:
            try:
                swap = self._swap(group, [self.name])
                if swap.outcome != "swapped":
                    raise EngineError(swap.message, hint=swap.hint or "slipstream fleet status")
            except SlipstreamError as fault:
                self._note(f"{group} does not take it: {fault.message}")
                self.go_back()
                raise
            self.swapped.append(group)
            self._note(f"{group}: {swap.message}")

    def try_on(self, canary: Sequence[str], others: Sequence[str], limits: TrialLimits) -> Canary:
        """Swap some groups, and the others too or those back, as their requests decide."""
        far = open_trial(self.far, "drafter", canary, others, limits)
        try:
            self.swap_groups(canary)
            verdict = far.decide()
            if verdict.outcome == "promote":
                self.swap_groups(others)
            else:
                self.go_back()
        except BaseException:
            self.go_back()
            raise
        return far.trial.describe(verdict, name=self.name, done=self.done)

    def go_back(self) -> None:
        """Have the drafter before in every group that took the new one, the last one first."""
        while self.swapped:
            group = self.swapped.pop()
            try:
                if self._has_returned(group):
                    self._note(f"{group} had swapped back by itself")
                else:
                    self._note(f"{group}: {self._swap(group, ['--back']).message}")
            except SlipstreamError as fault:
                self._note(f"{group} is not swapped back: {fault.message}")

    def _swap(self, group: str, words: Sequence[str]) -> Swap:
        self.require()
        run = self.far.read_ledger(group, float("inf")).run
        answer = self.far.call(group, ["swap", run, *words, "--json"], timeout=SWAP_SECONDS)
        if answer.code not in (0, _GATE_MISSED):
            raise EngineError(f"{group}: {explain(answer)}", hint=f"slipstream fleet logs {group}")
        return read_answer(self.far.name_machine(group), answer, Swap)

    def _has_returned(self, group: str) -> bool:
        last = self.far.read_ledger(group, float("inf")).last_swap
        return last is not None and last.outcome == "swapped-back"

    def _note(self, line: str) -> None:
        self.done.append(escape(line))
        self.far.say(escape(line))


def list_swapping_groups(fleet: Fleet) -> tuple[str, ...]:
    """List the groups that draft, in the order of the file; raise if one of them cannot swap."""
    drafting = {name: group for name, group in fleet.groups.items() if group.speculation}
    if spread := [name for name, group in drafting.items() if len(group.machines) > 1]:
        raise InvalidInputError(
            f"{', '.join(spread)}: an engine over several machines cannot swap its drafter",
            hint=f"name the drafter in fleet.toml, then: slipstream fleet roll {' '.join(spread)}",
        )
    return tuple(drafting)


def place_drafter(
    fleet: Fleet, transport: Transport, groups: Sequence[str], name: str, say: Callable[[str], None]
) -> str:
    """Return what the machines know a drafter by; a folder of this machine is sent to them all."""
    folder = Path(name).expanduser()
    if not folder.is_dir():
        return name
    files = sorted(
        file for file in folder.iterdir() if file.suffix in (".json", ".safetensors", ".txt")
    )
    if not any(file.suffix == ".safetensors" for file in files):
        raise InvalidInputError(f"{folder} has no safetensors", hint=f"slipstream models {folder}")
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as content:
            digest.update(
                f"{file.name} {hashlib.file_digest(content, 'sha256').hexdigest()}\n".encode()
            )
    place = (
        f"{fleet.folder}/drafters/{_make_plain(folder.resolve().name)}-{digest.hexdigest()[:12]}"
    )
    for machine in [name for group in groups for name in fleet.groups[group].machines]:
        say(f"{machine}: {len(files)} files of the drafter are sent")
        for file in files:
            transport.send(machine, file, f"{place}/{file.name}")
    return f"~/{place}"


def _make_plain(name: str) -> str:
    """Return a name that no shell and no path takes for more."""
    return "".join(sign if sign.isascii() and sign.isalnum() else "-" for sign in name)[:40]
