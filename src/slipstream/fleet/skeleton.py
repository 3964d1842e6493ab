"""The text of a fleet.toml to begin with, with the keys that people change."""

import json
import re
from collections.abc import Sequence


def render_skeleton(
    name: str, machines: Sequence[str], *, target: str, drafter: str | None, together: bool
) -> str:
    """Write a file with a table per machine, and a group over all of them or one for each."""
    names = dict(zip(_name_machines(machines), machines, strict=True))
    lines = [
        f"name = {_quote(name)}",
        "",
        "[model]",
        f"target = {_quote(target)}",
        f"drafter = {_quote(drafter)}" if drafter else '# drafter = "OWNER/MODEL"',
        "",
        "[wishes]",
        "# context = 32768",
        "# users = 4",
    ]
    for short, ssh in names.items():
        lines += ["", f"[machines.{_quote(short)}]", f"ssh = {_quote(ssh)}"]
    groups = {"all": list(names)} if together else {short: [short] for short in names}
    for group, members in groups.items():
        listed = ", ".join(map(_quote, members))
        lines += ["", f"[groups.{_quote(group)}]", f"machines = [{listed}]"]
    lines += [
        "",
        "# [keys]",
        '# file = "keys.json"',
        "",
        "# [router]",
        f"# machine = {_quote(next(iter(names)))}",
    ]
    return "\n".join(lines) + "\n"


def _name_machines(machines: Sequence[str]) -> list[str]:
    """Name machines after their hosts, in letters that a name may have; twins get a number."""
    names: list[str] = []
    for machine in machines:
        host = machine.rpartition("@")[2].partition(":")[0].strip("[]").lower()
        short = re.sub(r"[^a-z0-9._-]", "-", host).strip("._-") or "machine"
        same = sum(one == short or one.startswith(f"{short}-") for one in names)
        names.append(f"{short}-{same + 1}" if short in names else short)
    return names


def _quote(text: str) -> str:
    """Write a TOML string; JSON's escapes are among TOML's."""
    return json.dumps(text)
