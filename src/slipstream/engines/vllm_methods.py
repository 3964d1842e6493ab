"""The drafting methods of vLLM 0.32, and what each of them needs.

Read in config/speculative.py, config/vllm.py (`_get_v2_model_runner_unsupported_features`) and
v1/worker/gpu_model_runner.py of 0.32.0.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

MethodName = Literal[
    "dflash",
    "dflash2",
    "dspark",
    "eagle3",
    "eagle",
    "mtp",
    "draft_model",
    "ngram",
    "suffix",
    "plain",
]
# A drafter is trained for one target; a model is any smaller one with the same tokenizer; heads
# are layers of the target's own checkpoint.
Needs = Literal["drafter", "model", "heads", "nothing"]


@dataclass(frozen=True, slots=True)
class Method:
    """One drafting method: what it needs, and its engine settings."""

    name: MethodName
    needs: Needs
    engine_name: str
    # Its name on an accelerator, if that differs.
    accelerated_name: str | None = None
    # The target's class must hand out hidden states of its inner layers.
    reads_states: bool = False
    # A whole block in one pass, with attention that is not causal.
    in_one_pass: bool = False
    length: int = 3
    length_because: str = ""
    keys: Mapping[str, int] = field(default_factory=dict)
    keys_because: str = ""
    package: str | None = None

    def name_for(self, *, on_cpu: bool) -> str:
        """Return the engine's name of the method on a CPU or on an accelerator."""
        return self.engine_name if on_cpu else self.accelerated_name or self.engine_name


# vLLM takes what it drafts with for such a drafter if its path has one of these, whatever method
# is stated: with MTP, that path is the target's own (config/speculative.py of 0.32.0 and 0.33.0).
_DRAFTERS_BY_PATH = ("eagle-", "eagle3", "dflash", "dspark")


def keeps_mtp(target: str) -> bool:
    """Return whether vLLM drafts with the heads of a target of this name if it is asked to."""
    return not any(part in target.lower() for part in _DRAFTERS_BY_PATH)


_ONE_AFTER_THE_OTHER = "each draft token takes a pass"
METHODS: Mapping[str, Method] = {
    method.name: method
    for method in (
        Method("dflash", "drafter", "dflash", reads_states=True, in_one_pass=True),
        # vLLM knows DFlash2 by the drafter's class.
        Method("dflash2", "drafter", "dflash", reads_states=True, in_one_pass=True),
        Method("dspark", "drafter", "dspark", reads_states=True, in_one_pass=True),
        Method(
            "eagle3", "drafter", "eagle3", reads_states=True, length_because=_ONE_AFTER_THE_OTHER
        ),
        Method("eagle", "drafter", "eagle", length_because=_ONE_AFTER_THE_OTHER),
        Method("mtp", "heads", "mtp", length_because="z-lab/dflash#165 runs with it"),
        Method("draft_model", "model", "draft_model", length_because=_ONE_AFTER_THE_OTHER),
        Method(
            "ngram",
            "nothing",
            "ngram",
            # The other one stops vLLM from scheduling ahead (config/vllm.py).
            accelerated_name="ngram_gpu",
            length=5,
            length_because="repeated passages are continued; only verification takes time",
            keys={"prompt_lookup_max": 4, "prompt_lookup_min": 2},
            keys_because="vLLM's own 5, called arbitrary in its source, misses short repeats",
        ),
        Method(
            "suffix",
            "nothing",
            "suffix",
            length=24,
            length_because="the maximum; each draft is as long as what it matched",
            package="arctic-inference==0.1.1",
        ),
    )
}
METHOD_NAMES: tuple[MethodName, ...] = get_args(MethodName)


def find_method(engine_name: str) -> Method | None:
    """Return the method that the engine calls so, None for one that we know nothing of."""
    names = (
        method
        for method in METHODS.values()
        if engine_name in (method.engine_name, method.accelerated_name)
    )
    return next(names, None)
