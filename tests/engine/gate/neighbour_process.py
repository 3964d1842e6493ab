"""A caller that streams small ordinary requests, one after the other, until its input ends.

Usage: neighbour_process.py PORT SAMPLES, the key on the first line of the input. Every answer is
a line of SAMPLES: when it began, its seconds, the seconds to its first token, its status.
"""

import json
import sys
import threading
import time
from http.client import HTTPConnection

PROMPTS = ("Name a colour.", "What is two and two?", "Say hello.", "Count to five.")
MAX_TOKENS = 4


def main(port: int, samples: str) -> None:
    """Ask until the input ends."""
    key = sys.stdin.readline().strip()
    reading = threading.Thread(target=sys.stdin.read, daemon=True)
    reading.start()
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    server = HTTPConnection("127.0.0.1", port, timeout=120)
    number = 0
    with open(samples, "w", buffering=1) as file:  # noqa: PTH123
        while reading.is_alive():
            body = {
                "model": "target",
                "messages": [{"role": "user", "content": PROMPTS[number % len(PROMPTS)]}],
                "max_tokens": MAX_TOKENS,
                "temperature": 0,
                "ignore_eos": True,
                "stream": True,
            }
            number += 1
            began = time.monotonic()
            server.request("POST", "/v1/chat/completions", json.dumps(body), headers)
            answer = server.getresponse()
            answer.readline()
            first = time.monotonic() - began
            answer.read()
            line = [began, time.monotonic() - began, first, answer.status]
            file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
