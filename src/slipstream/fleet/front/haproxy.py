"""The front as HAProxy's configuration: what clients reach, and the way to every gate.

```
clients --TLS--> front --> vllm-router --> leg of a group --mutual TLS--> gate of the group
                 front ------------------------------------mutual TLS--> gate of a group
```

A leg is a loopback port that leads to one group. It answers the router's questions for health and
load from what HAProxy knows of the group, and while the group is closed or gone it leads to the
next ones, so that a request which the router sends there too late is not lost. Only what never
reached an engine is repeated: a refused connection, or a gate's own 503.

What the router would do wrong goes past it: `GET /v1/models` (it asks its first worker, up or not),
`/v1/responses` (it drops the key), Anthropic's routes (it has none), and requests for what
speculation cannot do, if some groups have none. Without the router, while it is started again, the
front balances by itself.

All paths are relative to the folder of the configuration, in which HAProxy is started.
"""

from collections.abc import Iterable, Sequence

from slipstream.errors import InvalidInputError
from slipstream.fleet.front.router import LOOPBACK, find_leg_port, find_router_port
from slipstream.fleet.plan import RoutedGroup, RouterPlan
from slipstream.serving.access.gate_file import ROUTES, USUAL_ROUTES

ADMIN_SOCKET = "admin.sock"
KEY_LIST = "keys.list"
SERVER_STATES = "servers.state"
# How many other groups stand in for one that is closed.
NEIGHBOURS = 2
# Bodies up to here are searched for what speculation cannot do: about 32,000 tokens of text.
SEARCHED_BYTES = 128 << 10
CONNECTIONS = 4096

# What vllm-router 0.1.16 balances. It has /v1/responses, too, but drops every header of it, the key
# included; everything else it hands on to one worker or to all.
_BALANCED = ("/v1/chat/completions", "/v1/completions")
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
    retries 1
    option redispatch 1
    retry-on conn-failure 503
"""
_CHECK = "check inter 1s fastinter 300ms downinter 1s fall 2 rise 1"
# So that clients and logs can tell who answered.
_SAY_GROUP = "http-response set-header x-slipstream-group %s"
_TLS = "default-server ssl verify required ca-file ../tls/ca.pem crt ../tls/machine.pem"


def render_front(router: RouterPlan) -> str:
    """Write the configuration for a fleet's front."""
    if not router.groups:
        raise InvalidInputError(
            "no group has an address, so there is nothing to route to",
            hint="give each first machine an address in fleet.toml",
        )
    parts = [
        _GLOBAL,
        _render_clients(router),
        _render_router(router),
        _render_balanced("gates", router.groups),
    ]
    if is_mixed(router):
        parts.append(_render_balanced("plain", _list_plain(router)))
    parts += [_render_leg(router, at) for at in range(len(router.groups))]
    return "\n".join(parts)


def name_leg(group: str) -> str:
    """Name the backend that has a group's health and state."""
    return f"leg-{group}"


def is_mixed(router: RouterPlan) -> bool:
    """Say whether some groups draft and others do not."""
    return 0 < len(_list_plain(router)) < len(router.groups)


def _list_plain(router: RouterPlan) -> list[RoutedGroup]:
    return [one for one in router.groups if not one.speculation]


def _render_clients(router: RouterPlan) -> str:
    routes = [route.split(" ", 1) for name in USUAL_ROUTES for route in ROUTES[name]]
    # Responses are not stored, so there are none to be found by their id.
    planned = [(method, path) for method, path in routes if "{" not in path]
    gets = " ".join(path for method, path in planned if method == "GET")
    posts = " ".join(path for method, path in planned if method == "POST")
    balanced = " ".join(path for path in _BALANCED if path in posts.split())
    lines = [
        f"bind :{router.port} ssl crt ../tls/front.pem alpn h2,http/1.1",
        # The gate takes nobody for this machine who comes with it.
        "option forwardfor",
        # The router's own: any page may read what it gets.
        "http-response del-header access-control -m beg",
        *_answer("200", '{"state": "alive"}', "{ path /livez }"),
        *_answer("200", '{"state": "ready"}', "{ path /readyz } { nbsrv(gates) gt 0 }"),
        *_answer("503", '{"state": "no group is ready"}', "{ path /readyz }"),
        f"acl posted path {posts}",
        f"acl read path {gets}",
        *_refuse(
            *("404", "not_found_error", "there is nothing here"),
            "!{ method POST } !read or !{ method GET HEAD } !posted or !posted !read",
        ),
        # vllm-router asks nobody for a key: strangers end here, before a body is read.
        "http-request set-var(txn.bearer) "
        'req.hdr(authorization),regsub("^[Bb]earer +",""),sha2(256),hex,lower',
        "http-request set-var(txn.key) req.hdr(x-api-key),sha2(256),hex,lower",
        f"acl known var(txn.bearer) -m str -f {KEY_LIST}",
        f"acl known var(txn.key) -m str -f {KEY_LIST}",
        *_refuse("401", "authentication_error", "this needs a valid key", "!known"),
        *_list_session(router),
    ]
    if is_mixed(router):
        lines += [
            "option http-buffer-request",
            f"acl unsupported req.body -m reg {_quote(UNSUPPORTED)}",
            "use_backend plain if unsupported { nbsrv(plain) gt 0 }",
        ]
    lines += [
        f"acl balanced path {balanced}",
        "use_backend router if balanced { srv_is_up(router/_router) }",
        "default_backend gates",
    ]
    return _section("frontend clients", lines)


def _list_session(router: RouterPlan) -> list[str]:
    """Have every request in some session: without one, the router sends all to one worker."""
    if router.policy != "session":
        return ["http-request del-header x-session-id"]
    absent = "!{ req.hdr(x-session-id) -m found }"
    return [f"http-request set-header x-session-id %[var(txn.bearer)]%[src] if {absent}"]


def _render_router(router: RouterPlan) -> str:
    place = f"{LOOPBACK}:{find_router_port(router)}"
    return _section(
        "backend router",
        [
            "option httpchk GET /liveness",
            "balance first",
            _TLS,
            f"server _router {place} id 1 no-ssl no-check-ssl check inter 500ms fall 2 rise 1",
            # For what comes between its end and the next look at it.
            *_list_servers(router.groups, first_id=2),
        ],
    )


def _render_balanced(name: str, groups: Sequence[RoutedGroup]) -> str:
    return _section(
        f"backend {name}", ["balance leastconn", _TLS, _SAY_GROUP, *_list_servers(groups)]
    )


def _render_leg(router: RouterPlan, at: int) -> str:
    """Write the way to a group; its server is the one whose health and state all others follow."""
    group, others = router.groups[at], _list_neighbours(router.groups, at)
    name = group.group
    place = f"{LOOPBACK}:{find_leg_port(router, name)}"
    up = f"{{ srv_is_up({name_leg(name)}/{name}) }}"
    counted = [name_leg(name), "gates", "router", *_list_plain_backends(router, group)]
    front = [
        f"bind {place}",
        "option dontlog-normal",
        # At its start the router asks for /health, whatever it was told.
        *_answer("200", '{"state": "ready"}', f"{{ path /readyz /health }} {up}"),
        *_answer("503", '{"state": "closed"}', "{ path /readyz /health }"),
        *_answer("200", f'{{"load": {CONNECTIONS}}}', "{ path /get_load }", f"!{up}"),
        "http-request set-var(txn.load) int(0)",
        *(
            f"http-request set-var(txn.load) srv_conn({backend}/{name}),add(txn.load)"
            for backend in counted
        ),
        "http-request return status 200 content-type application/json "
        "lf-string '{\"load\": %[var(txn.load)]}' if { path /get_load }",
        f"default_backend {name_leg(name)}",
    ]
    checked = f"server {name} {_locate(group)} id 1 {_name(group)} {_CHECK}"
    back = [
        "balance first",
        _TLS,
        _SAY_GROUP,
        "option httpchk",
        f"http-check send meth GET uri /readyz hdr Host {group.machine}",
        "http-check expect status 200",
        "load-server-state-from-file global",
        checked,
        *_list_servers(others, first_id=2),
    ]
    return (
        _section(f"frontend to-{name}", front) + "\n" + _section(f"backend {name_leg(name)}", back)
    )


def _list_plain_backends(router: RouterPlan, group: RoutedGroup) -> list[str]:
    return ["plain"] if is_mixed(router) and not group.speculation else []


def _list_neighbours(groups: Sequence[RoutedGroup], at: int) -> list[RoutedGroup]:
    following = [*groups[at + 1 :], *groups[:at]]
    return following[:NEIGHBOURS]


def _list_servers(groups: Iterable[RoutedGroup], first_id: int = 1) -> list[str]:
    return [
        f"server {one.group} {_locate(one)} id {number} {_name(one)} "
        f"track {name_leg(one.group)}/{one.group}"
        for number, one in enumerate(groups, start=first_id)
    ]


def _locate(group: RoutedGroup) -> str:
    address = f"[{group.address}]" if ":" in group.address else group.address
    return f"{address}:{group.port}"


def _name(group: RoutedGroup) -> str:
    """Have the machine show a certificate for its own name."""
    return f"sni str({group.machine}) check-sni {group.machine} verifyhost {group.machine}"


def _answer(status: str, body: str, *conditions: str) -> list[str]:
    return [
        f"http-request return status {status} content-type application/json "
        f"string '{body}' if {' '.join(conditions)}"
    ]


def _refuse(status: str, kind: str, message: str, condition: str) -> list[str]:
    return _answer(status, f'{{"error": {{"message": "{message}", "type": "{kind}"}}}}', condition)


def _quote(pattern: str) -> str:
    """Make one word of a pattern: between single quotes HAProxy reads nothing into it."""
    return f"'{pattern}'"


def _section(title: str, lines: Iterable[str]) -> str:
    return "\n".join([title, *(f"    {line}" for line in lines), ""])
