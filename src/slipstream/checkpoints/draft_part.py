"""A drafter's own settings, in either of the two layouts that vLLM 0.32 loads.

The native layout (z-lab, SpecForge) counts the outputs of target layers; the `speculators`
layout counts hidden states, of which the first is the embedding, so its ids are one higher.
https://github.com/vllm-project/vllm/pull/40727
"""

from typing import Any

from slipstream.checkpoints.checkpoint import DraftPart, Family

_BY_ARCHITECTURE: dict[str, Family] = {
    "DFlashDraftModel": "dflash",
    "DFlash2DraftModel": "dflash2",
    "DFlashLagunaForCausalLM": "dflash",
    "MuseGlimmerAssistantModel": "dflash",
}
_BY_SPECULATORS_TYPE: dict[str, Family] = {
    "dflash": "dflash",
    "dflash2": "dflash2",
    "dspark": "dspark",
    "eagle3": "eagle3",
    "peagle": "eagle3",
    "mtp": "mtp",
}
_MARKS: tuple[tuple[str, Family], ...] = (
    ("dflash2", "dflash2"),
    ("dspark", "dspark"),
    ("eagle3", "eagle3"),
    ("eagle-3", "eagle3"),
    ("mtp", "mtp"),
)


def parse_draft_part(config: dict[str, Any], tensors: frozenset[str] | None) -> DraftPart | None:
    """Read the drafter's side of a config; None for a model that is no drafter."""
    if kind := config.get("speculators_model_type"):
        family = _BY_SPECULATORS_TYPE.get(str(kind))
        return None if family is None else _from_speculators(config, family, tensors)
    family = _find_family(config)
    return None if family is None else _from_native(config, family, tensors)


def guess_family(name: str) -> Family:
    """Return the drafter family that a name suggests."""
    lower = name.lower()
    return next((family for mark, family in _MARKS if mark in lower), "dflash")


def guess_method(name: str, tags: frozenset[str], classes: list[str]) -> str | None:
    """Return what a listing says that a model drafts by, None if it says nothing of drafting.

    MTP is no sign of a drafter: whole models carry the tag for the heads in them.
    """
    family = _find_family({"architectures": classes})
    if family not in (None, "mtp"):
        return family
    own = (mark for mark in _MARKS if mark[1] != "mtp")
    marks = (*own, ("dflash", "dflash"), ("eagle", "eagle"))
    lower = name.lower()
    by_name = next((method for mark, method in marks if mark in lower), None)
    return by_name or next((method for mark, method in marks if mark in tags), None)


def _find_family(config: dict[str, Any]) -> Family | None:
    architecture = next(iter(config.get("architectures") or ()), "")
    if (family := _BY_ARCHITECTURE.get(architecture)) is not None:
        return family
    if "DSpark" in architecture:
        return "dspark"
    if "Eagle3" in architecture:
        return "eagle3"
    if architecture.startswith("Eagle"):
        return "eagle"
    if "MTP" in architecture:
        return "mtp"
    return "dflash" if config.get("dflash_config") else None


def _from_native(
    config: dict[str, Any], family: Family, tensors: frozenset[str] | None
) -> DraftPart:
    own = config.get("dflash_config") or {}
    ids = own.get("target_layer_ids") or config.get("target_layer_ids")
    aux = config.get("eagle_aux_hidden_state_layer_ids")
    return DraftPart(
        family=family,
        layout="native",
        block_size=config.get("block_size") or own.get("block_size"),
        target_layer_ids=None if ids is None else tuple(ids),
        layer_id_convention=None if ids is None else "layer-output",
        auxiliary_ids=None if aux is None else tuple(aux),
        target_layers=config.get("num_target_layers"),
        target_hidden_size=config.get("target_hidden_size"),
        mask_token_id=own.get("mask_token_id", config.get("mask_token_id")),
        drafts_from_anchor=bool(own.get("sample_from_anchor", family == "dspark")),
        own_head=_has_own_head(config, tensors),
        draft_vocabulary=config.get("draft_vocab_size"),
        has_vocabulary_map=_has(tensors, "d2t"),
        causal_statements=_list_causal_statements(
            {"is_causal": config.get("is_causal"), "dflash_config.causal": own.get("causal")}
        ),
        forced_sliding=bool(own.get("use_swa", False)),
    )


def _from_speculators(
    config: dict[str, Any], family: Family, tensors: frozenset[str] | None
) -> DraftPart:
    ids = config.get("aux_hidden_state_layer_ids") or config.get("eagle_aux_hidden_state_layer_ids")
    non_causal = config.get("sliding_window_non_causal")
    verifier = (config.get("speculators_config") or {}).get("verifier") or {}
    return DraftPart(
        family=family,
        layout="speculators",
        block_size=config.get("block_size"),
        target_layer_ids=None if ids is None else tuple(ids),
        layer_id_convention=None if ids is None else "hidden-state",
        target_hidden_size=config.get("target_hidden_size"),
        mask_token_id=config.get("mask_token_id"),
        drafts_from_anchor=bool(config.get("sample_from_anchor", family == "dspark")),
        own_head=_has_own_head(config, tensors),
        draft_vocabulary=config.get("draft_vocab_size"),
        has_vocabulary_map=_has(tensors, "d2t"),
        causal_statements=_list_causal_statements(
            {"sliding_window_non_causal": None if non_causal is None else not non_causal}
        ),
        verifier=verifier.get("name_or_path"),
    )


def _has_own_head(config: dict[str, Any], tensors: frozenset[str] | None) -> bool | None:
    if "has_own_lm_head" in config:
        return bool(config["has_own_lm_head"])
    return _has(tensors, "lm_head.weight")


def _has(tensors: frozenset[str] | None, name: str) -> bool | None:
    return None if tensors is None else name in tensors


def _list_causal_statements(statements: dict[str, Any]) -> dict[str, bool]:
    return {key: bool(value) for key, value in statements.items() if value is not None}
