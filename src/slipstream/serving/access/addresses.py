"""Where an engine listens, and whether the address is free; checked before weights are loaded."""

import errno
import socket
from dataclasses import dataclass
from pathlib import Path

from slipstream.errors import InvalidInputError
from slipstream.planning.plan import LaunchPlan
from slipstream.serving.access.tls import TlsCertificate
from slipstream.serving.supervision.engine_process import find_host

ANSWER_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Address:
    """A host and port, or the path of a Unix socket, and the URL for a client on this machine."""

    url: str
    host: str
    port: int
    socket: str | None = None
    certificate: TlsCertificate | None = None

    @classmethod
    def of(cls, plan: LaunchPlan) -> "Address":
        settings, certificate = plan.settings, TlsCertificate.of(plan)
        scheme = "http" if certificate is None else "https"
        if settings.uds is not None:
            return cls(f"{scheme}://localhost", "", 0, settings.uds.value, certificate)
        port = settings.port.value if settings.port else 0
        host = settings.host.value if settings.host else ""
        return cls(f"{scheme}://{find_host(plan)}:{port}", host, port, certificate=certificate)

    def __str__(self) -> str:
        return self.socket or f"{self.host or '*'} port {self.port}"

    def explain_owner(self) -> str:
        """Return what to type to see who listens here, and to listen elsewhere."""
        if self.socket is not None:
            return f"ss -lxp src {self.socket}; or another socket with -- --uds PATH"
        return f"ss -ltnp 'sport = :{self.port}'; or another port with --port"

    def require_free(self) -> None:
        """Raise if another server has the address; a stale socket is removed."""
        if self.socket is not None:
            _require_free_socket(Path(self.socket))
            return
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((self.host, self.port))
                probe.listen(1)
            except (OSError, OverflowError) as fault:
                raise InvalidInputError(
                    f"the engine cannot listen at {self}: "
                    f"{getattr(fault, 'strerror', None) or fault}",
                    hint="choose another with --port, or list the runs: slipstream status",
                ) from fault


def _require_free_socket(path: Path) -> None:
    """Remove a stale socket, which would end vLLM; raise if it is in use."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(ANSWER_SECONDS)
        try:
            probe.connect(str(path))
        except FileNotFoundError:
            return
        except OSError as fault:
            if fault.errno == errno.ECONNREFUSED and path.is_socket():
                path.unlink()
                return
            raise InvalidInputError(
                f"the engine cannot listen at {path}: {fault.strerror or fault}",
                hint="choose another with -- --uds PATH",
            ) from fault
    raise InvalidInputError(
        f"another server is listening at {path}", hint="choose another with -- --uds PATH"
    )
