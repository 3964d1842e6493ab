"""`Fleet`: machines, the groups that share an engine, and what they serve; the file is fleet.toml.

Names become folders, words of a command and lines of a configuration on other machines, so they
are restricted here, where they come in.
"""

import json
import re
import shlex
from collections.abc import Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, PositiveInt, field_validator, model_validator

from slipstream.engines.vllm_methods import MethodName
from slipstream.planning.settings.options import Goal, PlanOptions, make_options
from slipstream.records import Record, read_toml

FLEET_HINT = "docs/fleet.md has every key; slipstream fleet init writes a first file"
FILE_NAME = "fleet.toml"
# A machine's plans, each named after its content: which of them a run serves, its status says.
PLANS = "plans"
_PLAN_FILE = re.compile(rf"(?:{PLANS}/[0-9a-f]{{16}}|plan)\.json")
# Folders beside those of the fleets.
_RESERVED = ("venv", "wheels")


def _matching(pattern: str, message: str) -> AfterValidator:
    def require(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError(message)
        return text

    return AfterValidator(require)


_NAME, _NAME_MESSAGE = (
    r"[a-z0-9][a-z0-9._-]{0,62}",
    "a name has a-z, 0-9, '.', '_', '-', 63 at most",
)
_PORT = r"(?:[1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])"
_SSH = (
    r"(?:[A-Za-z0-9_][A-Za-z0-9._-]*@)?"
    r"(?:[A-Za-z0-9][A-Za-z0-9._-]*|\[[0-9a-fA-F:.]+(?:%[A-Za-z0-9._-]+)?\])"
    rf"(?::{_PORT})?"
)
Name = Annotated[str, _matching(_NAME, _NAME_MESSAGE)]
SshName = Annotated[str, _matching(_SSH, "neither an SSH name nor [user@]host[:port]")]
# A path on another machine: nothing that a shell or a line of a file could take for more.
FarPath = Annotated[str, _matching(r"(?!-)[A-Za-z0-9_./~+@-]+", "not a plain path")]
IpAddress = Annotated[str, AfterValidator(lambda text: str(ip_address(text)))]
Port = Annotated[int, Field(ge=1, le=65535)]
Policy = Literal["leastconn", "session"]


class Machine(Record):
    """How a machine is reached: by SSH from here, by its address from the others."""

    ssh: SshName | None = None
    address: IpAddress | None = None
    python: FarPath | None = None


class FleetModel(Record):
    target: str
    drafter: str | None = None


class FleetOptions(Record):
    """Options of `slipstream plan`, by name; `engine` has the arguments after `--`."""

    context: PositiveInt | None = None
    users: PositiveInt | None = None
    goal: Goal | None = None
    method: MethodName | None = None
    k: PositiveInt | None = None
    thinking: Literal["on", "off"] | None = None
    images: bool | None = None
    copy_drafts: bool | None = None
    engine: tuple[str, ...] | None = None

    def to_options(self, *, drafter: str | None, speculation: bool) -> PlanOptions:
        drafted = speculation and self.method != "plain"
        given = self.model_dump(exclude_none=True, exclude={"method", "k"})
        if not drafted:
            return make_options(**given).without_speculation()
        return make_options(drafter=drafter, method=self.method, draft_length=self.k, **given)


class FleetGroup(Record):
    """One engine, over one machine or several; the first of them answers."""

    machines: Annotated[tuple[str, ...], Field(min_length=1)]
    speculation: bool = True
    options: FleetOptions | None = None
    port: Port = 8000


class Balancer(Record):
    """The load balancer before all groups.

    Requests go to the group that has the fewest, and those of one `X-Session-ID` to one group. The
    policy `session` makes a session of every key and address that names none.
    """

    machine: str
    port: Port = 8300
    policy: Policy = "leastconn"


class Keys(Record):
    """The keys that every gate takes, as `slipstream keys` writes them."""

    file: Path


class Fleet(Record):
    """Machines and what they are to serve; paths in it are relative to its file."""

    schema_version: Literal[1] = 1
    name: Name
    ssh_config: Path | None = None
    model: FleetModel
    options: FleetOptions = FleetOptions()
    machines: Annotated[dict[Name, Machine], Field(min_length=1)]
    groups: Annotated[dict[Name, FleetGroup], Field(min_length=1)]
    balancer: Balancer | None = None
    keys: Keys | None = None

    @field_validator("name")
    @classmethod
    def _require_own_folder(cls, name: str) -> str:
        if name in _RESERVED:
            raise ValueError(f"{name} is the folder of the fleets' programs; choose another name")
        return name

    @field_validator("groups")
    @classmethod
    def _require_one_group_each(cls, groups: dict[str, FleetGroup]) -> dict[str, FleetGroup]:
        listed = [name for group in groups.values() for name in group.machines]
        if twice := sorted({name for name in listed if listed.count(name) > 1}):
            raise ValueError(f"{', '.join(twice)}: a machine may be in one group only")
        return groups

    @model_validator(mode="after")
    def _require_known_machines(self) -> "Fleet":
        named = {name for group in self.groups.values() for name in group.machines}
        named |= {self.balancer.machine} if self.balancer else set()
        if unknown := sorted(named - self.machines.keys()):
            raise ValueError(f"{', '.join(unknown)}: no table [machines.{unknown[0]}]")
        return self

    @property
    def first_machine(self) -> str:
        """Name the machine that keeps the lease: the first of the file."""
        return next(iter(self.machines))

    @property
    def folder(self) -> str:
        return find_folder(self.name)

    def find_login(self, machine: str) -> tuple[str, str | None]:
        """Return the destination of a machine as `ssh` takes it, and the port if one is named."""
        name = self.machines[machine].ssh or machine
        host, colon, port = name.rpartition(":")
        if not colon or name.endswith("]"):
            host, port = name, ""
        return host.replace("[", "").replace("]", ""), port or None

    def hint_ssh(self, machine: str, *words: str, program: str = "ssh") -> str:
        """Write the command that logs in to a machine, for a person to type."""
        destination, port = self.find_login(machine)
        config = ["-F", shlex.quote(str(self.ssh_config))] if self.ssh_config else []
        return " ".join([program, *config, *(["-p", port] if port else []), destination, *words])

    def find_group(self, machine: str) -> str | None:
        found = (name for name, group in self.groups.items() if machine in group.machines)
        return next(found, None)

    def find_options(self, group: str) -> PlanOptions:
        chosen = self.groups[group]
        changed = chosen.options.model_dump(exclude_none=True) if chosen.options else {}
        options = self.options.model_copy(update=changed)
        return options.to_options(drafter=self.model.drafter, speculation=chosen.speculation)


def find_folder(name: str) -> str:
    """Return the folder of a fleet on any machine, relative to the user's home."""
    return f".local/share/slipstream/fleet/{name}"


def is_of_fleet(folder: str, plan_file: str | Path | None) -> bool:
    """Say whether a run was started from a plan in a fleet's folder, wherever the home is."""
    return find_plan_name(folder, plan_file) is not None


def find_plan_name(folder: str, plan_file: str | Path | None) -> str | None:
    """Return the name in a fleet's folder of the plan that a run was started from."""
    _, found, name = str(plan_file or "").rpartition(f"/{folder}/")
    return name if found and _PLAN_FILE.fullmatch(name) else None


def read_fleet(path: Path) -> Fleet:
    """Read a fleet's file; relative paths in it become whole ones."""
    fleet = read_toml(path, Fleet, called="keys or values", hint=FLEET_HINT)
    base = path.absolute().parent
    changed: dict[str, object] = {}
    if fleet.ssh_config is not None:
        changed["ssh_config"] = base / fleet.ssh_config.expanduser()
    if fleet.keys is not None:
        changed["keys"] = Keys(file=base / fleet.keys.file.expanduser())
    return fleet.model_copy(update=changed)


def render_skeleton(
    name: str, machines: Sequence[str], *, target: str, drafter: str | None, together: bool
) -> str:
    """Write a fleet.toml to begin with: a group over all machines, or one for each."""
    names = dict(zip(_name_machines(machines), machines, strict=True))
    quote = json.dumps  # JSON's escapes are among TOML's.
    lines = [
        f"name = {quote(name)}",
        "",
        "[model]",
        f"target = {quote(target)}",
        f"drafter = {quote(drafter)}" if drafter else '# drafter = "OWNER/MODEL"',
        "",
        "[options]",
        "# context = 32768",
        "# users = 4",
    ]
    for short, ssh in names.items():
        lines += ["", f"[machines.{quote(short)}]", f"ssh = {quote(ssh)}"]
    groups = {"all": list(names)} if together else {short: [short] for short in names}
    for group, members in groups.items():
        lines += ["", f"[groups.{quote(group)}]", f"machines = [{', '.join(map(quote, members))}]"]
    lines += ["", "# [keys]", '# file = "keys.json"']
    lines += ["", "# [balancer]", f"# machine = {quote(next(iter(names)))}"]
    return "\n".join(lines) + "\n"


def _name_machines(machines: Sequence[str]) -> list[str]:
    """Name machines after their hosts, in letters that a name may have; twins get a number."""
    names: list[str] = []
    for machine in machines:
        host = re.sub(r":[0-9]+$" if "[" in machine else r":.*$", "", machine.rpartition("@")[2])
        host = host.strip("[]").lower()
        short = re.sub(r"[^a-z0-9._-]", "-", host).strip("._-") or "machine"
        same = sum(one == short or one.startswith(f"{short}-") for one in names)
        names.append(f"{short}-{same + 1}" if short in names else short)
    return names
