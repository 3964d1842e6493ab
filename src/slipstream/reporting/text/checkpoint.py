"""A `Checkpoint` and a `Pairing` as text."""

from slipstream.checkpoints.checkpoint import Checkpoint, DraftPart, Layers
from slipstream.checkpoints.pairing import Fault, Pairing
from slipstream.reporting.tables import align
from slipstream.units import UNKNOWN, show_bytes, show_number


def render_checkpoint(checkpoint: Checkpoint) -> str:
    """Return the facts of a checkpoint, unknown ones named as such."""
    quantization = checkpoint.quantization
    stored = f"{quantization.scheme} ({quantization.method})" if quantization else None
    plain = checkpoint.dtype or UNKNOWN if checkpoint.quantized is False else UNKNOWN
    rows = [
        ("model", checkpoint.name),
        ("revision", checkpoint.revision or UNKNOWN),
        ("facts from", checkpoint.source),
        ("class", checkpoint.architecture or UNKNOWN),
        ("layers", _describe_layers(checkpoint.layers)),
        ("hidden size", show_number(checkpoint.hidden_size)),
        ("vocabulary", show_number(checkpoint.vocabulary_size)),
        ("context", show_number(checkpoint.context, "tokens")),
        ("rope", _describe_rope(checkpoint)),
        ("stored as", stored or plain),
        ("weights", _describe_weights(checkpoint)),
        ("modalities", ", ".join(("text", *(checkpoint.modalities or ())))),
        ("licence", checkpoint.licence or UNKNOWN),
        ("gated", {True: "yes", False: "no", None: UNKNOWN}[checkpoint.gated]),
    ]
    if checkpoint.experts is not None:
        active = show_number(checkpoint.experts.active)
        rows.insert(5, ("experts", f"{checkpoint.experts.total}, {active} per token"))
    if checkpoint.draft is not None:
        rows += _describe_draft(checkpoint.draft)
    return "\n".join(align(rows))


def render_pairing(pairing: Pairing) -> str:
    """Return both checkpoints and every fault between them."""
    refused = [fault for fault in pairing.faults if fault.verdict == "refuse"]
    codes = ", ".join(fault.code for fault in refused)
    verdict = f"do not fit: {codes}" if refused else "fit"
    return "\n\n".join(
        [
            render_checkpoint(pairing.target),
            render_checkpoint(pairing.drafter),
            "\n".join([f"they {verdict}", *render_faults(pairing.faults)]),
        ]
    )


def render_faults(faults: tuple[Fault, ...]) -> list[str]:
    """Write each fault with its way out."""
    words = {"refuse": "refused", "warn": "warning"}
    return [
        line
        for fault in faults
        for line in (
            f"{words[fault.verdict]} ({fault.code}): {fault.message}",
            f"  hint: {fault.hint}",
        )
    ]


def _describe_layers(layers: tuple[Layers, ...] | None) -> str:
    if layers is None:
        return UNKNOWN
    return ", ".join(_describe_part(part) for part in layers)


def _describe_part(part: Layers) -> str:
    if part.kind in ("recurrent", "shared"):
        return f"{part.count} {part.kind}"
    heads, size = show_number(part.key_value_heads), show_number(part.head_size)
    window = f" in a window of {part.window}" if part.window else ""
    return f"{part.count} {part.kind} ({heads} KV heads of {size}{window})"


def _describe_rope(checkpoint: Checkpoint) -> str:
    rope = checkpoint.rope
    if rope is None:
        return UNKNOWN
    theta = UNKNOWN if rope.theta is None else f"{rope.theta:g}"
    factor = f" x{rope.factor:g}" if rope.factor else ""
    return f"theta {theta}, scaling {rope.scaling or UNKNOWN}{factor}"


def _describe_weights(checkpoint: Checkpoint) -> str:
    weights = checkpoint.weights
    if weights is None:
        return UNKNOWN
    kinds = ", ".join(f"{kind} {show_bytes(size)}" for kind, size in weights.bytes_by_dtype.items())
    return f"{show_bytes(weights.total_bytes)}{f' ({kinds})' if kinds else ''}"


def _describe_draft(draft: DraftPart) -> list[tuple[str, str]]:
    ids = draft.target_layer_ids
    listed = UNKNOWN if ids is None else ", ".join(map(str, ids))
    outputs = draft.layer_outputs
    counted = "" if outputs is None else f" (outputs of layers {', '.join(map(str, outputs))})"
    return [
        ("drafts as", f"{draft.family}, {draft.layout or UNKNOWN} layout"),
        ("block", f"{show_number(draft.block_size)}, drafts {show_number(draft.longest_draft)}"),
        ("reads", f"{listed}{counted}"),
        ("mask token", show_number(draft.mask_token_id)),
        ("head", {True: "its own", False: "the target's", None: UNKNOWN}[draft.own_head]),
        ("draft words", show_number(draft.draft_vocabulary) if draft.draft_vocabulary else "all"),
    ]
