"""What becomes of a command of a fleet while it runs: who dies, who is lost, who takes over."""

from datetime import timedelta
from threading import Lock
from typing import NamedTuple

from hypothesis import strategies as st

from slipstream.errors import SlowError, UnreachableError
from slipstream.fleet.machines.lease import LEASE_SECONDS, LeaseRequest, change_lease
from tests.unit.cli.fleet.site import NUMBERS, Site
from tests.unit.fleet.far_machines import ControlDiedError

CALLS = st.integers(0, 10) | st.integers(0, 45)


class Mishap(NamedTuple):
    """What becomes of a command at its change of this number.

    What `loses` does so at its call, what is `slow` at its order to a run.
    """

    kind: str
    call: int
    machine: str
    calls: int


MISHAPS = st.none() | st.builds(
    Mishap,
    st.sampled_from(["dies", "dies after", "loses", "loses an answer", "stolen"]),
    CALLS,
    st.sampled_from([*NUMBERS]),
    st.sampled_from([3, 6, 27]),
)
# One of the first orders is carried out, and its answer comes too late or not at all.
UNHEARD = st.builds(
    Mishap,
    st.sampled_from(["slow", "loses an answer"]),
    st.integers(0, 3),
    st.just("one"),
    st.just(1),
)


class Meddler:
    """Has one mishap happen to a command, and notes what is changed by who may not."""

    def __init__(self, site: Site, mishap: Mishap | None) -> None:
        self._site, self._mishap, self._lock = site, mishap, Lock()
        self.calls, self._changed, self._ordered = 0, 0, 0
        self.is_dead, self.is_stolen, self._holds = False, False, False
        self.trespasses: list[str] = []

    def __call__(self, machine: str, words: list[str], stdin: bytes | None, after: bool) -> None:
        with self._lock:
            if self.is_dead:
                raise ControlDiedError
            if words == ["LeaseRequest"]:
                self._holds |= after
                return
            if self.is_stolen and not after and _changes(words, stdin):
                self.trespasses.append(f"{words[:2]} on {machine}")
            changes = _changes(words, stdin)
            self.calls += after
            self._changed += after and changes
            self._ordered += after and words[0] in ("stop", "swap", "verify")
            if (mishap := self._mishap) is None:
                return
            now = changes and self._changed == mishap.call + after
            if now and mishap.kind == ("dies after" if after else "dies"):
                self.is_dead = True
                raise ControlDiedError
            if now and mishap.kind == "stolen" and after and self._holds:
                self._steal()
            gone = mishap.call <= self.calls < mishap.call + mishap.calls
            if mishap.kind == "loses" and gone and not after and machine == mishap.machine:
                self.calls += 1
                raise UnreachableError(f"{machine} cannot be reached", hint="ping")
            if now and mishap.kind == "loses an answer" and after:
                raise UnreachableError(f"{machine} cannot be reached: no answer", hint="ping")
            if mishap.kind == "slow" and after and self._ordered == mishap.call + 1:
                self._ordered += 1
                raise SlowError(f"{machine} did not finish", hint="look")

    def _steal(self) -> None:
        """Have another take the fleet while this control machine sleeps, and change something."""
        far = self._site.far
        assert far.leases is not None
        other = LeaseRequest(
            fleet="lab", action="take", owner="e" * 32, holder="eve@desk", purpose="up", force=True
        )
        change_lease(far.leases, other, far.now)
        far.now += timedelta(seconds=LEASE_SECONDS)
        leaving = other.model_copy(update={"action": "release"})
        change_lease(far.leases, leaving, far.now)
        self.is_stolen = True


def _changes(words: list[str], stdin: bytes | None) -> bool:
    if words == ["BalancerRequest"]:
        return b'"action":"state"' not in (stdin or b"")
    return words[0] in ("send", "serve", "stop", "swap") or ".next" in " ".join(words[:3])
