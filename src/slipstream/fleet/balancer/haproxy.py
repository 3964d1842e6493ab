"""The load balancer as HAProxy's configuration: what clients reach, and the way to every gate.

```
clients --TLS, key--> HAProxy --mutual TLS--> gate of the group with the fewest requests
                                              gate of the group that a session's hash names
```

`gates` has every group with its health and state; the other backends track it, each with its own
way to choose. Only what never reached an engine is sent again: a refused connection, or a gate's
own 503. All paths are relative to the folder of the configuration, in which HAProxy is started.
"""

from collections.abc import Iterable, Sequence

from slipstream.errors import InvalidInputError
from slipstream.fleet.plan import Backend, BalancerPlan
from slipstream.serving.access.gate_file import ROUTES, USUAL_ROUTES

ADMIN_SOCKET = "admin.sock"
CONFIGURATION = "haproxy.cfg"
KEY_LIST = "keys.list"
SERVER_STATES = "servers.state"
GATES = "gates"
# Set where HAProxy is started: :: takes both families, unless the kernel knows one only.
ANY_ADDRESS = "SLIPSTREAM_ANY_ADDRESS"
SESSION = "x-session-id"
# Bodies up to here are searched for what speculation cannot do: about 32,000 tokens of text.
SEARCHED_BYTES = 128 << 10
CONNECTIONS = 4096
# A key in JSON: inside of a text its quotation marks would have backslashes. 0 and nothing are
# the defaults. A request that is taken for one of these by mistake is answered all the same.
UNSUPPORTED = (
    r'"(min_p|logit_bias)"[ \t\r\n]*:[ \t\r\n]*+'
    r"(?!(null|0(\.0*)?|\{[ \t\r\n]*\})[ \t\r\n]*[,}])"
)
_GLOBAL = f"""\
global
    default-path config
    log stdout format raw local0 info
    stats socket unix@{ADMIN_SOCKET} mode 600 level admin expose-fd listeners
    server-state-file {SERVER_STATES}
    maxconn {CONNECTIONS}
    tune.bufsize {SEARCHED_BYTES}
    ssl-default-bind-options ssl-min-ver TLSv1.2
    ssl-default-server-options ssl-min-ver TLSv1.2

defaults
    mode http
    log global
    option httplog
    option dontlognull
    # Whoever leaves before the first token leaves a seat in the engine.
    option abortonclose
    # While another file is taken over, no client finds its idle connection closed.
    option idle-close-on-response
    option clitcpka
    option srvtcpka
    srvtcpka-idle 30s
    srvtcpka-intvl 10s
    srvtcpka-cnt 3
    timeout connect 3s
    timeout check 3s
    timeout client 1h
    timeout server 4h
    timeout tunnel 4h
    timeout queue 5s
    timeout http-request 20s
    timeout http-keep-alive 60s
    # Never what an engine has begun: it may be what ended the engine.
    retries 2
    option redispatch 1
    retry-on conn-failure 503
    default-server ssl verify required ca-file ../tls/ca.pem crt ../tls/machine.pem
"""
_CHECK = "check inter 1s fastinter 300ms downinter 1s fall 2 rise 1"


def render_balancer(balancer: BalancerPlan) -> str:
    if not balancer.groups:
        raise InvalidInputError(
            "no group has an address, so there is nothing to balance",
            hint="give each first machine an address in fleet.toml",
        )
    checks = [
        "option httpchk",
        "http-check send meth GET uri /readyz hdr Host gate",
        "http-check expect status 200",
        "load-server-state-from-file global",
    ]
    hashed = [f"balance hdr({SESSION})", "hash-type consistent"]
    parts = [
        _GLOBAL,
        _render_clients(balancer),
        _render_backend(GATES, ["balance leastconn", *checks], balancer.groups, _CHECK),
        _render_backend("sessions", hashed, balancer.groups),
    ]
    if plain := _list_plain(balancer):
        parts.append(_render_backend("plain", ["balance leastconn"], plain))
    return "\n".join(parts)


def _list_plain(balancer: BalancerPlan) -> list[Backend]:
    """List the groups without drafts if others have some: they take what drafts cannot do."""
    plain = [one for one in balancer.groups if not one.speculation]
    return plain if len(plain) < len(balancer.groups) else []


def _render_clients(balancer: BalancerPlan) -> str:
    routes = [route.split(" ", 1) for name in USUAL_ROUTES for route in ROUTES[name]]
    # Responses are not stored, so there are none to be found by their id.
    planned = [(method, path) for method, path in routes if "{" not in path]
    gets = " ".join(path for method, path in planned if method == "GET")
    posts = " ".join(path for method, path in planned if method == "POST")
    lines = [
        f'bind "${{{ANY_ADDRESS}}}:{balancer.port}" v4v6 ssl crt ../tls/balancer.pem '
        "alpn h2,http/1.1",
        # The gate takes nobody for this machine who comes with it.
        "option forwardfor",
        # vLLM's own: any page may read what it gets.
        "http-response del-header access-control -m beg",
        *_answer("200", '{"state": "alive"}', "{ path /livez }"),
        *_answer("200", '{"state": "ready"}', f"{{ path /readyz }} {{ nbsrv({GATES}) gt 0 }}"),
        *_answer("503", '{"state": "no group is ready"}', "{ path /readyz }"),
        f"acl posted path {posts}",
        f"acl read path {gets}",
        *_refuse(
            *("404", "not_found_error", "not found"),
            "!{ method POST } !read or !{ method GET HEAD } !posted or !posted !read",
        ),
        # Strangers end here, before a body is read.
        "http-request set-var(txn.bearer) "
        'req.hdr(authorization),regsub("^[Bb]earer +",""),sha2(256),hex,lower',
        "http-request set-var(txn.key) req.hdr(x-api-key),sha2(256),hex,lower",
        f"acl known var(txn.bearer) -m str -f {KEY_LIST}",
        f"acl known var(txn.key) -m str -f {KEY_LIST}",
        *_refuse("401", "authentication_error", "a valid key is required", "!known"),
    ]
    named = f"{{ req.hdr({SESSION}) -m found }}"
    if balancer.policy == "session":
        lines.append(f"http-request set-header {SESSION} %[var(txn.bearer)]%[src] if !{named}")
    if _list_plain(balancer):
        lines += [
            "option http-buffer-request",
            # Between single quotes HAProxy reads nothing into a pattern.
            f"acl unsupported req.body -m reg '{UNSUPPORTED}'",
            "use_backend plain if unsupported { nbsrv(plain) gt 0 }",
        ]
    lines += [f"use_backend sessions if {named}", f"default_backend {GATES}"]
    return _section("frontend clients", lines)


def _render_backend(
    name: str, lines: Sequence[str], groups: Sequence[Backend], check: str = ""
) -> str:
    """Write a backend; without a check of its own it follows what `gates` knows of its groups."""
    servers = [
        f"server {one.group} {_locate(one)} id {number} sni str({one.machine}) "
        f"check-sni {one.machine} verifyhost {one.machine} "
        f"{check or f'track {GATES}/{one.group}'}"
        for number, one in enumerate(groups, start=1)
    ]
    # So that clients and logs can tell who answered.
    group_header = "http-response set-header x-slipstream-group %s"
    return _section(f"backend {name}", [*lines, group_header, *servers])


def _locate(group: Backend) -> str:
    address = f"[{group.address}]" if ":" in group.address else group.address
    return f"{address}:{group.port}"


def _answer(status: str, body: str, *conditions: str) -> list[str]:
    return [
        f"http-request return status {status} content-type application/json "
        f"string '{body}' if {' '.join(conditions)}"
    ]


def _refuse(status: str, kind: str, message: str, condition: str) -> list[str]:
    return _answer(status, f'{{"error": {{"message": "{message}", "type": "{kind}"}}}}', condition)


def _section(title: str, lines: Iterable[str]) -> str:
    return "\n".join([title, *(f"    {line}" for line in lines), ""])
