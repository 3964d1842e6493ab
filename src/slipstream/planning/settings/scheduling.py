"""Rules for the load: draft length, context, sequences, tokens per step."""

from slipstream.checkpoints.pairing import is_stretched
from slipstream.engines.vllm_methods import Method
from slipstream.planning.inputs import PlanInputs
from slipstream.planning.settings import Choice, EngineSettings
from slipstream.units import show_bytes

DEFAULT_CONTEXT = 32768
CPU_CONTEXT = 4096
AGENT_CONTEXT = 131072
MANY_CONVERSATIONS = 2
LEAST_DRAFT = 3
# What is taken for the length of a request, prompt and answer, where nothing is recorded.
USUAL_LENGTH = 4096
USUAL_CONVERSATION = 32768
# vLLM captures graphs of steps of up to so many tokens (config/vllm.py, _set_cudagraph_sizes).
GRAPH_TOKENS = 512
BLACKWELL_GRAPH_TOKENS = 1024
MOST_SEQUENCES = 256  # vLLM's own default
MANY_SEQUENCES = 32
CACHE_UNKNOWN: Choice[int] = Choice(8, "default", "how many fit into the cache is unknown")
CPU_SEQUENCES = 4
GPU_BATCHED_TOKENS = 8192
CPU_BATCHED_TOKENS = 2048


def decide_draft_length(inputs: PlanInputs) -> Choice[int] | None:
    """Choose the longest useful draft; how much of it pays at a load is left to steering."""
    draft, method = inputs.draft, inputs.method
    if method is None:
        return None
    published = inputs.found.length if inputs.found else None
    if draft is None or not method.in_one_pass:
        return _decide_length_of_passes(inputs, method, published)
    longest, measured = draft.longest_draft, inputs.local_advice.draft_length
    if measured is not None and (longest is None or measured <= longest):
        return inputs.from_recipe(measured)
    if longest is not None:
        beyond = f", and the recipe's {measured} is longer" if measured is not None else ""
        why = f"the longest draft of a block of {draft.block_size}{beyond}"
        return Choice(longest, "checkpoint", why + _describe_step(inputs))
    elsewhere = inputs.advice.draft_length
    if (length := published or elsewhere) is not None:
        return Choice(length, "index", "the published length; its block size is unknown")
    why = "the drafter's block size is unknown; this fits every drafter"
    return Choice(LEAST_DRAFT, "default", why)


def _describe_step(inputs: PlanInputs) -> str:
    """Say what a step costs on this machine whatever the length of its drafts."""
    one, weights = inputs.accelerator, inputs.target.weights
    if one is None or weights is None or not one.memory_bandwidth_bytes_per_s:
        return ""
    read = weights.total_bytes / inputs.fixed.shards
    if inputs.target.experts is not None:
        return ""
    milliseconds = 1000 * read / one.memory_bandwidth_bytes_per_s
    return f"; every step reads {show_bytes(int(read))}, {milliseconds:.1f} ms here, drafts or not"


def _decide_length_of_passes(
    inputs: PlanInputs, method: Method, published: int | None
) -> Choice[int]:
    """Choose the length where no block sets one: as published, or the method's usual one."""
    if published is not None:
        return Choice(published, "index", "the published length")
    layers = inputs.target.predicting_layers if method.needs == "heads" else None
    if layers and method.length % layers:
        return Choice(layers, "checkpoint", "vLLM needs a multiple of the number of MTP layers")
    return Choice(method.length, "default", method.length_because)


def decide_context(inputs: PlanInputs) -> Choice[int]:
    """Choose the longest sequence; never more than the drafter knows (vllm#57941)."""
    target, drafter = inputs.target, inputs.draft_model
    drafted = drafter.context if drafter and not is_stretched(inputs.draft) else None
    least = 0
    if inputs.options.goal == "agent":
        least = DEFAULT_CONTEXT if inputs.on_cpu else AGENT_CONTEXT
    advised = inputs.from_recipe(inputs.local_advice.context)
    if advised is not None and advised.value > least:
        choice = advised
    elif least:
        why = "an agent's conversation grows with every file it reads"
        choice = Choice(least, "default", why)
    elif inputs.on_cpu:
        choice = Choice(CPU_CONTEXT, "default", "prefill is slow on a CPU; --context raises it")
    else:
        choice = Choice(DEFAULT_CONTEXT, "default", "enough for chat and code; --context raises it")
    for limit, who in ((target.context, "the target"), (drafted, "the drafter")):
        if limit is not None and limit < choice.value:
            choice = Choice(limit, "checkpoint", f"{who} has no more positions")
    return choice


def decide_sequences(inputs: PlanInputs) -> Choice[int]:
    """Choose the concurrent sequences, one where that is left to the size of the cache."""
    if (advised := inputs.from_recipe(inputs.local_advice.sequences)) is not None:
        return advised
    if inputs.on_cpu:
        return Choice(CPU_SEQUENCES, "hardware", "on a CPU more sequences would only wait")
    return Choice(1, "default", "the cache holds no more")


def find_most_sequences(inputs: PlanInputs, settings: EngineSettings) -> Choice[int]:
    """Return how many sequences one step verifies whole: within graphs, or for many at all."""
    drafted, batched = settings.draft_length + 1, settings.batched_tokens
    tokens = BLACKWELL_GRAPH_TOKENS if inputs.capability_major == 10 else GRAPH_TOKENS
    kept = "steps are kept to" if settings.is_eager else "graphs cover steps of"
    why = f"{kept} {tokens} tokens, {drafted} of each sequence"
    if inputs.options.goal in ("throughput", "capacity"):
        tokens = batched.value if batched else GPU_BATCHED_TOKENS
        why = f"a step takes {tokens} tokens, {drafted} of each sequence"
    if tokens // drafted > MOST_SEQUENCES:
        return Choice(MOST_SEQUENCES, "hardware", "vLLM's own limit, and the cache holds them")
    return Choice(max(1, tokens // drafted), "hardware", why)


def find_usual_length(inputs: PlanInputs, context: int) -> int:
    """Return the length that is taken for a request's; it may be all of the context."""
    usual = USUAL_CONVERSATION if inputs.options.goal == "agent" else USUAL_LENGTH
    return min(usual, context) if context > 0 else usual


def decide_batched_tokens(inputs: PlanInputs, sequences: int, draft_length: int) -> Choice[int]:
    """Choose the tokens of one step: at least one verified block a sequence.

    This holds for a given value, too, which is raised: up to 0.32 slots for drafts were taken from
    them, so that steps got stuck (vllm#53970); later, sequences would only take turns.
    """
    usual: Choice[int] = Choice(GPU_BATCHED_TOKENS, "default", "long prompts prefill in few steps")
    if inputs.on_cpu:
        usual = Choice(CPU_BATCHED_TOKENS, "hardware", "keeps a prefill step short on a CPU")
    advised = inputs.from_recipe(inputs.local_advice.batched_tokens)
    choice = inputs.fixed.batched_tokens or advised or usual
    least = sequences * (draft_length + 1)
    if choice.value >= least:
        return choice
    why = "otherwise they take turns" if inputs.is_since("0.33") else "vllm#53970"
    needed = f"{sequences} sequences x {draft_length + 1} tokens to verify ({why})"
    return Choice(least, choice.source, f"{choice.value} is raised to {needed}")
