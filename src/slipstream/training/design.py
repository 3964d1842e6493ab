"""The drafter's design and schedule, each setting with its reason.

A warm start brings its own design: only the schedule is free then. Layer ids count hidden
states, of which the first is the embedding, as speculators does; z-lab's are one lower.
"""

from collections.abc import Collection
from dataclasses import dataclass

from slipstream.checkpoints.checkpoint import Checkpoint
from slipstream.errors import InvalidInputError
from slipstream.planning.plan import Decision
from slipstream.records import Record
from slipstream.training.settings import DrafterDesign, Method

SMALL_TARGET_PARAMETERS = 1_000_000_000
LARGE_SHAPE, SMALL_SHAPE = (5, 16), (3, 8)
EAGLE3_SHAPE = (1, 6)
FEATURES, EAGLE3_FEATURES = 5, 3


class Asked(Record):
    """The parts of the design that the user set; None leaves a part to us."""

    layers: int | None = None
    block_size: int | None = None
    target_layer_ids: tuple[int, ...] | None = None
    mask_token_id: int | None = None
    intermediate_size: int | None = None


class Vocabulary(Record):
    """What a tokenizer says about the tokens that could serve as a mask."""

    size: int
    special: tuple[int, ...]
    used: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Default:
    """The default of a part of the design, and why."""

    flag: str
    value: object
    because: str


def decide_design(
    target: Checkpoint,
    inner_size: int,
    vocabulary: Vocabulary,
    asked: Asked,
    method: Method = "dflash",
) -> tuple[DrafterDesign, tuple[Decision, ...]]:
    """Return the design of a new drafter for a target, with its decisions."""
    defaults = _describe_eagle3(target) if method == "eagle3" else _describe_dflash(target)
    parts: dict[str, object] = {"method": method, "mask_token_id": asked.mask_token_id}
    if method != "eagle3":
        mask = find_mask_token(vocabulary) if asked.mask_token_id is None else None
        because = "the first token that neither text nor the chat template uses"
        defaults["mask_token_id"] = _Default("--mask-token-id", mask, because)
    inner = _Default("--intermediate-size", inner_size, "as in the target")
    decisions = []
    for name, default in (defaults | {"intermediate_size": inner}).items():
        wish = getattr(asked, name)
        parts[name] = default.value if wish is None else wish
        decisions.append(_decide(default, wish))
    return DrafterDesign.model_validate(parts), tuple(decisions)


def _describe_dflash(target: Checkpoint) -> dict[str, _Default]:
    parameters = _count_parameters(target)
    small = parameters < SMALL_TARGET_PARAMETERS
    layers, block = SMALL_SHAPE if small else LARGE_SHAPE
    size = f"{parameters / 1e9:.2f} B parameters, {'below' if small else 'above'} one billion"
    why = f"the target has {size}"
    return {
        "layers": _Default("--layers", layers, why),
        "block_size": _Default("--block-size", block, why),
        "target_layer_ids": _Default(
            "--layer-ids",
            spread_states(target.layer_count or 0),
            "spread from the second to the third last layer, as z-lab's drafters are",
        ),
    }


def _describe_eagle3(target: Checkpoint) -> dict[str, _Default]:
    layers, block = EAGLE3_SHAPE
    return {
        "layers": _Default("--layers", layers, "an EAGLE-3 head has one layer"),
        "block_size": _Default(
            "--block-size",
            block,
            "the anchor and five draft tokens, each of which takes a pass of the head",
        ),
        "target_layer_ids": _Default(
            "--layer-ids",
            choose_eagle3_states(target.layer_count or 0),
            "an early, the middle and a late one, EAGLE-3's own",
        ),
    }


def _decide(default: _Default, wish: object) -> Decision:
    chosen = default.value if wish is None else wish
    shown = " ".join(map(str, chosen)) if isinstance(chosen, tuple) else str(chosen)
    if wish is None:
        return Decision(
            flag=default.flag, value=shown, source="checkpoint", because=default.because
        )
    return Decision(flag=default.flag, value=shown, source="user", because="requested")


def design_of(drafter: Checkpoint, inner_size: int) -> DrafterDesign:
    """Read the design of a drafter that is to be trained further."""
    draft = drafter.draft
    if draft is None or draft.layer_outputs is None or draft.mask_token_id is None:
        raise InvalidInputError(
            f"{drafter.name} is not a DFlash drafter that states its layers and mask token",
            hint=f"slipstream models {drafter.name}",
        )
    return DrafterDesign(
        layers=drafter.layer_count or 0,
        intermediate_size=inner_size,
        block_size=draft.block_size or 0,
        target_layer_ids=tuple(layer + 1 for layer in draft.layer_outputs),
        mask_token_id=draft.mask_token_id,
    )


def spread_states(target_layers: int) -> tuple[int, ...]:
    """Return five hidden states, evenly spread from the second layer's to the third last's."""
    first, last = 2, target_layers - 2
    step = (last - first) / (FEATURES - 1)
    return tuple(sorted({round(first + step * number) for number in range(FEATURES)}))


def choose_eagle3_states(target_layers: int) -> tuple[int, ...]:
    """Return the three hidden states that EAGLE-3 heads read unless they say otherwise."""
    return (2, target_layers // 2, target_layers - 3)


def find_mask_token(vocabulary: Vocabulary) -> int:
    """Find a row of the embedding that no text needs: past the tokenizer's end, or special."""
    used: Collection[int] = set(vocabulary.used)
    for token in vocabulary.special:
        if token not in used:
            return token
    raise InvalidInputError(
        "no token of the target's vocabulary is free to serve as the mask",
        hint="slipstream train TARGET --mask-token-id ID, a token that never occurs in your text",
    )


def require_valid(design: DrafterDesign, target: Checkpoint) -> None:
    """Refuse a design that the target cannot serve, with every fault at once."""
    faults = []
    layers, ids = target.layer_count or 0, design.target_layer_ids
    if list(ids) != sorted(set(ids)):
        faults.append(f"layer ids {ids} are not in rising order")
    if any(not 1 <= layer < layers for layer in ids):
        faults.append(
            f"layer ids {ids} count hidden states; the target has those from 1 to {layers - 1}"
        )
    faults += _find_eagle3_faults(design) if design.method == "eagle3" else []
    mask = design.mask_token_id
    if mask is not None and not 0 <= mask < (target.vocabulary_size or 0):
        faults.append(
            f"mask token {design.mask_token_id} is outside the vocabulary of "
            f"{target.vocabulary_size} tokens"
        )
    if design.block_size < 2:
        faults.append(f"a block of {design.block_size} has no draft token")
    if faults:
        raise InvalidInputError(
            f"this drafter cannot be trained for {target.name}",
            details=tuple(faults),
            hint="slipstream train TARGET --dry-run shows what would be chosen",
        )


def _find_eagle3_faults(design: DrafterDesign) -> list[str]:
    faults = []
    if design.layers != 1:
        faults.append(f"an EAGLE-3 head is trained with one layer, not {design.layers}")
    if len(design.target_layer_ids) != EAGLE3_FEATURES:
        faults.append(
            f"vLLM reads {EAGLE3_FEATURES} hidden states for an EAGLE-3 head, "
            f"not {len(design.target_layer_ids)}"
        )
    if design.mask_token_id is not None:
        faults.append("EAGLE-3 has no mask token: it reads the tokens that it drafted")
    return faults


def _count_parameters(target: Checkpoint) -> float:
    """Return the number of parameters at two bytes per weight, close enough to choose a shape."""
    return 0 if target.weights is None else target.weights.total_bytes / 2
