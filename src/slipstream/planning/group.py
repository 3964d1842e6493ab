"""`Group`: the machines that one engine runs on, as each of them knows it."""

import re
from ipaddress import ip_address
from typing import Annotated

from pydantic import AfterValidator, Field, model_validator

from slipstream.records import Record

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
_INTERFACE = re.compile(r"[A-Za-z0-9_.-]{1,15}")


def _require_name(text: str) -> str:
    if not _NAME.fullmatch(text):
        raise ValueError("a name has lower-case letters, digits, '.', '_' and '-', 63 at most")
    return text


def _require_interface(text: str) -> str:
    if not _INTERFACE.fullmatch(text):
        raise ValueError("not the name of a network interface")
    return text


Name = Annotated[str, AfterValidator(_require_name)]
Address = Annotated[str, AfterValidator(lambda text: str(ip_address(text)))]
Interface = Annotated[str, AfterValidator(_require_interface)]
Port = Annotated[int, Field(ge=1, le=65535)]


class Member(Record):
    """A machine of a group: its address and interface on the link to the others."""

    name: Name
    address: Address
    interface: Interface | None = None


class Group(Record):
    """One engine over several machines, and which of them this plan is for.

    The supervisors of all ranks report to each other over UDP at `watch_port`, signed with the
    secret that every machine has in `secret_file`.
    """

    name: Name
    rank: Annotated[int, Field(ge=0)]
    members: Annotated[tuple[Member, ...], Field(min_length=2)]
    watch_port: Port
    secret_file: str

    @model_validator(mode="after")
    def _require_own_place(self) -> "Group":
        if self.rank >= len(self.members):
            raise ValueError(f"rank {self.rank} of {len(self.members)} machines")
        if len({member.address for member in self.members}) < len(self.members):
            raise ValueError("two machines have the same address")
        return self

    @property
    def own(self) -> Member:
        """Return the machine that this plan is for."""
        return self.members[self.rank]

    @property
    def is_follower(self) -> bool:
        return self.rank > 0

    def describe(self, rank: int) -> str:
        member = self.members[rank]
        return f"rank {rank} ({member.name}, {member.address})"
