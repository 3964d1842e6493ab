"""The cases: tools and schemas that have failed under speculation, each with its report.

Strings, numbers and lists are bounded wherever the grammar can bound them, so that even a small
model's arguments end. Most answers are streamed: that is where a step of several tokens meets a
parser that was written for one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

ApiName = Literal["chat", "responses", "messages"]

REPORTS = {
    "vllm#34650": "the grammar is ignored when reasoning ends within a draft",
    "vllm#35421": "a chunk of several tokens makes broken JSON of a call",
    "vllm#35800": "malformed calls until the next restart",
    "vllm#41967": "of several calls in one chunk the first loses its arguments",
    "vllm#48228": "a doubled brace at the beginning of structured output after reasoning",
    "vllm#55284": "the Responses stream breaks off when a step spans the end of a call",
    "vllm#56077": "arguments come back empty or as part of a key",
}


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool that a model may call."""

    name: str
    description: str
    schema: dict[str, Any]

    def describe(self) -> dict[str, Any]:
        """Return it as OpenAI's APIs describe a function."""
        return {"name": self.name, "description": self.description, "parameters": self.schema}


@dataclass(frozen=True, slots=True)
class EarlierCall:
    """A call that was made earlier in the conversation, and its result."""

    id: str
    name: str
    arguments: str
    result: str


Turn = str | tuple[EarlierCall, ...]
"""What the user said, or the calls of one answer."""


class Way(NamedTuple):
    """The API of a case, and whether the answer is streamed."""

    api: ApiName
    streamed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One case; `choice` is auto, required, or the name of the tool that must be called."""

    name: str
    turns: Sequence[Turn]
    tools: Sequence[Tool] = ()
    choice: str = "auto"
    parallel: bool = True
    strict: bool = True
    schema: dict[str, Any] | None = None
    max_tokens: int = 64
    reasons: bool = False
    ways: Sequence[Way]
    reports: Sequence[str] = field(default=())


def _object(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


WEATHER = Tool(
    "get_weather",
    "Weather of a city",
    _object(
        city={"type": "string", "enum": ["Lisbon", "Oslo", "Lima"]},
        days={"type": "integer", "minimum": 1, "maximum": 9},
        unit={"enum": ["C", "F", None]},
    ),
)
CLOCK = Tool(
    "get_time",
    "Time in a city",
    _object(city={"type": "string", "enum": ["Lisbon", "Oslo", "Lima"]}),
)
PLACES = Tool(
    "mark",
    "Mark a place on the map",
    _object(
        place={"enum": ["Zürich · Bahnhof", "東京タワー", "São Paulo ❄️🚲", 'a "quoted" \\ name\n']},
        note={"type": "string", "maxLength": 16},
    ),
)
TRIP = Tool(
    "book_trip",
    "Book a trip",
    _object(
        traveller=_object(
            name={"type": "string", "maxLength": 12},
            contact=_object(phone={"type": ["string", "null"], "maxLength": 8}),
        ),
        stops={
            "type": "array",
            "minItems": 2,
            "maxItems": 2,
            "items": _object(city={"enum": ["Oslo", "Lima"]}),
        },
        budget={"type": "number", "minimum": 0, "maximum": 99},
        insured={"type": "boolean"},
    ),
)
SERIES = Tool(
    "store",
    "Store a series of measurements",
    _object(
        values={
            "type": "array",
            "minItems": 16,
            "maxItems": 16,
            "items": {"type": "integer", "minimum": 0, "maximum": 9},
        }
    ),
)
REPORT = _object(
    title={"type": "string", "maxLength": 16},
    mood={"enum": ["good", "bad", None]},
    scores={"type": "array", "minItems": 2, "maxItems": 2, "items": {"enum": [1, 2, 3]}},
    detail=_object(open={"type": "boolean"}),
)

_STREAMED = (Way("chat", True), Way("responses", True), Way("messages", True))
_WHOLE = (Way("chat", False), Way("responses", False), Way("messages", False))
_FIRST = Case(
    name="named",
    turns=["What will the weather be in Oslo for the next 3 days?"],
    tools=[WEATHER, CLOCK],
    choice="get_weather",
    ways=[*_STREAMED, *_WHOLE],
    reports=["vllm#35421"],
)

CASES: tuple[Case, ...] = (
    _FIRST,
    Case(
        name="required",
        turns=["What time is it in Lisbon?"],
        tools=[WEATHER, CLOCK],
        choice="required",
        parallel=False,
        ways=[Way("chat", True), Way("responses", False)],
    ),
    Case(
        name="parallel",
        turns=[
            "What time is it in Oslo and in Lima? Call get_time for both.",
            (
                EarlierCall("call_1", "get_time", '{"city": "Oslo"}', "11:15"),
                EarlierCall("call_2", "get_time", '{"city": "Lima"}', "05:15"),
            ),
            "And in Lisbon and in Oslo?",
        ],
        tools=[CLOCK],
        choice="required",
        max_tokens=96,
        ways=[*_STREAMED, Way("chat", False)],
        reports=["vllm#41967", "vllm#55284"],
    ),
    Case(
        name="unicode",
        turns=["Mark the tower in 東京."],
        tools=[PLACES],
        choice="mark",
        ways=_STREAMED,
        reports=["vllm#35421"],
    ),
    Case(
        name="nested",
        turns=["Book a trip to Oslo and Lima for Ana."],
        tools=[TRIP],
        choice="book_trip",
        max_tokens=128,
        ways=_STREAMED,
        reports=["vllm#48228"],
    ),
    Case(
        name="long",
        turns=["Store 16 measurements between 0 and 9."],
        tools=[SERIES],
        choice="store",
        max_tokens=128,
        ways=_STREAMED,
        reports=["vllm#35421"],
    ),
    Case(
        name="auto",
        turns=[
            "What time is it in Lisbon?",
            (EarlierCall("call_1", "get_time", '{"city": "Lisbon"}', "10:15"),),
            "And in Oslo? Call get_time again.",
        ],
        tools=[CLOCK],
        strict=False,
        ways=[*_STREAMED, Way("chat", False)],
        reports=["vllm#55284", "vllm#56077"],
    ),
    Case(
        name="schema",
        turns=["Write a short report about your day as JSON."],
        schema=REPORT,
        max_tokens=96,
        ways=[*_STREAMED, Way("chat", False)],
    ),
    Case(
        name="call after reasoning",
        turns=["Think about it briefly: what will the weather be in Oslo tomorrow?"],
        tools=[WEATHER, CLOCK],
        choice="required",
        max_tokens=512,
        reasons=True,
        ways=_STREAMED,
        reports=["vllm#34650", "vllm#55284"],
    ),
    Case(
        name="schema after reasoning",
        turns=["Think about it briefly, then write a short report about a rainy day as JSON."],
        schema=REPORT,
        max_tokens=512,
        reasons=True,
        ways=_STREAMED,
        reports=["vllm#34650", "vllm#48228"],
    ),
    replace(_FIRST, name="named again", ways=[Way("chat", True)], reports=["vllm#35800"]),
)
