"""What is unsafe in manifests, as text."""

from slipstream.deployment.hazards import HazardList


def render_hazards(found: HazardList) -> str:
    """List hazards, each with the setting that ends it."""
    if not found.hazards:
        return f"{found.objects} objects, and nothing unsafe found in them"
    lines = [f"{len(found.hazards)} hazards in {found.objects} objects"]
    for hazard in found.hazards:
        lines += [f"{hazard.code}: {hazard.message}", f"  hint: {hazard.hint}"]
    return "\n".join(lines)
