"""The requirements of a client that a run's plan answers, without a request."""

from slipstream.clients.connection import Check, Client
from slipstream.clients.served import ServedModel
from slipstream.measuring.client.endpoint import KEY_VARIABLE
from slipstream.serving.access.gate_file import GateRules

PARSER_HINT = (
    "slipstream serve TARGET -- --enable-auto-tool-choice --tool-call-parser PARSER; "
    "docs/agents.md has the parsers by family"
)


def check_plan(client: Client, served: ServedModel) -> list[Check]:
    """Return what the plan of a run keeps from a client, without a request."""
    run = served.run
    if run is None:
        return []
    checks = []
    if served.key.required and not served.key.secret:
        message = f"the server needs a key, and there is none in {KEY_VARIABLE} or --key FILE"
        hint = f"slipstream keys new --name {client.name} > {client.name}.key; "
        hint += f"slipstream connect {client.name} --key {client.name}.key"
        checks.append(Check(what="key", works=False, message=message, hint=hint))
    if client.wants_plain_name and "/" in served.name:
        message = f"{client.title} takes no model name with a slash, as {served.name} has"
        short = served.name.rpartition("/")[2]
        hint = f"slipstream serve TARGET -- --served-model-name {short} {served.name}"
        checks.append(Check(what="model name", works=False, message=message, hint=hint))
    rules = run.terms.gate_rules or GateRules()
    closed = [route for route in client.routes if route not in rules.routes]
    if run.terms.gated and closed:
        routes = ", ".join(f'"{route}"' for route in (*rules.routes, *closed))
        hint = f"slipstream serve TARGET --gate FILE, with routes = [{routes}] in it"
        checks.append(Check(what="route", works=False, message=f"closed: {closed[0]}", hint=hint))
    needed = client.agent_context
    if needed and served.context and served.context < needed:
        message = f"{client.title} sends about {needed:,} tokens at first, and the context is "
        message += f"{served.context:,}"
        roomy = -(-3 * needed // 8192) * 8192
        hint = f"slipstream serve TARGET --context {roomy}"
        checks.append(Check(what="context", works=False, message=message, hint=hint))
    if needed and run.plan.settings.tool_parser is None:
        message = "the engine has no tool-call parser: calls come as text"
        checks.append(Check(what="tool calls", works=False, message=message, hint=PARSER_HINT))
    return checks
