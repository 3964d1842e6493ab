"""Rules for the load: draft length, context, sequences, tokens per step."""

from slipstream.checkpoints.pairing import is_stretched
from slipstream.engines.vllm_methods import Method
from slipstream.planning.inputs import PlanInputs
from slipstream.planning.settings import Choice

DEFAULT_CONTEXT = 32768
CPU_CONTEXT = 4096
AGENT_CONTEXT = 131072
MANY_CONVERSATIONS = 2
# (up to this many users, draft at most this many): the best draft lengths for prose and code
# in the cost model fitted to the eight rates that AEON-7/vllm-dflash publishes.
DRAFT_BY_USERS = ((2, 15), (4, 8), (8, 6), (16, 4))
LEAST_DRAFT = 3
SEQUENCES_BY_GOAL = {"latency": 8, "throughput": 64, "capacity": 32, "agent": 4}
CPU_SEQUENCES = 4
GPU_BATCHED_TOKENS = 8192
CPU_BATCHED_TOKENS = 2048


def decide_draft_length(inputs: PlanInputs) -> Choice[int] | None:
    """Choose how many tokens to draft: the recipe's length, or by block and load."""
    draft, method = inputs.draft, inputs.method
    if method is None:
        return None
    published = inputs.found.length if inputs.found else None
    if draft is None or not method.in_one_pass:
        return _decide_length_of_passes(inputs, method, published)
    longest = draft.longest_draft or published
    advised = inputs.advice.draft_length
    limits = [most for most in (advised, longest) if most is not None]
    if limits and (by_load := _limit_by_load(inputs, min(limits))) is not None:
        return by_load
    if advised is not None and (longest is None or advised <= longest):
        return inputs.from_recipe(advised)
    if longest is None:
        why = "the drafter's block size is unknown; this fits every drafter"
        return Choice(LEAST_DRAFT, "default", why)
    if advised is not None:
        why = f"the recipe's {advised} is longer than the drafter's block"
        return Choice(longest, "checkpoint", why)
    if draft.block_size is None:
        return Choice(longest, "index", "the published length; its block size is unknown")
    return Choice(longest, "checkpoint", f"a block of {draft.block_size} drafts this many")


def _decide_length_of_passes(
    inputs: PlanInputs, method: Method, published: int | None
) -> Choice[int]:
    """Choose the length where no block sets one: as published, or the method's usual one."""
    if published is not None:
        return Choice(published, "index", "the published length")
    layers = inputs.target.predicting_layers if method.needs == "heads" else None
    if layers and method.length % layers:
        return Choice(layers, "checkpoint", "vLLM needs a multiple of the number of MTP layers")
    by_load = _limit_by_load(inputs, method.length)
    return by_load or Choice(method.length, "default", method.length_because)


def _limit_by_load(inputs: PlanInputs, most: int) -> Choice[int] | None:
    """Return a shorter length where the requested users share a step."""
    if (users := inputs.given.sequences) is None:
        return None
    limit = next((most for up_to, most in DRAFT_BY_USERS if users.value <= up_to), LEAST_DRAFT)
    why = f"{users.value} users share a step: longer drafts would cost more than they gain"
    return Choice(limit, "default", why) if limit < most else None


def decide_context(inputs: PlanInputs) -> Choice[int]:
    """Choose the longest sequence; never more than the drafter knows (vllm#57941)."""
    target, drafter = inputs.target, inputs.draft_model
    drafted = drafter.context if drafter and not is_stretched(inputs.draft) else None
    least = 0
    if inputs.options.goal == "agent":
        least = DEFAULT_CONTEXT if inputs.on_cpu else AGENT_CONTEXT
    advised = inputs.from_recipe(inputs.advice.context)
    if advised is not None and advised.value > least:
        choice = advised
    elif least:
        why = "an agent's conversation grows with every file that it reads"
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
    if (advised := inputs.from_recipe(inputs.advice.sequences)) is not None:
        return advised
    if inputs.on_cpu:
        return Choice(CPU_SEQUENCES, "hardware", "on a CPU more sequences would only wait")
    goal = inputs.options.goal
    return Choice(SEQUENCES_BY_GOAL[goal], "default", f"the goal is {goal}")


def decide_batched_tokens(inputs: PlanInputs, sequences: int, draft_length: int) -> Choice[int]:
    """Choose the tokens of one step: at least one verified block a sequence (vllm#53970).

    This holds for a given value, too, which is raised.
    """
    usual: Choice[int] = Choice(GPU_BATCHED_TOKENS, "default", "long prompts prefill in few steps")
    if inputs.on_cpu:
        usual = Choice(CPU_BATCHED_TOKENS, "hardware", "keeps a prefill step short on a CPU")
    advised = inputs.from_recipe(inputs.advice.batched_tokens)
    choice = inputs.given.batched_tokens or advised or usual
    least = sequences * (draft_length + 1)
    if choice.value >= least:
        return choice
    needed = f"{sequences} sequences x {draft_length + 1} tokens to verify (vllm#53970)"
    return Choice(least, choice.source, f"{choice.value} is raised to {needed}")
