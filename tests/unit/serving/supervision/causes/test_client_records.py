"""Whatever a client has the engine write into its log, it is not why the engine died."""

from pathlib import Path

import pytest

from slipstream.serving.kept_logs import find_place, read_end
from slipstream.serving.supervision.causes.diagnosis import QUOTING, diagnose, drop_quotes

HEAD = "(APIServer pid=7) {} 11-16 04:47:11 [{}] "
# Each as vLLM 0.32 and uvicorn write it, with the caller's words in the place of {}.
EXAMPLES = {
    "model": HEAD.format("ERROR", "serving.py:274")
    + "Error with model error=ErrorInfo(message='The model `{}` does not exist.', code=404)",
    "fields": HEAD.format("WARNING", "protocol.py:65")
    + "Request contains the removed guided-decoding field(s) {}, which are ignored",
    "messages": HEAD.format("WARNING", "chat_utils.py:2201")
    + "Tool call '{}' has arguments that are not valid JSON (3 chars); coercing",
    "responses": HEAD.format("WARNING", "utils.py:361")
    + "Previous assistant message has unknown tool_calls format. Call {}",
    "template": HEAD.format("WARNING", "hf.py:839") + "Chat template rejected the request: {}",
    "dialect": HEAD.format("WARNING", "mistral.py:518")
    + "Named tool '{}' not found in tools list; skipping guided schema injection.",
    "dump": "(EngineCore pid=9) ERROR 11-16 04:47:11 [dump_input.py:79] Dumping scheduler output "
    "for model execution: SchedulerOutput(scheduled_new_reqs=[NewRequestData(req_id=cmpl-1,"
    "sampling_params=SamplingParams(stop=['{}']))])",
    "tokenization": HEAD.format("WARNING", "params.py:324")
    + "The following tokenization arguments are not supported by vLLM Renderer: {}",
    "tools": HEAD.format("ERROR", "granite_20b_fc_tool_parser.py:109")
    + "Error in extracting tool call from response {}",
    "reasoning": HEAD.format("ERROR", "qwen3_reasoning_parser.py:9") + "no end of {}",
    "grammar": "(EngineCore pid=9) ERROR 11-16 04:47:11 [__init__.py:208] "
    "Failed to compile grammar for request cmpl-1\r\n"
    "(EngineCore pid=9) ERROR 11-16 04:47:11 [__init__.py:208] Traceback (most recent call last):"
    "\r\n(EngineCore pid=9) ERROR 11-16 04:47:11 [__init__.py:208] ValueError: {}",
    "request": "(EngineCore pid=9) ERROR 11-16 04:47:11 [core.py:2056] "
    "Unexpected error pre-processing request cmpl-1\r\n"
    "(EngineCore pid=9) ERROR 11-16 04:47:11 [core.py:2056] ValueError: {}",
    "refusal": HEAD.format("ERROR", "validation.py:151")
    + "RequestValidationError caught. Request id: cmpl-1\r\n"
    + HEAD.format("ERROR", "validation.py:151")
    + "fastapi.exceptions.RequestValidationError: {}",
    "traceback": "ERROR:    Exception in ASGI application\n"
    'Traceback (most recent call last):\n  File "serving.py", line 3, in create\nKeyError: {}',
    "serialization": "/site-packages/pydantic/main.py:463: UserWarning: Pydantic serializer "
    "warnings:\n  PydanticSerializationUnexpectedValue(Expected `str` [input_value={}])",
}
WORDS = (
    "Illegal instruction",
    "Bus error",
    "[Errno 28] No space left on device",
    "CUDA error: an illegal memory access was encountered",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
    "x\rIllegal instruction\rFatal Python error: Bus error",
    "died unexpectedly (exit code: -9)",
    "ValueError: Model does not support EAGLE3 interface, device-side assert triggered",
)


def test_every_kind_of_record_has_its_example() -> None:
    assert EXAMPLES.keys() == QUOTING.keys()


@pytest.mark.parametrize("words", WORDS)
@pytest.mark.parametrize("kind", EXAMPLES)
def test_what_a_request_writes_into_the_log_is_no_cause(kind: str, words: str) -> None:
    log = EXAMPLES[kind].replace("{}", words) + "\n"
    assert diagnose(log) == ()
    assert words not in drop_quotes(log)


@pytest.mark.parametrize("kind", EXAMPLES)
def test_what_the_engine_says_after_it_is_kept(kind: str) -> None:
    said = "(EngineCore pid=9) ERROR 11-16 04:47:12 [core.py:1512] OSError: [Errno 24] Too many"
    log = f"{EXAMPLES[kind]}\n{said}\nKilled\n"
    assert drop_quotes(log).endswith(f"{said}\nKilled\n")


@pytest.mark.parametrize("most_bytes", range(1, 120))
def test_half_a_quoting_record_is_no_cause(tmp_path: Path, most_bytes: int) -> None:
    log = tmp_path / "engine.log"
    text = EXAMPLES["model"].replace("{}", "Illegal instruction") + "\nKilled\n"
    log.write_text(text[:-most_bytes])
    place = find_place(log)
    log.write_text(text)
    for read in (read_end(log, most_bytes), read_end(log, 10**6, place)):
        assert diagnose(read) in ((), diagnose("Killed"))
        assert drop_quotes(read) in ("", "Killed\n")
    assert read_end(log, 10**6) == log.read_text()
    assert read_end(log, len("Killed\n")) == "Killed\n"


def test_colours_hide_no_record() -> None:
    assert drop_quotes("\x1b[0;36m" + EXAMPLES["model"]) == ""


def test_a_progress_bar_before_it_does_not_hide_where_a_record_begins() -> None:
    log = "Loading shards:  12%\r" + EXAMPLES["model"].replace("{}", "x\rIllegal instruction")
    assert drop_quotes(log) == "Loading shards:  12%"
