"""The same clients once the run asks for keys, which it never stops doing: so this comes last."""

import sys

import anthropic
import openai
import pytest

from tests.engine.secured.clients import (
    call_by_chat,
    call_by_messages,
    call_by_responses,
    connect,
)
from tests.engine.secured.conftest import Secured
from tests.engine.service import find_secret

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def key(secured: Secured) -> str:
    """Make a key, and wait until the gate asks for it."""
    secret = secured.service.command("keys", "new", "--name", "agent").stdout.strip()
    took = secured.service.wait_for(lambda: secured.ask("/v1/models").status_code == 401, 30)
    sys.stdout.write(f"\na key is asked for after {took:.1f} s")
    return secret


def test_the_client_of_openai_is_let_in_by_its_key_alone(secured: Secured, key: str) -> None:
    with connect(secured, "openai-python", key) as model, openai.OpenAI(max_retries=0) as client:
        assert call_by_chat(client, model)[0] == "weather"
        assert call_by_responses(client, model)[0] == "weather"
    for wrong in ("none", key[:-1]):
        with connect(secured, "openai-python", wrong) as model:
            client = openai.OpenAI(max_retries=0)
            with pytest.raises(openai.AuthenticationError):
                call_by_chat(client, model)
            with pytest.raises(openai.AuthenticationError):
                call_by_responses(client, model)


@pytest.mark.parametrize("client", ["anthropic-python", "claude"])
def test_the_client_of_anthropic_is_let_in_by_its_key_alone(
    client: str, secured: Secured, key: str
) -> None:
    """As x-api-key, or as a token, which is what Claude Code sends."""
    with connect(secured, client, key) as model, anthropic.Anthropic(max_retries=0) as asking:
        assert call_by_messages(asking, model)[0] == "weather"
    for wrong in ("none", key[:-1]):
        with connect(secured, client, wrong) as model, anthropic.Anthropic(max_retries=0) as asking:
            with pytest.raises(anthropic.AuthenticationError) as refused:
                call_by_messages(asking, model)
            assert refused.value.body["type"] == "error"


def test_the_key_is_in_no_file_and_no_process_of_the_run(secured: Secured, key: str) -> None:
    assert find_secret(key, secured.service) == []
