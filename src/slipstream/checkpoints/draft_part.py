"""A drafter's own settings, in either of the two layouts that vLLM loads.

The native layout (z-lab, SpecForge) counts the outputs of target layers; the `speculators`
layout counts hidden states, of which the first is the embedding, so its ids are one higher.
https://github.com/vllm-project/vllm/pull/40727
"""

from typing import Any

from slipstream.checkpoints.checkpoint import DraftPart, Family

# Parts of a class's name, the first that is found.
_BY_CLASS: dict[str, Family] = {
    "DFlash2DraftModel": "dflash2",
    "DFlash2BeamDraftModel": "dflash2",
    # DFlash with a refiner on top.
    "XPress": "dflash",
    "DFlashDraftModel": "dflash",
    "DFlashLagunaForCausalLM": "dflash",
    "MuseGlimmerAssistantModel": "dflash",
    "DSpark": "dspark",
    "Eagle3": "eagle3",
    "MTP": "mtp",
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
    kind = config.get("speculators_model_type")
    family = _BY_SPECULATORS_TYPE.get(str(kind)) if kind else _find_family(config)
    if family is None:
        return None
    head = None if tensors is None else "lm_head.weight" in tensors
    return DraftPart(
        family=family,
        target_hidden_size=config.get("target_hidden_size"),
        own_head=bool(config["has_own_lm_head"]) if "has_own_lm_head" in config else head,
        draft_vocabulary=config.get("draft_vocab_size"),
        has_vocabulary_map=None if tensors is None else "d2t" in tensors,
        **(_read_speculators if kind else _read_native)(config, family),
    )


def guess_family(name: str) -> Family:
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
    named = next((family for part, family in _BY_CLASS.items() if part in architecture), None)
    if named is None and architecture.startswith("Eagle"):
        return "eagle"
    return named or ("dflash" if config.get("dflash_config") else None)


def _read_native(config: dict[str, Any], family: Family) -> dict[str, Any]:
    own = config.get("dflash_config") or {}
    ids = own.get("target_layer_ids") or config.get("target_layer_ids")
    stated = {"is_causal": config.get("is_causal"), "dflash_config.causal": own.get("causal")}
    return {
        "layout": "native",
        "block_size": config.get("block_size") or own.get("block_size"),
        "target_layer_ids": ids,
        "layer_id_convention": None if ids is None else "layer-output",
        "auxiliary_ids": config.get("eagle_aux_hidden_state_layer_ids"),
        "target_layers": config.get("num_target_layers"),
        "mask_token_id": own.get("mask_token_id", config.get("mask_token_id")),
        "drafts_from_anchor": bool(own.get("sample_from_anchor", family == "dspark")),
        "causal_statements": {key: bool(one) for key, one in stated.items() if one is not None},
        "forced_sliding": bool(own.get("use_swa", False)),
    }


def _read_speculators(config: dict[str, Any], family: Family) -> dict[str, Any]:
    ids = config.get("aux_hidden_state_layer_ids") or config.get("eagle_aux_hidden_state_layer_ids")
    key = "sliding_window_non_causal"
    verifier = (config.get("speculators_config") or {}).get("verifier") or {}
    return {
        "layout": "speculators",
        "block_size": config.get("block_size"),
        "target_layer_ids": ids,
        "layer_id_convention": None if ids is None else "hidden-state",
        "mask_token_id": config.get("mask_token_id"),
        "drafts_from_anchor": bool(config.get("sample_from_anchor", family == "dspark")),
        "causal_statements": {} if config.get(key) is None else {key: not config[key]},
        "verifier": verifier.get("name_or_path"),
    }
