"""Tasks of a coding agent: a conversation that grows turn by turn, written by seed.

Each turn's request is the conversation so far: system prompt, tools, files, results of tools, short
answers. What the assistant said and called in earlier turns is scripted. So every server is sent
the same prompts whatever it answers, and what its prefix cache holds of them is its own doing. The
grammar is `data/agent.toml`, the tools are `data/agent-tools.json`. Arguments that are texts have a
short greatest length, so that a poor model's call ends, and all the same, which compiles once.
"""

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from slipstream.measuring.workloads.long_context import TemplateWriter
from slipstream.measuring.workloads.workload import CountTokens, Prompt, count_prompt_tokens

DATA = Path(__file__).parent / "data"
SIZES = {f"agent-{size}k": size * 1024 for size in (2, 8, 32)}
ANSWER = "answer"

_BOUND = re.compile(r"<(\w+)>")

Message = dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Result:
    """The message of a tool's result, to be filled up with pieces to its share."""

    message: Message
    step: Mapping[str, Any]
    subject: str


@cache
def make_agent_task(kind: str, name: str, count_tokens: CountTokens) -> tuple[Prompt, ...]:
    """Return the turns of a task, whose last one fills the kind's size with its answer."""
    grammar = _read_grammar()
    size = grammar["sizes"][kind]
    script, tools = _Script(grammar, Random(name)), _read_tools()[: size["tools"]]
    messages, results = script.write(size, tools)
    cuts = list(_find_requests(messages))

    def make_turn(number: int) -> Prompt:
        tool = size["script"][number]
        return Prompt(
            id=f"{name}/{number + 1}",
            kind=kind,
            messages=tuple(messages[: cuts[number]]),
            max_tokens=size["answer_tokens"],
            # Valid for every server; with a parser for calls the client asks for them.
            extra={"tools": tools, "tool_choice": "none"},
            origin="slipstream",
            task=name,
            turn=number + 1,
            expected_tool=None if tool == ANSWER else tool,
        )

    last = make_turn(len(cuts) - 1)
    left = SIZES[kind] - count_prompt_tokens(last, count_tokens) - last.max_tokens
    script.fill(results, left, count_tokens)
    return tuple(make_turn(number) for number in range(len(cuts)))


def _find_requests(messages: list[Message]) -> Iterator[int]:
    """Yield how many messages each request has: all before an answer of the assistant."""
    for number, message in enumerate(messages):
        if message["role"] == "assistant":
            yield number
    yield len(messages)


class _Script:
    """Writes a conversation after a script, and then fills its results."""

    def __init__(self, grammar: Mapping[str, Any], chance: Random) -> None:
        self._grammar = grammar
        self._chance = chance
        self._writer = TemplateWriter(
            grammar["words"],
            grammar["cast"],
            chance,
            clock=grammar["clock"],
            step_seconds=tuple(grammar["step_seconds"]),
        )

    def write(
        self, size: Mapping[str, Any], tools: list[dict[str, Any]]
    ) -> tuple[list[Message], list[_Result]]:
        """Write the whole conversation but for the last answer; results have only their opening."""
        rules = self._grammar["rules"][: size["rules"]]
        system = "\n".join([self._bind(self._grammar["opening"]), *rules])
        messages: list[Message] = [
            {"role": "system", "content": system},
            {"role": "user", "content": self._pick("requests")},
        ]
        results: list[_Result] = []
        shapes = {tool["function"]["name"]: tool["function"]["parameters"] for tool in tools}
        for number, word in enumerate(size["script"][:-1]):
            if word == ANSWER:
                messages.append({"role": "assistant", "content": self._pick("answers")})
                messages.append({"role": "user", "content": self._pick("follow_ups")})
                continue
            call, result = self._take_step(word, f"call{number:05d}", shapes[word])
            messages += [call, result.message]
            results.append(result)
        return messages, results

    def fill(self, results: list[_Result], tokens: int, count_tokens: CountTokens) -> None:
        """Distribute the tokens among the results."""
        left, weights = tokens, sum(result.step["weight"] for result in results)
        for result in results:
            weight = result.step["weight"]
            share = left * weight // weights if weight else 0
            weights -= weight
            used = 0
            while weight:
                piece = result.step["joint"] + self._write_piece(result)
                used += count_tokens(piece)
                if used > share:
                    used -= count_tokens(piece)
                    break
                result.message["content"] += piece
            left -= used

    def _take_step(self, tool: str, name: str, shape: dict[str, Any]) -> tuple[Message, _Result]:
        """Write a call and the opening of its result; Mistral's templates want such names."""
        step = self._grammar["steps"][tool]
        subject = self._bind(step["subject"])
        arguments = {
            key: self._make_argument(value, subject, shape["properties"][key])
            for key, value in step["arguments"].items()
        }
        function = {"name": tool, "arguments": json.dumps(arguments)}
        call = {
            "role": "assistant",
            "content": self._bind(self._chance.choice(step["remarks"]), subject),
            "tool_calls": [{"id": name, "type": "function", "function": function}],
        }
        content = self._bind(step["opening"], subject)
        message = {"role": "tool", "tool_call_id": name, "content": content}
        return call, _Result(message, step, subject)

    def _make_argument(self, value: Any, subject: str, shape: Mapping[str, Any]) -> Any:
        if not isinstance(value, str):
            return value
        text = self._bind(value, subject)
        return int(text) if shape["type"] == "integer" else text

    def _write_piece(self, result: _Result) -> str:
        template = self._chance.choice(result.step["pieces"])
        return self._writer.write_piece((self._replace(template, result.subject),))

    def _pick(self, name: str) -> str:
        return self._bind(self._chance.choice(self._grammar[name]))

    def _bind(self, template: str, subject: str = "") -> str:
        return self._writer.write(self._replace(template, subject))

    def _replace(self, template: str, subject: str) -> str:
        """Insert the words that are drawn once per text."""
        bound = {"it": subject}

        def draw(slot: re.Match[str]) -> str:
            name = slot[1].lower()
            if name not in bound and name not in self._grammar["words"]:
                return slot[0]
            if name not in bound:
                bound[name] = self._writer.write(f"{{{name}}}")
            word = bound[name]
            return word[:1].upper() + word[1:] if slot[1][0].isupper() else word

        return _BOUND.sub(draw, template)


@cache
def _read_grammar() -> dict[str, Any]:
    return tomllib.loads((DATA / "agent.toml").read_text())


@cache
def _read_tools() -> list[dict[str, Any]]:
    tools: list[dict[str, Any]] = json.loads((DATA / "agent-tools.json").read_text())
    return [{"type": "function", "function": tool} for tool in tools]
