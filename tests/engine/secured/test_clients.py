"""The official clients and one program against the real engine, as `connect` points them at it.

Without keys; test_with_keys.py follows. What is proven is the wire: the model's words are poor.
"""

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import anthropic
import openai
import pytest

from tests.docs.documents import read_blocks, run_blocks
from tests.engine.secured.clients import (
    QUESTION,
    TOKENS,
    call_by_chat,
    call_by_messages,
    call_by_responses,
    connect,
)
from tests.engine.secured.conftest import Secured
from tests.engine.service import read_lines

pytestmark = pytest.mark.engine

TESTED = {"streamed answer", "tool call, forced", "long prompt"}


def check_call(called: tuple[str, object]) -> None:
    name, arguments = called
    assert name == "weather"
    assert arguments in ({"unit": "celsius"}, {"unit": "fahrenheit"})


@pytest.mark.parametrize("client", ["claude", "llm"])
def test_connect_finds_that_the_api_works(client: str, secured: Secured) -> None:
    done = secured.service.command("connect", client, "--test", "--json", check=False)
    checks = {one["what"]: one for one in json.loads(done.stdout)["checks"]}
    shown = [f"  {name}: {one['works']}, {one['message']}" for name, one in checks.items()]
    sys.stdout.write("\n".join(["", client, *shown]))
    wanted = TESTED | ({"counted tokens"} if client == "claude" else set())
    assert {name: checks[name]["works"] for name in wanted} == dict.fromkeys(wanted, True)
    # It is too short for an agent, and said to be.
    assert done.returncode == (0 if client == "llm" else 1)


def test_the_client_of_openai_streams_and_calls_tools(secured: Secured) -> None:
    with connect(secured, "openai-python") as model, openai.OpenAI(max_retries=0) as client:
        assert model in [one.id for one in client.models.list()]
        messages = [{"role": "user", "content": QUESTION}]
        chunks = list(
            client.chat.completions.create(
                model=model,
                messages=messages,
                max_tokens=TOKENS,
                stream=True,
                stream_options={"include_usage": True},
            )
        )
        usage = chunks[-1].usage
        assert usage is not None
        text = "".join(one.choices[0].delta.content or "" for one in chunks if one.choices)
        assert text
        assert usage.completion_tokens <= TOKENS
        check_call(call_by_chat(client, model))
        asked = {"model": model, "input": QUESTION, "max_output_tokens": 16, "store": False}
        events = list(client.responses.create(**asked, stream=True))
        deltas = [one.delta for one in events if one.type == "response.output_text.delta"]
        assert events[-1].type in ("response.completed", "response.incomplete")
        assert "".join(deltas) == events[-1].response.output_text
        check_call(call_by_responses(client, model))
        with pytest.raises(openai.NotFoundError):
            client.responses.create(model="another", input=QUESTION)


def test_the_client_of_anthropic_streams_and_calls_tools(secured: Secured) -> None:
    messages = [{"role": "user", "content": QUESTION}]
    with (
        connect(secured, "anthropic-python") as model,
        anthropic.Anthropic(max_retries=0) as client,
    ):
        with client.messages.stream(
            model=model,
            messages=messages,
            max_tokens=TOKENS,
        ) as stream:
            text = "".join(stream.text_stream)
            final = stream.get_final_message()
        assert text
        assert final.usage.output_tokens <= TOKENS
        counted = client.messages.count_tokens(model=model, messages=messages)
        assert counted.input_tokens == final.usage.input_tokens
        check_call(call_by_messages(client, model))
        with pytest.raises(anthropic.NotFoundError):
            client.messages.create(model="another", messages=messages, max_tokens=1)


def test_a_program_finds_what_connect_wrote(secured: Secured, tmp_path: Path) -> None:
    """The `llm` command, with its own file and in a home of its own."""
    folder = tmp_path / "llm"
    program = shutil.which("llm", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    assert program, "pip install --group dev"
    secured.service.environment["LLM_USER_PATH"] = str(folder)
    told = json.loads(secured.service.command("connect", "llm", "--write", "--json").stdout)
    del secured.service.environment["LLM_USER_PATH"]
    before = count_routes(secured)
    done = subprocess.run(
        [program, *told["written_command"][1:], "--no-log", "-o", "max_tokens", "16", QUESTION],
        env={**os.environ, **told["trust"], "LLM_USER_PATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    sys.stdout.write(f"\n{told['written_command']}: {done.stdout.strip()!r}")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert count_routes(secured) - before == {"POST /v1/chat/completions": 1}


def test_the_page_about_agents_says_what_is_so(secured: Secured, tmp_path: Path) -> None:
    """What it types needs a run that is live; this is one."""
    blocks = [block for block in read_blocks("docs/agents.md") if block.needs("run")]
    state = {"XDG_STATE_HOME": str(secured.service.home / "state")}
    assert blocks
    assert run_blocks(blocks, tmp_path, state) is None


def count_routes(secured: Secured) -> Counter[str]:
    """Count the requests so far by their route, as the access log has them."""
    lines = read_lines(secured.service.command("logs", "--access", "--json").stdout)
    return Counter(line["route"] for line in lines)
