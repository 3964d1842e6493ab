"""The options of `slipstream serve`, and the terms of a run that they ask for."""

import argparse

from slipstream.cli.options import OptionAdder, add_accept_changes, natural_number
from slipstream.errors import UsageError
from slipstream.serving.access.gate_file import GateRecording, read_rules
from slipstream.serving.run import Terms
from slipstream.steering.guardian import ACTIONS, GuardianRules


def add_access_options(add: OptionAdder) -> None:
    """Add the options for the address, the gate and recordings."""
    add = add.group("address and access")
    add("--bind ADDRESS", "address to listen on; other machines need a key (default 127.0.0.1)")
    add("--port N", "TCP port (default 8000)")
    add(
        "--tls FOLDER",
        "folder of a fleet's machine.pem, its .key and ca.pem; clients need a certificate of "
        "that authority, too (default: no TLS)",
    )
    add(
        "--gate FILE",
        "TOML file with the gate's routes, limits and key defaults (default: built-in rules)",
    )
    add("--no-gate", "serve bare vLLM without keys and limits, on this machine only")
    add("--record FOLDER", "record requests in this folder, for `slipstream train` (default: none)")
    add("--redact PATTERN ...", "regular expressions of text to remove from what --record writes")


def add_running_options(add: OptionAdder) -> None:
    """Add the options for how the engine is kept running."""
    add = add.group("running")
    add(
        "--fixed-length",
        "keep the planned draft length (default: adapt it to the measured cost of steps)",
    )
    add(
        "--guardian ACTIONS",
        "actions allowed when acceptance or speed falls, comma-separated: "
        f"{', '.join(ACTIONS)}; or off (default {','.join(GuardianRules().allowed)})",
        _read_actions,
    )
    add("--detach", "return once the server is ready, and leave it running")
    add(
        "--drain SECONDS",
        "time that open requests have to finish when the run is stopped "
        f"(default {Terms().drain_seconds})",
        natural_number,
    )
    add(
        "--hold",
        "stay alive without an engine when starts keep failing, so that a container's "
        "restart policy does not try again",
    )
    add(
        "--dry-run",
        "check keys, address and certificate, print the plan as it would be served, with the "
        "gate's settings, and exit",
    )
    add("--unit", "print a systemd unit for a saved plan, and exit")
    add_accept_changes(add)


def read_terms(options: argparse.Namespace, terms: Terms) -> Terms:
    """Return the terms with the options applied."""
    recording = terms.recording
    if options.record is not None:
        recording = GateRecording(folder=options.record.expanduser().resolve())
    if options.redact is not None:
        if recording is None:
            raise UsageError(
                "--redact needs --record",
                hint="slipstream serve TARGET --record FOLDER --redact PATTERN",
            )
        recording = GateRecording(
            folder=recording.folder,
            limit_bytes=recording.limit_bytes,
            redact=tuple(options.redact),
        )
    gate = _read_gate(options, terms)
    drain = terms.drain_seconds if options.drain is None else options.drain
    return terms.model_copy(
        update={
            "drain_seconds": drain,
            "recording": recording,
            "detached": options.detach,
            "guardian": options.guardian or terms.guardian,
            "steered": terms.steered and not options.fixed_length,
            **gate,
        }
    )


def _read_actions(text: str) -> GuardianRules:
    """Parse the guardian's actions; argparse names the option in its error message."""
    words = () if text == "off" else tuple(text.split(","))
    if unknown := [word for word in words if word not in ACTIONS]:
        raise argparse.ArgumentTypeError(f"'{unknown[0]}' is not one of {', '.join(ACTIONS)}, off")
    return GuardianRules(allowed=tuple(action for action in ACTIONS if action in words))


def _read_gate(options: argparse.Namespace, terms: Terms) -> dict[str, object]:
    """Read the gate's rules, unless the gate is off."""
    gated = not options.no_gate and (terms.gated or options.gate is not None)
    if not gated and (options.gate or options.record or options.redact):
        raise UsageError(
            "--gate, --record and --redact need the gate, which --no-gate turns off",
            hint="slipstream serve TARGET --no-gate, without them",
        )
    if options.gate is None:
        return {"gated": gated}
    file = options.gate.expanduser().resolve()
    return {"gated": True, "gate_file": file, "gate_rules": read_rules(file)}
