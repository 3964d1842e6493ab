"""Models on every machine: once over the internet, then from machine to machine, then hashed.

A machine that has a model serves another as soon as it is checked, so the number of copies doubles
with every round. The way is ssh between the machines where they may, and through the desk where
they may not. What counts in the end is the hash that the receiver computes.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from shlex import join

from slipstream.errors import InvalidInputError, MissingPartError, SlipstreamError, UnreachableError
from slipstream.fleet.far_commands import call, name_command, read_answer
from slipstream.fleet.far_side.held_model import HeldModel
from slipstream.fleet.plan import FleetPlan
from slipstream.fleet.record import Fleet
from slipstream.fleet.transport import Transport, ask_all
from slipstream.planning.plan import LaunchPlan
from slipstream.units import show_bytes

TRANSFER_SECONDS = 24 * 3600.0
CHECK_SECONDS = 3600.0
_SSH = ["ssh", "-oBatchMode=yes", "-oStrictHostKeyChecking=yes", "-oConnectTimeout=5", "--"]
Show = Callable[[str, str, str], None]


@dataclass(frozen=True, slots=True)
class WantedModel:
    """A model that a group serves."""

    name: str
    revision: str | None
    with_code: bool

    def list_words(self) -> list[str]:
        """Return the words of `fleet weights` for it."""
        revision = [f"--revision={self.revision}"] if self.revision else []
        code = ["--with-code"] if self.with_code else []
        return ["fleet", "weights", "--json", f"--model={self.name}", *revision, *code]


def list_models(plan: LaunchPlan) -> Iterator[WantedModel]:
    """Yield a plan's models."""
    settings, code = plan.settings, plan.trusts_remote_code
    revision = settings.revision.value if settings.revision else None
    yield WantedModel(settings.model.value, revision, code)
    speculation = settings.speculation
    if speculation is not None and speculation.drafter is not None:
        revision = speculation.revision.value if speculation.revision else None
        yield WantedModel(speculation.drafter.value, revision, code)


def spread_weights(plan: FleetPlan, groups: list[str], transport: Transport, show: Show) -> None:
    """Have every model of these groups on every machine of them, with the same hash."""
    wanted: dict[WantedModel, list[str]] = {}
    for group in plan.groups:
        for rank in group.ranks if group.name in groups else ():
            for model in list_models(rank.plan):
                wanted.setdefault(model, []).append(rank.machine)
    for model, machines in wanted.items():
        _Spreading(plan, model, transport, show).spread(machines)


@dataclass(frozen=True, slots=True)
class _Spreading:
    """One model's way to its machines."""

    plan: FleetPlan
    model: WantedModel
    transport: Transport
    show: Show

    @property
    def _fleet(self) -> Fleet:
        return self.plan.fleet

    def spread(self, machines: list[str]) -> None:
        """Find who has the model, fetch it if nobody does, and copy it to the others."""
        found = ask_all(machines, self._check)
        held = {name: one for name, one in found.items() if isinstance(one, HeldModel)}
        if not held:
            held = {machines[0]: self._fetch(machines[0])}
        self._require_alike(held)
        lacking = [name for name in machines if name not in held]
        while lacking:
            for name, one in self._copy_round(lacking, held).items():
                if isinstance(one, SlipstreamError):
                    raise one
                held[name] = one
            self._require_alike(held)
            lacking = [name for name in lacking if name not in held]

    def _copy_round(
        self, lacking: list[str], held: dict[str, HeldModel]
    ) -> dict[str, HeldModel | SlipstreamError]:
        """Have every machine with the model serve one without it."""
        sources = dict(zip(lacking, held.items(), strict=False))
        return ask_all(sources, lambda name: self._copy(*sources[name], name))

    def _check(self, machine: str) -> HeldModel:
        """Return what a machine has, without asking the hub."""
        return self._ask(machine, offline=True, timeout=CHECK_SECONDS)

    def _fetch(self, machine: str) -> HeldModel:
        self.show(machine, "downloading", self.model.name)
        held = self._ask(machine, offline=False, timeout=TRANSFER_SECONDS)
        self.show(machine, "checked", f"{self.model.name}, {show_bytes(held.size_bytes)}")
        return held

    def _ask(self, machine: str, *, offline: bool, timeout: float) -> HeldModel:
        words = self.model.list_words()
        command = name_command(self._fleet.machines[machine], words)
        command = ["env", "HF_HUB_OFFLINE=1", *command] if offline else command
        answer = self.transport.run(machine, command, timeout=timeout)
        if answer.code:
            raise MissingPartError(
                f"{machine}: {self.model.name} is not there: {answer.last_words}",
                hint=f"slipstream models {self.model.name}, on {machine}",
            )
        return read_answer(machine, answer, HeldModel)

    def _copy(self, source: str, held: HeldModel, machine: str) -> HeldModel:
        """Copy a model's tree to a machine, and have it hashed there."""
        size = show_bytes(held.size_bytes)
        self.show(machine, "copying", f"{self.model.name}, {size}, from {source}")
        tree, target = PurePosixPath(held.tree), self._find_tree(machine)
        packing = ["tar", "-C", str(tree.parent), "-cf", "-", "--", tree.name]
        # Only the model: the sender must not leave other files in a folder that may be a home.
        script = 'mkdir -p "$1" && tar -C "$1" -xf - -- "$2"'
        unpacking = ["sh", "-c", script, "sh", str(target.parent), target.name]
        for name in self._list_names(source, machine):
            if self.transport.run(source, [*_SSH, name, "true"], timeout=30).code == 0:
                line = f"{join(packing)} | {join([*_SSH, name, join(unpacking)])}"
                answer = self.transport.run(source, ["sh", "-c", line], timeout=TRANSFER_SECONDS)
                break
        else:
            answer = self.transport.relay(source, packing, machine, unpacking)
        if answer.code:
            raise UnreachableError(
                f"{machine}: {self.model.name} could not be copied from {source}: "
                f"{answer.last_words}",
                hint=f"ssh {self._fleet.name_ssh(machine)} df -h {target.parent}",
            )
        checked = self._check(machine)
        self.show(machine, "checked", self.model.name)
        return checked

    def _list_names(self, source: str, machine: str) -> Iterator[str]:
        """Yield how a machine may reach another: over their link, by its address, by its name."""
        user = self._fleet.name_ssh(machine).rpartition("@")[0]
        addresses = [
            link.address_b if link.a == source else link.address_a
            for link in self.plan.links
            if {link.a, link.b} == {source, machine}
        ]
        addresses.append(self.plan.machines[machine].address or machine)
        for address in dict.fromkeys(addresses):
            yield f"{user}@{address}" if user else address

    def _find_tree(self, machine: str) -> PurePosixPath:
        words = [*self.model.list_words(), "--where"]
        answer = call(self._fleet, self.transport, machine, words)
        try:
            tree = PurePosixPath(json.loads(answer.stdout)["tree"])
        except (ValueError, KeyError, TypeError) as fault:
            raise UnreachableError(
                f"{machine} did not say where models are kept: {answer.last_words}",
                hint="slipstream fleet probe",
            ) from fault
        return tree

    def _require_alike(self, held: dict[str, HeldModel]) -> None:
        hashes = {one.sha256 for one in held.values()}
        if len(hashes) > 1:
            shown = [f"{name} {one.sha256[:12]}" for name, one in held.items()]
            raise InvalidInputError(
                f"the weights of {self.model.name} differ: {', '.join(shown)}",
                hint="remove the wrong copy, then slipstream fleet up",
            )
