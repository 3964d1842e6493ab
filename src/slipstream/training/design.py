"""The drafter's design, each setting with its reason.

A warm start brings its own design: only the schedule is free then. Layer ids count hidden
states, of which the first is the embedding, as speculators does; z-lab's are one lower.
"""

from collections.abc import Sequence
from typing import TypeVar

from slipstream.checkpoints.checkpoint import Checkpoint, DraftPart
from slipstream.errors import InvalidInputError
from slipstream.planning.plan import Decision
from slipstream.planning.settings import Source
from slipstream.training.run import DrafterDesign, Method, TrainOptions

SMALL_TARGET_PARAMETERS = 1_000_000_000
LARGE_SHAPE, SMALL_SHAPE, EAGLE3_SHAPE = (5, 16), (3, 8), (1, 6)
EAGLE3_FEATURES = 3

Value = TypeVar("Value")


def decide_design(
    target: Checkpoint,
    inner_size: int,
    free_tokens: Sequence[int],
    options: TrainOptions,
    method: Method = "dflash",
) -> tuple[DrafterDesign, tuple[Decision, ...]]:
    defaults = _describe_eagle3(target) if method == "eagle3" else _describe_dflash(target)
    parts: dict[str, object] = {"method": method, "mask_token_id": options.mask_token_id}
    if method != "eagle3":
        because = "the first token that neither text nor the chat template uses"
        mask = options.mask_token_id
        defaults["mask_token_id"] = (find_mask(free_tokens) if mask is None else None, because)
    defaults["intermediate_size"] = (inner_size, "as in the target")
    decisions = []
    for name, (default, because) in defaults.items():
        flag = "--layer-ids" if name == "target_layer_ids" else f"--{name.replace('_', '-')}"
        option = getattr(options, name)
        parts[name], decision = decide(flag, option, default, because, "checkpoint")
        decisions.append(decision)
    return DrafterDesign.model_validate(parts), tuple(decisions)


def decide(
    flag: str, option: Value | None, default: Value, because: str, source: Source = "default"
) -> tuple[Value, Decision]:
    """Return the user's value, or else the default, as a value and as a decision."""
    value = default if option is None else option
    if option is not None:
        source, because = "user", "requested"
    parts = value if isinstance(value, tuple) else (value,)
    shown = " ".join(f"{part:g}" if isinstance(part, float) else str(part) for part in parts)
    return value, Decision(flag=flag, value=shown, source=source, because=because)


def _describe_dflash(target: Checkpoint) -> dict[str, tuple[object, str]]:
    # At two bytes per weight: close enough to choose a shape.
    parameters = 0 if target.weights is None else target.weights.total_bytes / 2
    small = parameters < SMALL_TARGET_PARAMETERS
    layers, block = SMALL_SHAPE if small else LARGE_SHAPE
    side = "below" if small else "above"
    why = f"the target has {parameters / 1e9:.2f} B parameters, {side} one billion"
    spread = "spread from the second to the third last layer, as z-lab's drafters are"
    return {
        "layers": (layers, why),
        "block_size": (block, why),
        "target_layer_ids": (spread_evenly(2, (target.layer_count or 0) - 2), spread),
    }


def spread_evenly(first: int, last: int, count: int = 5) -> tuple[int, ...]:
    """Return layers evenly spread from the first to the last; fewer if there are not so many."""
    step = (last - first) / (count - 1)
    return tuple(sorted({round(first + step * number) for number in range(count)}))


def _describe_eagle3(target: Checkpoint) -> dict[str, tuple[object, str]]:
    layers, block = EAGLE3_SHAPE
    count = target.layer_count or 0
    why = "the anchor and five draft tokens, each of which takes a pass of the head"
    states = (2, count // 2, count - 3)
    return {
        "layers": (layers, "an EAGLE-3 head has one layer"),
        "block_size": (block, why),
        "target_layer_ids": (states, "an early, the middle and a late one, EAGLE-3's own"),
    }


def find_mask(free_tokens: Sequence[int]) -> int:
    if free_tokens:
        return free_tokens[0]
    raise InvalidInputError(
        "no token of the target's vocabulary is free to serve as the mask",
        hint="a token that never occurs in your text: --mask-token-id ID",
    )


def design_of(drafter: Checkpoint, draft: DraftPart, inner_size: int) -> DrafterDesign:
    return DrafterDesign(
        layers=drafter.layer_count or 0,
        intermediate_size=inner_size,
        block_size=draft.block_size or 0,
        target_layer_ids=tuple(layer + 1 for layer in draft.layer_outputs or ()),
        mask_token_id=draft.mask_token_id,
    )


def require_valid(design: DrafterDesign, target: Checkpoint) -> None:
    """Refuse a design that the target cannot serve, with every fault at once."""
    faults = []
    layers, ids, mask = target.layer_count or 0, design.target_layer_ids, design.mask_token_id
    if list(ids) != sorted(set(ids)):
        faults.append(f"layer ids {ids} are not in rising order")
    if any(not 1 <= layer < layers for layer in ids):
        known = f"the target has those from 1 to {layers - 1}"
        faults.append(f"layer ids {ids} count hidden states; {known}")
    faults += _find_eagle3_faults(design) if design.method == "eagle3" else []
    vocabulary = target.vocabulary_size or 0
    if mask is not None and not 0 <= mask < vocabulary:
        faults.append(f"mask token {mask} is outside the vocabulary of {vocabulary} tokens")
    if design.block_size < 2:
        faults.append(f"a block of {design.block_size} has no draft token")
    if faults:
        raise InvalidInputError(
            f"this drafter cannot be trained for {target.name}",
            details=tuple(faults),
            hint="to see what would be chosen: slipstream train TARGET --prompts FILE --dry-run",
        )


def _find_eagle3_faults(design: DrafterDesign) -> list[str]:
    faults, states = [], len(design.target_layer_ids)
    if design.layers != 1:
        faults.append(f"an EAGLE-3 head is trained with one layer, not {design.layers}")
    if states != EAGLE3_FEATURES:
        faults.append(
            f"vLLM reads {EAGLE3_FEATURES} hidden states for an EAGLE-3 head, not {states}"
        )
    if design.mask_token_id is not None:
        faults.append("EAGLE-3 has no mask token: it reads the tokens that it drafted")
    return faults
