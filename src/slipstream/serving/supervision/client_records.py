"""Log records that quote requests, which are never the cause of an engine's death.

vLLM quotes its callers where it refuses them: the name of a model, of a tool, what a template
says of a message. All lines of such a record have the same prefix. A traceback of uvicorn has
none, so there everything up to the next record is left out.
"""

import re

_COLOUR = re.compile(r"\x1b\[[\d;]*m")
_PROCESS = r"(?:\([^)\n]* pid=\d+[^)\n]*\) )*"
# What is logged in calm may quote a prompt. Only a wait for a worker is worth reading there.
_CALM = re.compile(rf"{_PROCESS}(?:DEBUG|INFO)\b(?!.*\[shm_broadcast\.py)")
_RECORD = re.compile(
    rf"{_PROCESS}(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)(?::\s+| [\d-]+ [\d:]+ (?=\[))"
)
_PLACE = re.compile(r"\[[^]]+\] ")
# Places and beginnings of records in vLLM 0.32, by what of a request they hold.
QUOTING = {
    "model": r"\[\S*?(?:batch_)?serving\.py:\d+\] ",
    "fields": r"\[\S*?protocol\.py:\d+\] ",
    "messages": r"\[\S*?(?:chat_utils|harmony|context)\.py:\d+\] ",
    "responses": r"\[\S*?utils\.py:\d+\] (?:Previous assistant message|Using summary text)",
    "template": r"\[\S*?hf\.py:\d+\] (?:Chat template|Error )",
    "dialect": r"\[\S*?(?:mistral|inkling)\.py:\d+\] ",
    "tokenization": r"\[\S*?params\.py:\d+\] ",
    "tools": r"\[\S*?tool_parser\.py:\d+\] ",
    "reasoning": r"\[\S*?reasoning_parser\.py:\d+\] ",
    "grammar": r"\[\S*\] (?:Failed to compile grammar for request|LLMatcher error: )",
    # A failing step dumps the requests in it: their stop strings and schemas.
    "dump": r"\[\S*?dump_input\.py:\d+\] ",
    "request": r"\[\S*\] Unexpected error pre-processing request ",
    "refusal": r"\[\S*\] (?:Engine )?(?:\w*Exception|RequestValidationError) caught\. Request id: ",
    "traceback": r"Exception in ASGI application",
    "serialization": r".*\bPydantic(?:Serialization| serializer warnings)",
}
_QUOTING = {name: re.compile(pattern) for name, pattern in QUOTING.items()}


def drop_quotes(log_text: str, *, calm: bool = True) -> str:
    """Return the log without records that quote a request, calm records and colours."""
    kept, quoting, in_traceback = list[str](), set[str](), False
    for line in _COLOUR.sub("", log_text).split("\n"):
        parts = list[str]()
        # What follows a carriage return within a quoting record is quoted, too.
        for part in line.split("\r") if "\r" in line else (line,):
            if record := _RECORD.match(part):
                words = part[record.end() :]
                in_traceback = bool(_QUOTING["traceback"].match(words))
                place = _PLACE.match(words)
                prefix = record[0] + place[0] if place else None
                if prefix in quoting or any(one.match(words) for one in _QUOTING.values()):
                    quoting |= {prefix} if prefix else set()
                    break
            elif in_traceback or ("Pydantic" in part and _QUOTING["serialization"].match(part)):
                break
            if calm and _CALM.match(part):
                break
            parts.append(part)
        kept.append("\r".join(parts))
    return "\n".join(kept)
