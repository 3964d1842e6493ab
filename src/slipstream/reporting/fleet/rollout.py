"""A rollout as text: what each group has now, and what it took."""

from slipstream.fleet.machines.commands import escape
from slipstream.fleet.rolling.rollout import GroupRoll, Rollout


def render_rollout(rollout: Rollout) -> str:
    """Write a line per group, and how it ended."""
    width = max(len(one.group) for one in rollout.groups)
    what = "plan" if rollout.drafter is None else "drafter"
    lines = [f"{one.group:<{width}}  {_describe(one, what)}" for one in rollout.groups]
    took = (rollout.changed_at - rollout.began_at).total_seconds()
    lines += ["", f"rollout {rollout.id}: {rollout.state} after {took:.0f} s"]
    if rollout.failure:
        lines.append(f"because of {escape(rollout.failure)}")
    if rollout.state == "rollback failed":
        lines.append("next: slipstream fleet status, then slipstream fleet roll --resume")
    return "\n".join(lines)


def _describe(one: GroupRoll, what: str) -> str:
    left = f"left to do: {', '.join(one.remaining)}" if one.remaining else f"{one.version} {what}"
    took = ", ".join(f"{step} {seconds:.1f} s" for step, seconds in one.seconds.items())
    checks = [f"; {escape(said)}" for said in (one.verified, one.judged) if said]
    return left + (f" ({took})" if took else "") + "".join(checks)
