"""Clients of a fleet: each asks one request after the other until standard input has a line.

The order is the only argument, the figures are one JSON document on standard output.
"""

import asyncio
import json
import ssl
import statistics
import sys
import time
from collections import Counter
from typing import Any

import httpx

KINDS = ("chat", "chat stream", "completion", "completion stream")


async def work(
    client: httpx.AsyncClient,
    order: dict[str, Any],
    number: int,
    over: asyncio.Event,
    seen: list[tuple[str, float]],
    faults: list[str],
) -> None:
    """Ask until it is over."""
    while not over.is_set():
        kind = KINDS[(len(seen) + number) % len(KINDS)]
        stream = kind.endswith("stream")
        body: dict[str, Any] = {"model": "small-qwen3", "max_tokens": order["tokens"]}
        body |= {"stream": stream, "temperature": 0, "ignore_eos": True}
        if kind.startswith("chat"):
            path = "/v1/chat/completions"
            body["messages"] = [{"role": "user", "content": f"Count from {number}."}]
        else:
            path, body["prompt"] = "/v1/completions", f"Count from {number}:"
        began = time.monotonic()
        try:
            answer = await client.post(path, json=body)
            whole = answer.text.rstrip().endswith("[DONE]") if stream else "usage" in answer.json()
            if answer.status_code != 200 or not whole:
                faults.append(f"{kind}: {answer.status_code} {answer.text[-200:]}")
            group = answer.headers.get("x-slipstream-group", "?")
        except (httpx.HTTPError, ValueError) as fault:
            faults.append(f"{kind}: {type(fault).__name__} {fault}")
            group = "?"
        seen.append((group, time.monotonic() - began))


async def main(order: dict[str, Any]) -> None:
    """Run the clients, and print what they saw."""
    over, seen, faults = asyncio.Event(), list[tuple[str, float]](), list[str]()
    trust = ssl.create_default_context(cafile=order["authority"])
    headers = {"authorization": f"Bearer {order['key']}"}
    async with httpx.AsyncClient(
        base_url=order["url"], verify=trust, headers=headers, timeout=300, trust_env=False
    ) as client:
        working = [
            asyncio.create_task(work(client, order, number, over, seen, faults))
            for number in range(order["clients"])
        ]
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
        over.set()
        await asyncio.gather(*working)
    seconds = [took for _, took in seen] or [0.0]
    figures = {
        "asked": len(seen),
        "failed": len(faults),
        "faults": faults[:20],
        "groups": dict(Counter(group for group, _ in seen)),
        "median_seconds": round(statistics.median(seconds), 2),
        "longest_seconds": round(max(seconds), 2),
    }
    print(json.dumps(figures))  # noqa: T201


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
