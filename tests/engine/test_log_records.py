"""The records that quote a request are where `causes/diagnosis.py` says, in the installed vLLM."""

import re
from importlib.metadata import files

import pytest

from slipstream.engines.vllm import find_versions

pytestmark = [pytest.mark.engine, pytest.mark.beside]

# A file that ends so, and what a call of its logger begins with.
PLACES = {
    "model": ("chat_completion/serving.py", "Error with model %s"),
    "fields": ("serve/engine/protocol.py", "Request contains the removed guided-decoding"),
    "messages": ("renderers/chat_utils.py", "Tool call %r has arguments"),
    "responses": ("responses/utils.py", "Previous assistant message has unknown tool_calls"),
    "template": ("renderers/hf.py", "Chat template rejected the request: %s"),
    "dialect": ("parser/mistral.py", "Named tool %r not found"),
    "tokenization": ("renderers/params.py", "The following tokenization arguments"),
    "tools": ("tool_parsers/granite_20b_fc_tool_parser.py", "Error in extracting tool call"),
    "grammar": ("structured_output/__init__.py", "Failed to compile grammar for request"),
    "dump": ("logging_utils/dump_input.py", "Dumping scheduler output"),
    "request": ("v1/engine/core.py", "Unexpected error pre-processing request"),
    "refusal": ("handlers/validation.py", "RequestValidationError caught. Request id: "),
}


@pytest.mark.parametrize("kind", PLACES)
def test_a_quoting_record_is_still_written_where_we_look_for_it(kind: str) -> None:
    ending, words = PLACES[kind]
    installed = next(name for name in find_versions() if name.startswith("vllm"))
    (path,) = [file for file in files(installed) or () if str(file).endswith(ending)]
    text = re.sub(r'"\s*\n\s*"', "", path.read_text())
    assert re.search(rf"logger\.\w+\(\s*\"{re.escape(words)}", text)


def test_every_line_of_a_record_has_the_prefix_of_its_first() -> None:
    installed = next(name for name in find_versions() if name.startswith("vllm"))
    (path,) = [
        file for file in files(installed) or () if str(file).endswith("logging_utils/formatter.py")
    ]
    assert 'msg.replace("\\n", "\\r\\n" + parts[0])' in path.read_text()
