"""Sizes that nobody published, as a best estimate and a lower bound.

A plan counts with the estimate and is refused by the lower bound alone. The figures were fitted to
the published checkpoints under tests/judge/models, and a test holds them to those.
"""

import re
from dataclasses import dataclass

from slipstream.checkpoints.checkpoint import Checkpoint, Layers, Scheme

# (at least, usually) bytes per parameter: embeddings, heads and some layers stay in bfloat16.
BYTES_PER_PARAMETER: dict[Scheme | None, tuple[float, float]] = {
    None: (2.0, 2.0),
    "fp8": (1.0, 1.06),
    "int8": (1.0, 1.1),
    "nvfp4": (0.54, 0.7),
    "mxfp4": (0.53, 0.6),
    "int4": (0.51, 0.65),
    "other": (0.5, 1.0),
}
# What a name rounds away: a 32B model has 32.8 billion parameters, a 120B one 117.
NAME_RANGE = (0.93, 1.03)
SHAPE_RANGE = (0.9, 1.0)
_SCHEMES: tuple[tuple[str, Scheme], ...] = (
    ("nvfp4", "nvfp4"),
    ("mxfp4", "mxfp4"),
    ("fp8|w8a8-fp8", "fp8"),
    ("int4|awq|gptq|w4a16|autoround|4bit|bnb", "int4"),
    ("int8|w8a8|w8a16|8bit", "int8"),
    ("gguf", "other"),
)
# A number of billions (b) or trillions (t), which is not the active part (A3B) or an effective
# size (E4B).
_COUNT = re.compile(r"(?<![a-z0-9.])(?:(\d+)x)?(\d+(?:\.\d+)?)(b|t)(?![a-z0-9])", re.IGNORECASE)
_EXPERTS = re.compile(r"-\d+e(?![a-z])", re.IGNORECASE)
# Drafters in squares of the target's hidden size: DFlash has 5 to 8 layers and shares embedding and
# head; EAGLE-3 has one layer, which reads twice the width, and mostly a head of 32,000 tokens.
DRAFTER_SQUARES = {"dflash": (50, 80), "dflash2": (50, 80), "dspark": (50, 80)}
DRAFTER_SQUARES |= {"eagle3": (12, 18), "eagle": (10, 14)}
EAGLE_VOCABULARY = 32000
DRAFTER_LAYERS = {"dflash": 6, "dflash2": 6, "dspark": 6, "eagle3": 1, "eagle": 1}


@dataclass(frozen=True, slots=True)
class Size:
    """A size in bytes; of an exact one, both figures are the same."""

    best: int
    least: int
    because: str

    def change(self, best: int, least: int, what: str) -> "Size":
        """Return what becomes of it."""
        return Size(best, least, f"{self.because}, {what}")


def estimate_weights(checkpoint: Checkpoint) -> Size | None:
    """Estimate a model's weights from its shape, or from the figures in its name."""
    scheme = find_scheme(checkpoint)
    least, best = BYTES_PER_PARAMETER[scheme]
    if checkpoint.parameters is not None:
        count, (low, high), origin = checkpoint.parameters, SHAPE_RANGE, "its config"
    elif (named := read_parameters(checkpoint.name)) is not None:
        count, (low, high), origin = named, NAME_RANGE, "its name"
    else:
        return None
    stored = f" in {scheme}" if scheme else ""
    because = f"estimated from {origin}: {count / 1e9:.3g}B parameters{stored}"
    return Size(int(count * high * best), int(count * low * least), because)


def find_scheme(checkpoint: Checkpoint) -> Scheme | None:
    """Return how the weights are stored, by what is known or else by the name."""
    if checkpoint.quantization is not None:
        return checkpoint.quantization.scheme
    if checkpoint.quantized is False:
        return None
    found = (scheme for words, scheme in _SCHEMES if re.search(words, checkpoint.name.lower()))
    return next(found, "other" if checkpoint.quantized else None)


def read_parameters(name: str) -> int | None:
    """Read the parameters of a name such as Qwen3.5-35B-A3B or gpt-oss-120b.

    Of 17B-16E nobody can tell the sum.
    """
    own = name.rpartition("/")[2]
    if _EXPERTS.search(own):
        return None
    counts = [
        int(times or 1) * float(number) * (1e12 if unit in "tT" else 1e9)
        for times, number, unit in _COUNT.findall(own)
    ]
    return int(max(counts)) if counts else None


def estimate_drafter(drafter: Checkpoint, target: Checkpoint) -> Size | None:
    """Estimate a drafter's weights from its config, or from the target that it was made for."""
    family = drafter.draft.family if drafter.draft else None
    if drafter.parameters is not None or family is None:
        return estimate_weights(drafter)
    if family not in DRAFTER_SQUARES or target.hidden_size is None:
        return None
    hidden = target.hidden_size
    low, high = (squares * hidden * hidden for squares in DRAFTER_SQUARES[family])
    if family == "eagle3":
        high += EAGLE_VOCABULARY * hidden
    least, best = BYTES_PER_PARAMETER[find_scheme(drafter)]
    because = f"estimated from the target's hidden size {hidden}, as {family} drafters are made"
    return Size(int(high * best), int(low * least), because)


def estimate_drafter_layers(drafter: Checkpoint, target: Checkpoint) -> tuple[Layers, ...] | None:
    """Take a drafter's layers, if its config was not read, to be like the target's."""
    family = drafter.draft.family if drafter.draft else None
    alike = [part for part in target.layers or () if part.kind == "full"]
    if drafter.layers is not None or family not in DRAFTER_LAYERS or not alike:
        return drafter.layers
    return (alike[0].model_copy(update={"count": DRAFTER_LAYERS[family]}),)
