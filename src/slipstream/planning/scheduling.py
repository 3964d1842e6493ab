"""Rules for the load: draft length, context, sequences, tokens per step."""

from slipstream.checkpoints.pairing import is_stretched
from slipstream.engines.vllm_methods import Method
from slipstream.planning.settings import Choice
from slipstream.planning.situation import Situation

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


def decide_draft_length(situation: Situation) -> Choice[int] | None:
    """Choose how many tokens to draft: a wish, the recipe's, or by block and load."""
    draft, method = situation.draft, situation.method
    if method is None:
        return None
    asked = situation.asked.speculation.get("length") or situation.wishes.find("draft_length")
    if asked is not None:
        return asked
    if draft is None or not method.in_one_pass:
        return _decide_length_of_passes(situation, method)
    published = situation.found.length if situation.found else None
    longest = draft.longest_draft or published
    advised = situation.advice.draft_length
    limits = [most for most in (advised, longest) if most is not None]
    users = situation.find_asked("sequences")
    if users is not None and limits and (by_load := _find_by_load(users.value)) < min(limits):
        return Choice(
            by_load,
            "default",
            f"{users.value} users share a step: longer drafts cost them more than they give",
        )
    if advised is not None and (longest is None or advised <= longest):
        return situation.from_recipe(advised)
    if longest is None:
        return Choice(LEAST_DRAFT, "default", "the drafter's block is unknown; this fits every one")
    if advised is not None:
        return Choice(longest, "checkpoint", f"the recipe's {advised} is more than a block drafts")
    if draft.block_size is None:
        return Choice(longest, "index", "it is published with this length; its block is unknown")
    return Choice(longest, "checkpoint", f"a block of {draft.block_size} drafts this many")


def _decide_length_of_passes(situation: Situation, method: Method) -> Choice[int]:
    """Choose the length where no block sets one: as published, or the method's usual one."""
    if situation.found is not None and situation.found.length is not None:
        return Choice(situation.found.length, "index", "it is published with this length")
    layers = situation.target.predicting_layers if method.needs == "heads" else None
    if layers and method.length % layers:
        return Choice(layers, "checkpoint", "vLLM wants a multiple of the MTP layers")
    users = situation.find_asked("sequences")
    if users is not None and (by_load := _find_by_load(users.value)) < method.length:
        because = f"{users.value} users share a step: longer drafts cost them more than they give"
        return Choice(by_load, "default", because)
    return Choice(method.length, "default", method.length_because)


def _find_by_load(users: int) -> int:
    return next((most for up_to, most in DRAFT_BY_USERS if users <= up_to), LEAST_DRAFT)


def decide_context(situation: Situation) -> Choice[int]:
    """Choose the longest sequence; never more than the drafter knows (vllm#57941)."""
    if (asked := situation.find_asked("context")) is not None:
        return asked
    target = situation.target
    assistant = situation.assistant
    drafter = assistant.context if assistant and not is_stretched(situation.draft) else None
    least = 0
    if situation.wishes.goal == "agent":
        least = DEFAULT_CONTEXT if situation.on_cpu else AGENT_CONTEXT
    if (situation.advice.context or 0) > least:
        choice = situation.from_recipe(situation.advice.context or 0)
    elif least:
        choice = Choice(least, "default", "an agent's conversation grows with every file it reads")
    elif situation.on_cpu:
        choice = Choice(CPU_CONTEXT, "default", "prefill is slow on a CPU; --context raises it")
    else:
        choice = Choice(DEFAULT_CONTEXT, "default", "enough for chat and code; --context raises it")
    for limit, who in ((target.context, "the target"), (drafter, "the drafter")):
        if limit is not None and limit < choice.value:
            choice = Choice(limit, "checkpoint", f"{who} knows no more positions")
    return choice


def decide_sequences(situation: Situation) -> Choice[int]:
    """Choose how many sequences run at once."""
    if (asked := situation.find_asked("sequences")) is not None:
        return asked
    if situation.advice.sequences is not None:
        return situation.from_recipe(situation.advice.sequences)
    if situation.on_cpu:
        return Choice(CPU_SEQUENCES, "hardware", "more sequences only wait on a CPU")
    goal = situation.wishes.goal
    return Choice(SEQUENCES_BY_GOAL[goal], "default", f"the goal is {goal}")


def decide_batched_tokens(situation: Situation, sequences: int, draft_length: int) -> Choice[int]:
    """Choose the tokens of one step: at least one verified block a sequence (vllm#53970)."""
    choice: Choice[int]
    if (asked := situation.find_asked("batched_tokens")) is not None:
        choice = asked
    elif situation.advice.batched_tokens is not None:
        choice = situation.from_recipe(situation.advice.batched_tokens)
    elif situation.on_cpu:
        choice = Choice(CPU_BATCHED_TOKENS, "hardware", "keeps a prefill step short on a CPU")
    else:
        choice = Choice(GPU_BATCHED_TOKENS, "default", "long prompts prefill in few steps")
    least = sequences * (draft_length + 1)
    if choice.value < least:
        return Choice(
            least,
            choice.source,
            f"{choice.value} is raised to {sequences} sequences x {draft_length + 1} tokens "
            "to verify (vllm#53970)",
        )
    return choice
