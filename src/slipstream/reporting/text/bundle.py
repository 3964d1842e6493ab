"""A `BundleList` as text: what an archive holds, and that it can be read before it is sent."""

from slipstream.reporting.tables import align
from slipstream.serving.support.bundle import BundleList


def render_bundle(bundle: BundleList) -> str:
    """List the files of an archive with their sizes."""
    rows = [(one.name, f"{one.size_bytes:,} bytes", one.holds) for one in bundle.files]
    left_out = "left out: prompts, answers, keys, names, addresses, paths, private models"
    return "\n".join([*align(rows), "", left_out])
