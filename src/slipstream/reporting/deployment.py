"""What is unsafe in manifests, as text."""

from slipstream.deployment.hazards import HazardList


def render_hazards(found: HazardList) -> str:
    """List hazards, each with the setting that ends it."""
    seen = f"{found.objects} objects, of which {found.pods} make pods"
    if not found.hazards:
        return f"{seen}: nothing unsafe found"
    lines = [f"{seen}: {len(found.hazards)} hazards"]
    for hazard in found.hazards:
        lines += [f"{hazard.code}: {hazard.message}", f"  hint: {hazard.hint}"]
    return "\n".join(lines)
