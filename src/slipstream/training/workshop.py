"""The inputs that all stages share, and the engine that they plan."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from slipstream.checkpoints.checkpoint import Checkpoint
from slipstream.hardware import Host
from slipstream.planning import LaunchPlan, make_options, make_plan
from slipstream.training.prompts import Conversation
from slipstream.training.run import TrainFolder, TrainSettings

Figures = dict[str, int | float | str]


@dataclass(frozen=True, slots=True)
class Workshop:
    """The inputs of the stages; a warm start continues from the drafter in `start_folder`."""

    folder: TrainFolder
    target: Checkpoint
    target_folder: Path
    host: Host
    environment: Mapping[str, str]
    report: Callable[[str], None]
    start_folder: Path | None = None

    @property
    def dtype(self) -> str:
        """Return the dtype to compute in: bfloat16, unless this CPU only emulates it."""
        return "float32" if self.host.processor.has_bfloat16 is False else "bfloat16"

    @property
    def target_name(self) -> str:
        """Return the target's public name; a hub model lies here under a commit's hash."""
        here = Path(self.target.name).is_dir()
        return self.target_folder.name if here else self.target.name


def plan_engine(
    settings: TrainSettings,
    shop: Workshop,
    conversations: Sequence[Conversation],
    *,
    drafter: Checkpoint | None,
    users: int,
    raw: Sequence[str] = (),
) -> LaunchPlan:
    """Return the plan of the engine that answers prompts, with or without the drafter."""
    # Two characters a token is less than any tokenizer takes for common text.
    longest = max(sum(len(turn.content) for turn in row.messages) for row in conversations)
    context = min(shop.target.context or 1 << 30, settings.max_tokens + 256 + longest // 2)
    on_cpu = not shop.host.accelerators
    raw = (
        *raw,
        *(("--enforce-eager",) if on_cpu else ()),
        *(("--per-request-spec-decode-metrics", "summary") if drafter else ()),
    )
    options = make_options(
        method=None if drafter else "plain",
        draft_length=settings.design.draft_tokens if drafter else None,
        users=users,
        context=context,
        engine=raw,
    )
    here = {"name": str(shop.target_folder), "revision": None}
    return make_plan(shop.host, shop.target.model_copy(update=here), drafter, None, options)
