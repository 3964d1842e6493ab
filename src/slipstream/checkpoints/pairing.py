"""`Pairing`: does this drafter fit this target, fault by fault, before anything is started.

vLLM 0.32 checks almost none of this: most wrong pairs start, and then draft nothing that is
accepted, or die at the first request. What only an engine decides (its runner, its table of
targets) is in `slipstream.engines`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import isclose
from typing import Any, Literal

from pydantic import Field

from slipstream.checkpoints.checkpoint import Checkpoint, DraftPart
from slipstream.records import Record


class Fault(Record):
    """One thing that is wrong with a pair, with its values and the way out."""

    code: str
    verdict: Literal["refuse", "warn"]
    message: str = Field(min_length=1)
    hint: str = Field(min_length=1)


def refuse(code: str, message: str, hint: str) -> Fault:
    return Fault(code=code, verdict="refuse", message=message, hint=hint)


def warn(code: str, message: str, hint: str) -> Fault:
    return Fault(code=code, verdict="warn", message=message, hint=hint)


def differ(ours: Any, theirs: Any) -> bool:
    """Return whether two facts are known and not the same."""
    if ours is None or theirs is None:
        return False
    if isinstance(ours, float) and isinstance(theirs, float):
        return not isclose(ours, theirs, rel_tol=1e-6)
    return bool(ours != theirs)


# EAGLE's and vLLM's own examples pair 8B with 70B and 0.6B with 8B.
LEAST_TIMES_SMALLER = 3


class Pairing(Record):
    """A target, a drafter, and everything that keeps them apart."""

    schema_version: Literal[1] = 1
    target: Checkpoint
    drafter: Checkpoint
    draft_length: int | None
    context: int | None
    faults: tuple[Fault, ...]

    @property
    def refusals(self) -> tuple[Fault, ...]:
        return tuple(fault for fault in self.faults if fault.verdict == "refuse")


def pair(
    target: Checkpoint,
    drafter: Checkpoint,
    *,
    draft_length: int | None = None,
    context: int | None = None,
    as_model: bool = False,
) -> Pairing:
    """Compare a drafter with a target, at the draft length and context that are wanted.

    With `as_model` it drafts as the language model that it is, knowing nothing of the target.
    """
    draft = drafter.draft
    faults: list[Fault] = []
    if as_model:
        faults += find_model_faults(target, drafter)
        faults += find_short_context(target, drafter, context)
    elif draft is None:
        kind = drafter.architecture or "model"
        hint = f"--method draft_model for a smaller model, or slipstream models {target.name}"
        faults.append(refuse("not-a-drafter", f"{drafter.name} is a {kind}, not a drafter", hint))
    else:
        length = draft_length if draft_length is not None else draft.longest_draft
        faults += find_vocabulary(target, drafter)
        for check in SHAPE_CHECKS:
            faults += check(_Pair(target, drafter, draft))
        faults += find_long_draft(drafter, draft, length)
        if not is_stretched(draft):
            faults += find_short_context(target, drafter, context)
    return Pairing(
        target=target,
        drafter=drafter,
        draft_length=draft_length,
        context=context,
        faults=tuple(faults),
    )


def find_model_faults(target: Checkpoint, drafter: Checkpoint) -> Iterator[Fault]:
    """A model drafts for another if both mean the same by every token, and if it is smaller."""
    if drafter.draft is not None:
        family = drafter.draft.family
        message = f"{drafter.name} is a drafter ({family}), not a language model of its own"
        yield refuse("not-a-model", message, f"--method {family}")
        return
    yield from find_vocabulary(target, drafter)
    if drafter.weights is None or target.weights is None:
        return
    share = drafter.weights.total_bytes / target.weights.total_bytes
    if share * LEAST_TIMES_SMALLER > 1:
        yield warn(
            "draft-model-size",
            f"{drafter.name} has {share:.0%} of the weights of {target.name}, "
            "and every draft token takes a pass over them",
            "a model of at most a tenth of the target's size, or another --method",
        )


def is_stretched(draft: DraftPart | None) -> bool:
    """Return whether vLLM gives the drafter as many positions as its target has (vllm#48894)."""
    return draft is not None and draft.family in ("eagle", "eagle3")


@dataclass(frozen=True, slots=True)
class _Pair:
    """What a check looks at."""

    target: Checkpoint
    drafter: Checkpoint
    draft: DraftPart

    def misfit(self, code: str, message: str) -> Fault:
        """Return a fault that another drafter would not have."""
        return refuse(code, message, f"slipstream models {self.target.name}")


def find_long_draft(drafter: Checkpoint, draft: DraftPart, length: int | None) -> Iterator[Fault]:
    """vLLM drafts past the trained block without a word; those positions are noise."""
    longest = draft.longest_draft
    if length is not None and longest is not None and length > longest:
        message = f"{length} draft tokens were requested, but {drafter.name} was trained on "
        message += f"blocks of {draft.block_size} and drafts at most {longest}"
        yield refuse("draft-length", message, f"--k {longest}")


def find_short_context(
    target: Checkpoint, drafter: Checkpoint, context: int | None
) -> Iterator[Fault]:
    """Past the drafter's context V1 stops drafting, and V2 reads out of bounds (vllm#57941)."""
    served = context if context is not None else target.context
    if served is None or drafter.context is None or drafter.context >= served:
        return
    message = f"{drafter.name} has {drafter.context} positions, but {served} would be served"
    hint = f"--context {drafter.context}"
    yield (warn if context is None else refuse)("drafter-context", message, hint)


def find_hidden_size(pair: _Pair) -> Iterator[Fault]:
    """The drafter reads the target's hidden states and shares its embedding."""
    target, drafter = pair.target, pair.drafter
    made_for = pair.draft.target_hidden_size or drafter.hidden_size
    if differ(made_for, target.hidden_size):
        message = f"drafter {drafter.name} was made for hidden size {made_for}, "
        yield pair.misfit("hidden-size", f"{message}but {target.name} has {target.hidden_size}")


def find_vocabulary(target: Checkpoint, drafter: Checkpoint) -> Iterator[Fault]:
    """Sizes must agree, which vLLM compares for no DFlash drafter, and can hide other tokens."""
    hint = f"slipstream models {target.name}"
    sizes = (drafter.vocabulary_size, target.vocabulary_size)
    if differ(*sizes):
        message = (
            f"{drafter.name} has {sizes[0]} tokens in its vocabulary, {target.name} {sizes[1]}"
        )
        yield refuse("vocabulary-size", message, hint)
    hashes = (drafter.tokenizer_sha256, target.tokenizer_sha256)
    if differ(*hashes):
        message = f"the tokenizers differ: {drafter.name} has {str(hashes[0])[:12]}, "
        yield refuse("tokenizer", f"{message}{target.name} has {str(hashes[1])[:12]}", hint)


def find_vocabulary_map(pair: _Pair) -> Iterator[Fault]:
    """Without d2t a reduced vocabulary is read as the target's first tokens."""
    reduced, whole = pair.draft.draft_vocabulary, pair.target.vocabulary_size
    if reduced is None or whole is None or reduced >= whole:
        return
    if pair.draft.has_vocabulary_map is False:
        message = f"{pair.drafter.name} drafts from {reduced} of {whole} tokens, "
        yield pair.misfit("vocabulary-map", f"{message}but has no tensor d2t that says which")


def find_mask_token(pair: _Pair) -> Iterator[Fault]:
    """The mask must be a row of the target's embedding."""
    if pair.draft.family not in ("dflash", "dflash2", "dspark"):
        return
    mask, size, name = pair.draft.mask_token_id, pair.target.vocabulary_size, pair.drafter.name
    if mask is None and pair.drafter.complete:
        yield pair.misfit("mask-missing", f"{name} has no mask_token_id, so it cannot draft")
    if mask is not None and size is not None and not 0 <= mask < size:
        message = f"{name} uses token {mask} as its mask, "
        message += f"but {pair.target.name} has only tokens 0 to {size - 1}"
        yield pair.misfit("mask-outside", message)


def find_target_layers(pair: _Pair) -> Iterator[Fault]:
    """A drafter that says how many layers its target has must be right."""
    counts = (pair.draft.target_layers, pair.target.layer_count)
    if differ(*counts):
        message = f"{pair.drafter.name} was made for a target of {counts[0]} layers, "
        yield pair.misfit("target-layers", f"{message}{pair.target.name} has {counts[1]}")


def find_layer_order(pair: _Pair) -> Iterator[Fault]:
    """vLLM sorts and dedups the ids, so the drafter's fc would see permuted features."""
    ids = pair.draft.target_layer_ids
    if ids is not None and list(ids) != sorted(set(ids)):
        message = f"{pair.drafter.name} lists its target layers as {_show(ids)}, "
        message += f"and vLLM would feed them as {_show(tuple(sorted(set(ids))))}"
        yield pair.misfit("layer-order", message)


def find_layer_convention(pair: _Pair) -> Iterator[Fault]:
    """Ids that fit only if counted the other way are off by one: half the acceptance is lost."""
    draft, name, count = pair.draft, pair.drafter.name, pair.target.layer_count
    ids = draft.target_layer_ids
    if ids is None:
        return
    if draft.auxiliary_ids is not None and draft.auxiliary_ids != tuple(at + 1 for at in ids):
        yield pair.misfit(
            "layer-convention",
            f"{name} lists layer outputs {_show(ids)} and hidden states "
            f"{_show(draft.auxiliary_ids)}, which would each have to be one higher",
        )
    if draft.layer_id_convention == "layer-output" and count is not None and max(ids) == count:
        yield pair.misfit(
            "layer-convention",
            f"{name} counts to layer {count} of a target with layers 0 to "
            f"{count - 1}: its ids {_show(ids)} are hidden states, one too high",
        )
    if draft.layer_id_convention == "hidden-state" and min(ids) == 0:
        message = f"{name} reads hidden state 0, the embedding: its ids {_show(ids)} "
        yield pair.misfit("layer-convention", f"{message}are layer outputs, one too low")


def find_layer_range(pair: _Pair) -> Iterator[Fault]:
    """Out of range, vLLM on a CPU dies at the first request."""
    outputs, count = pair.draft.layer_outputs, pair.target.layer_count
    if outputs is None or count is None:
        return
    # One past either end is the other convention, which has a fault of its own.
    excused = -1 if pair.draft.layer_id_convention == "hidden-state" else count
    outside = tuple(at for at in outputs if not 0 <= at < count and at != excused)
    if outside:
        message = f"{pair.drafter.name} reads target layers {_show(outside)}, "
        message += f"but {pair.target.name} has layers 0 to {count - 1}"
        yield pair.misfit("layer-range", message)


def find_rope(pair: _Pair) -> Iterator[Fault]:
    """A drafter keeps its own positions, but one trained beside its target shares the base."""
    ours, theirs = pair.drafter.rope, pair.target.rope
    if ours is None or theirs is None:
        return
    names = (pair.drafter.name, pair.target.name)
    if differ(ours.theta, theirs.theta):
        yield warn(
            "rope-theta",
            f"rope theta is {ours.theta:g} in {names[0]} and {theirs.theta:g} in {names[1]}",
            "watch vllm:spec_decode_num_accepted_tokens on /metrics: it shows acceptance",
        )
    scalings = ((ours.scaling, ours.factor), (theirs.scaling, theirs.factor))
    if None not in (ours.scaling, theirs.scaling) and scalings[0] != scalings[1]:
        shown = [f"{kind}{f' x{factor:g}' if factor else ''}" for kind, factor in scalings]
        message = f"rope scaling is {shown[0]} in {names[0]} and {shown[1]} in {names[1]}"
        yield warn("rope-scaling", message, "keep --context within what both have without scaling")


def find_causality(pair: _Pair) -> Iterator[Fault]:
    """Sliding layers without a word on causality are read differently by trainer and engine."""
    drafter, draft, statements = pair.drafter, pair.draft, pair.draft.causal_statements
    if len(set(statements.values())) > 1:
        statement = ", ".join(f"{key} means {_causal(value)}" for key, value in statements.items())
        yield pair.misfit("causality", f"{drafter.name} contradicts itself: {statement}")
        return
    full = any(part.kind == "full" for part in drafter.layers or ())
    if draft.layout == "speculators" and statements.get("sliding_window_non_causal") and full:
        # https://github.com/vllm-project/vllm/pull/56692
        yield warn(
            "causality",
            f"{drafter.name} has full attention layers, which speculators trains non-causal, and "
            "sliding_window_non_causal false: vLLM 0.32 serves them causal",
            "set sliding_window_non_causal to true in the drafter's config.json",
        )
    sliding = drafter.has_sliding_windows or draft.forced_sliding
    if not sliding or statements or not drafter.complete:
        return
    if draft.layout == "speculators":
        yield warn(
            "causality",
            f"{drafter.name} has sliding layers and no sliding_window_non_causal: vLLM takes "
            "them as non-causal, speculators trains them causal",
            "set sliding_window_non_causal in the drafter's config.json",
        )
    elif draft.layout == "native":
        taken = draft.forced_sliding and not drafter.has_sliding_windows
        yield warn(
            "causality",
            f"{drafter.name} has sliding layers and does not state causality: "
            f"vLLM takes them as {_causal(not taken)}",
            "set dflash_config.causal in the drafter's config.json",
        )


def find_verifier(pair: _Pair) -> Iterator[Fault]:
    """A speculators drafter names its verifier; another checkpoint of that shape is a guess."""
    verifier, target = pair.draft.verifier, pair.target.name
    if verifier is None or _stem(verifier) in _stem(target):
        return
    yield warn(
        "verifier",
        f"{pair.drafter.name} was trained for {verifier}, not for {target}",
        "watch vllm:spec_decode_num_accepted_tokens on /metrics: it may be lower than published",
    )


SHAPE_CHECKS: tuple[Callable[[_Pair], Iterator[Fault]], ...] = (
    find_hidden_size,
    find_vocabulary_map,
    find_mask_token,
    find_target_layers,
    find_layer_order,
    find_layer_convention,
    find_layer_range,
    find_rope,
    find_causality,
    find_verifier,
)


def _show(ids: tuple[int, ...]) -> str:
    return ", ".join(map(str, ids))


def _causal(value: bool) -> str:
    return "causal" if value else "non-causal"


def _stem(name: str) -> str:
    return name.rstrip("/").rpartition("/")[2].lower()
