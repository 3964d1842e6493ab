"""Models on every machine: once over the internet, then from machine to machine, then hashed.

A machine that has a model serves another as soon as it is checked, so the number of copies doubles
with every round. The way is ssh between the machines where they may, and through the control
machine where they may not. What counts in the end is the hash that the receiver computes.
"""

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from shlex import join

from slipstream.errors import InvalidInputError, MissingPartError, SlipstreamError, UnreachableError
from slipstream.fleet.far_side.this_machine import HeldModel, LocateModel, ModelPlace, ModelRequest
from slipstream.fleet.machines.commands import Machines, Show, ask_all
from slipstream.fleet.plan import FleetPlan
from slipstream.planning.plan import LaunchPlan
from slipstream.serving.swaps import ServedDrafter
from slipstream.units import show_bytes

TRANSFER_SECONDS = 24 * 3600.0
CHECK_SECONDS = 3600.0
# Of a generation's drafter, by `learning/generation.py`.
LEARNED_FOLDER = "drafter"
_SSH = ["ssh", "-oBatchMode=yes", "-oStrictHostKeyChecking=yes", "-oConnectTimeout=5", "--"]
# Only the model: the sender must not leave other files in a folder that may be a home. What was cut
# off replaces nothing; a cache may have other revisions, which stay.
_UNPACK = (
    'set -e; p="$1/.$2.partial-$$"; mkdir -p "$p"; trap \'rm -rf "$p"\' EXIT; '
    'tar -C "$p" -xf - -- "$2"; '
    'if [ -e "$1/$2" ]; then cp -al --remove-destination "$p/$2/." "$1/$2/"; '
    'else mv "$p/$2" "$1/$2"; fi'
)


def list_models(plan: LaunchPlan) -> Iterator[ModelRequest]:
    settings, code = plan.settings, plan.trusts_remote_code
    revision = settings.revision.value if settings.revision else None
    yield ModelRequest(model=settings.model.value, revision=revision, with_code=code)
    speculation = settings.speculation
    if speculation is not None and speculation.drafter is not None:
        revision = speculation.revision.value if speculation.revision else None
        yield ModelRequest(model=speculation.drafter.value, revision=revision, with_code=code)


def spread_weights(plan: FleetPlan, groups: list[str], far: Machines, show: Show) -> None:
    """Have every model of these groups on every machine of them, with the same hash."""
    wanted: dict[ModelRequest, list[str]] = {}
    for group in plan.groups:
        for rank in group.ranks if group.name in groups else ():
            for model in list_models(rank.plan):
                wanted.setdefault(model, []).append(rank.machine)
    for model, machines in wanted.items():
        _Spreading(plan, model, far, show).spread(machines)


@dataclass(frozen=True, slots=True)
class _Spreading:
    plan: FleetPlan
    model: ModelRequest
    far: Machines
    show: Show

    def spread(self, machines: list[str]) -> None:
        found = ask_all(machines, self._check)
        held = {name: one for name, one in found.items() if isinstance(one, HeldModel)}
        if not held:
            held = {machines[0]: self._fetch(machines[0])}
        self._require_alike(held)
        while lacking := [name for name in machines if name not in held]:
            # Every machine with the model serves one without it.
            sources = dict(zip(lacking, held.items(), strict=False))

            def copy(name: str, sources: dict[str, tuple[str, HeldModel]] = sources) -> HeldModel:
                return self._copy(*sources[name], name)

            copied = ask_all(sources, copy)
            for name, one in copied.items():
                if isinstance(one, SlipstreamError):
                    raise one
                held[name] = one
            self._require_alike(held)

    def _check(self, machine: str) -> HeldModel:
        """Return what a machine has, without asking the hub."""
        return self._ask(machine, timeout=CHECK_SECONDS, variables=["HF_HUB_OFFLINE=1"])

    def _fetch(self, machine: str) -> HeldModel:
        self.show(machine, "downloading", self.model.model)
        held = self._ask(machine, timeout=TRANSFER_SECONDS, variables=[])
        self.show(machine, "checked", f"{self.model.model}, {show_bytes(held.size_bytes)}")
        return held

    def _ask(self, machine: str, *, timeout: float, variables: list[str]) -> HeldModel:
        return self.far.ask(
            machine,
            self.model,
            HeldModel,
            timeout=timeout,
            variables=variables,
            fault=MissingPartError,
            hint=f"on {machine}: slipstream models {self.model.model}",
        )

    def _copy(self, source: str, held: HeldModel, machine: str) -> HeldModel:
        transport, model = self.far.transport, self.model.model
        size = show_bytes(held.size_bytes)
        self.show(machine, "copying", f"{model}, {size}, from {source}")
        there = self.far.ask(machine, LocateModel(model=model), ModelPlace)
        tree, target = PurePosixPath(held.tree), PurePosixPath(there.tree)
        packing = ["tar", "-C", str(tree.parent), "-cf", "-", "--", tree.name]
        unpacking = ["sh", "-c", _UNPACK, "sh", str(target.parent), target.name]
        for name in self._list_names(source, machine):
            if transport.run(source, [*_SSH, name, "true"], timeout=30).code == 0:
                line = f"{join(packing)} | {join([*_SSH, name, join(unpacking)])}"
                answer = transport.run(source, ["sh", "-c", line], timeout=TRANSFER_SECONDS)
                break
        else:
            answer = transport.relay(source, packing, machine, unpacking, timeout=TRANSFER_SECONDS)
        if answer.code:
            raise UnreachableError(
                f"{machine}: {model} could not be copied from {source}: {answer.complaint}",
                hint=self.far.fleet.hint_ssh(machine, "df -h", str(target.parent)),
            )
        checked = self._check(machine)
        self.show(machine, "checked", model)
        return checked

    def _list_names(self, source: str, machine: str) -> Iterator[str]:
        """Yield how a machine may reach another: over their link, by its address, by its name."""
        user = self.far.fleet.find_login(machine)[0].rpartition("@")[0]
        addresses = [
            link.address_b if link.a == source else link.address_a
            for link in self.plan.links
            if {link.a, link.b} == {source, machine}
        ]
        addresses.append(self.plan.machines[machine].address or machine)
        for address in dict.fromkeys(addresses):
            yield f"{user}@{address}" if user else address

    def _require_alike(self, held: dict[str, HeldModel]) -> None:
        if len({one.sha256 for one in held.values()}) > 1:
            shown = [f"{name} {one.sha256[:12]}" for name, one in held.items()]
            raise InvalidInputError(
                f"the weights of {self.model.model} differ: {', '.join(shown)}",
                hint="remove the wrong copy, then slipstream fleet up",
            )


def place_drafter(
    far: Machines, groups: Sequence[str], name: str, progress: Callable[[str], None]
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
    plain = re.sub(r"[^A-Za-z0-9]", "-", folder.resolve().name)[:40]
    place = f"{far.fleet.folder}/drafters/{plain}-{digest.hexdigest()[:12]}"
    for machine in [name for group in groups for name in far.fleet.groups[group].machines]:
        progress(f"{machine}: {len(files)} files of the drafter are sent")
        for file in files:
            far.transport.send(machine, file, f"{place}/{file.name}")
    return f"~/{place}"


def place_learned(
    far: Machines, groups: Sequence[str], source: str, drafter: ServedDrafter, show: Show
) -> str:
    """Copy a drafter that a machine has to these groups' machines, and return its name there."""
    held = far.ask(
        source, ModelRequest(model=str(drafter.folder)), HeldModel, timeout=CHECK_SECONDS
    )
    parent = f"{far.fleet.folder}/drafters/{drafter.name.replace(' ', '-')}-{held.sha256[:12]}"
    # The name is ours, not what the machine says: it becomes a path on the others.
    giving = ["tar", "-C", str(drafter.folder.parent), "-cf", "-", "--", LEARNED_FOLDER]
    taking = ["sh", "-c", _UNPACK, "sh", parent, LEARNED_FOLDER]
    copy = ModelRequest(model=f"~/{parent}/{LEARNED_FOLDER}")
    for machine in [name for group in groups for name in far.fleet.groups[group].machines]:
        show(machine, "copying", f"{drafter.name} from {source}")
        answer = far.transport.relay(source, giving, machine, taking, timeout=TRANSFER_SECONDS)
        fault = answer.complaint if answer.code else None
        if fault is None:
            there = far.ask(machine, copy, HeldModel, timeout=CHECK_SECONDS)
            fault = None if there.sha256 == held.sha256 else "its hash differs"
        if fault is not None:
            raise UnreachableError(
                f"{machine}: {drafter.name} could not be copied from {source}: {fault}",
                hint=far.fleet.hint_ssh(machine, "df -h ."),
            )
    return copy.model
