"""A rollout as text: what each group has now, and what it took."""

from slipstream.fleet.roll import GroupRoll, Rollout
from slipstream.fleet.transport import escape


def render_rollout(rollout: Rollout) -> str:
    """Write a line per group, and how it ended."""
    width = max(len(one.group) for one in rollout.groups)
    lines = [f"{one.group:<{width}}  {_describe(one)}" for one in rollout.groups]
    took = (rollout.changed_at - rollout.began_at).total_seconds()
    lines += ["", f"rollout {rollout.id}: {rollout.state} after {took:.0f} s"]
    if rollout.failure:
        lines.append(f"because of {escape(rollout.failure)}")
    if rollout.state == "stuck":
        lines.append("next: slipstream fleet status, then slipstream fleet roll --resume")
    return "\n".join(lines)


def _describe(one: GroupRoll) -> str:
    left = f"left to do: {', '.join(one.remaining)}" if one.remaining else f"{one.version} plan"
    took = ", ".join(f"{step} {seconds:.1f} s" for step, seconds in one.seconds.items())
    checks = [f"; {escape(said)}" for said in (one.verified, one.judged) if said]
    return left + (f" ({took})" if took else "") + "".join(checks)
