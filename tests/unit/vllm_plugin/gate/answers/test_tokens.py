"""Tokens are read from what each API reports, and from nothing that a client wrote."""

import pytest

from slipstream.vllm_plugin.gate.answers.tokens import Usage, read_usage

USAGE = b'"usage":{"prompt_tokens":12,"total_tokens":46,"completion_tokens":34}'
CACHED = b'"cache_read_input_tokens":100,"cache_creation_input_tokens":null'


@pytest.mark.parametrize(
    ("chunk", "usage"),
    [
        (b'{"choices":[{"message":{"content":"\\"usage\\": 9"}}],' + USAGE + b"}", Usage(12, 34)),
        (b'{"usage": {"prompt_tokens": 1, "completion_tokens": 2}}', Usage(1, 2)),
        (b'{"usage":{"prompt_tokens":0,"completion_tokens":0}}', Usage(0, 0)),
        (b'{"user":"usage","x":1,' + USAGE + b',"user":"usage"}', Usage(12, 34)),
        (b'{"metadata":{"usage":{"output_tokens":1}},' + USAGE + b"}", Usage(12, 34)),
        (b'event: message_start\n{"usage":{"input_tokens":5,"output_tokens":0}}', Usage(5, None)),
        (b'event: message_delta\n{"usage":{"input_tokens":5,"output_tokens":7}}', Usage(5, 7)),
        (b'{"usage":{"input_tokens":5,"output_tokens":7,' + CACHED + b"}}", Usage(105, 7)),
        (b'event: response.completed\n{"usage":{"input_tokens":5,"output_tokens":7}}', Usage(5, 7)),
        (b'event: response.created\n{"usage":{"input_tokens":5,"output_tokens":7}}', Usage()),
        (b'event: response.in_progress\n{"usage":{"output_tokens":7}}', Usage()),
        (b'{"usage":null}', Usage()),
        (b'{"content":"\\"usage\\":{\\"prompt_tokens\\":9}"}', Usage()),
        (b'{"usage":{"prompt_tokens":"9","completion_tokens":[]}}', Usage()),
        (b'{"usage":{"prompt_tok', Usage()),
        (b'{"usage":' + b"[" * 5000, Usage()),
        (USAGE + b"x" * 100_000, Usage()),
        (b"\xff\xfe" + USAGE, Usage(12, 34)),
        (b"", Usage()),
    ],
)
def test_the_last_usage_of_a_chunk_counts(chunk: bytes, usage: Usage) -> None:
    assert read_usage(chunk) == usage
