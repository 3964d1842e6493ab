"""The supervisor's own requests: warm-up until the time per token is stable, test request, probe.

The first requests after vLLM calls itself healthy are slow: kernels are compiled for shapes
that its own warm-up did not meet, 30 s for the first one on a GB10.
"""

import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from slipstream.engines.prometheus import parse_metrics, read_figures
from slipstream.errors import EngineError
from slipstream.serving.access.own_listener import OwnListener
from slipstream.steering.drafts import Drafts

STORY = "The lighthouse keeper wrote in the log that night: the wind came from the north, and"
PROOFS = (
    "Write down the numbers from one to twenty in order: one, two, three, four, five,",
    "def add(a, b):\n    return a + b\n\ndef subtract(a, b):\n    return a - b\n\ndef multiply(",
    "The days of the week are Monday, Tuesday, Wednesday, Thursday,",
    STORY,
)
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
WARM_TOKENS = 24
PROOF_TOKENS = 64
LONG_PROMPT_TOKENS = 1024
FLAT_RUNS = 3
FLAT_WITHIN = 1.25
MOST_RUNS = 12
PROBE_SECONDS = 5.0
ANSWER_SECONDS = 600.0

# What a client sees when a server closes a connection that it kept, just as a request goes out.
_CLOSED = (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError)


@dataclass(frozen=True, slots=True)
class GeneratedText:
    prompt_tokens: int
    tokens: int
    seconds: float

    @property
    def seconds_per_token(self) -> float:
        """Return the total time per token; the prompts are short."""
        return self.seconds / max(1, self.tokens)


@dataclass(frozen=True, slots=True)
class Proof:
    """A generation with its counts of drafts and accepted tokens."""

    generation: GeneratedText
    drafts: int
    accepted: int

    @property
    def tokens_per_second(self) -> float:
        return 1 / self.generation.seconds_per_token

    @property
    def tokens_per_step(self) -> float | None:
        """Return the mean acceptance length, None without drafts."""
        return Drafts(drafts=self.drafts, accepted=(self.accepted,)).tokens_per_step


@dataclass(frozen=True, slots=True)
class WarmUpTimes:
    """The warm-up: its requests, the first and last time per token, and whether it is stable."""

    requests: int
    first_seconds_per_token: float
    last_seconds_per_token: float
    flat: bool
    prefill_tokens_per_s: float


class Asker:
    """The supervisor's client, with a key for probes that only our engine ever receives."""

    def __init__(
        self, listener: OwnListener, model: str, key: str, tls: ssl.SSLContext | None = None
    ) -> None:
        self.listener, self._model = listener, model
        self._key = {"authorization": f"Bearer {key}"}
        self._health_headers: dict[str, str] = {}
        address = listener.address
        verify: ssl.SSLContext | bool = tls or False
        self._client = httpx.AsyncClient(
            base_url=address.url,
            timeout=ANSWER_SECONDS,
            trust_env=False,
            verify=verify,
            transport=httpx.AsyncHTTPTransport(uds=address.socket, verify=verify)
            if address.socket
            else None,
        )

    async def close(self) -> None:
        await self._client.aclose()

    async def is_healthy(self) -> bool | None:
        """Return whether the engine's health check succeeds, None if it does not answer in time."""
        try:
            answer = await self._check_health()
        except httpx.TimeoutException:
            return None
        except httpx.HTTPError:
            return False
        return answer.status_code == httpx.codes.OK

    async def _check_health(self) -> httpx.Response:
        """Ask for health, and once more if the connection was closed or a key is needed."""
        try:
            answer = await self._ask_health()
        except _CLOSED:
            answer = await self._ask_health()
        if answer.status_code == httpx.codes.UNAUTHORIZED and not self._health_headers:
            self._health_headers = self._key
            answer = await self._ask_health()
        return answer

    async def _ask_health(self) -> httpx.Response:
        return await self._ask("GET", "/health", self._health_headers, timeout=PROBE_SECONDS)

    async def _ask(
        self, method: str, path: str, headers: Mapping[str, str], **how: Any
    ) -> httpx.Response:
        """Send a request, over connections of which each is known to lead to our engine."""
        trace = {"trace": self.listener.watch()}
        return await self._client.request(method, path, headers=headers, extensions=trace, **how)

    async def probe(self) -> bool:
        """Generate one token and return whether it came in time; a closed connection is retried."""
        for _ in range(2):
            try:
                await self.generate(STORY, 1, timeout=PROBE_SECONDS)
            except EngineError as fault:
                if not isinstance(fault.__cause__, _CLOSED):
                    return False
            else:
                return True
        return False

    async def generate(
        self,
        prompt: str,
        max_tokens: int,
        *,
        extra: Mapping[str, Any] | None = None,
        timeout: float = ANSWER_SECONDS,
    ) -> GeneratedText:
        body = {
            "model": self._model,
            "prompt": prompt,
            "max_tokens": max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            **(extra or {}),
        }
        began = time.monotonic()
        try:
            answer = await self._ask(
                "POST", "/v1/completions", self._key, json=body, timeout=timeout
            )
            answer.raise_for_status()
            usage = answer.json()["usage"]
            counted = int(usage["prompt_tokens"]), int(usage["completion_tokens"])
        except (httpx.HTTPError, ValueError, KeyError, TypeError) as fault:
            refused = isinstance(fault, httpx.HTTPStatusError)
            # Before the colon is what a bug report keeps.
            what = f"status {answer.status_code}" if refused else type(fault).__name__
            why = f"failed with {what}: {fault}".strip().splitlines()[0]
            raise EngineError(
                f"a generation of {max_tokens} tokens {why}", hint="slipstream logs"
            ) from fault
        return GeneratedText(*counted, time.monotonic() - began)

    async def count_drafts(self) -> tuple[int, int]:
        found = await self._read_figures(ANSWER_SECONDS)
        return int(found.get("drafts", 0)), int(found.get("accepted", 0))

    async def count_tokens(self) -> int:
        found = await self._read_figures(PROBE_SECONDS)
        return int(sum(found.get(name, 0) for name in ("prompt_tokens", "output_tokens")))

    async def read_context(self) -> int | None:
        """Return the tokens of the longest sequence that the engine serves, if it says so."""
        try:
            answer = await self._ask("GET", "/v1/models", self._key, timeout=PROBE_SECONDS)
            longest = answer.json()["data"][0]["max_model_len"]
        except (httpx.HTTPError, LookupError, TypeError, ValueError):
            return None
        return longest if isinstance(longest, int) else None

    async def _read_figures(self, timeout: float) -> dict[str, float]:
        try:
            answer = await self._ask("GET", "/metrics", self._key, timeout=timeout)
            answer.raise_for_status()
        except httpx.HTTPError as fault:
            raise EngineError("the engine returns no metrics", hint="slipstream logs") from fault
        return read_figures(parse_metrics(answer.text))


async def warm_up(asker: Asker, context: int, report: Callable[[str], None]) -> WarmUpTimes:
    """Send the shapes that users will send, then repeat one request until its time is stable."""
    words = STORY.split()
    long_tokens = min(LONG_PROMPT_TOKENS, context // 2)
    long_prompt = " ".join(words[at % len(words)] for at in range(int(long_tokens * 0.7)))
    prefill = await asker.generate(long_prompt, 1)
    report(f"a prompt of {prefill.prompt_tokens} tokens took {prefill.seconds:.1f} s")
    for name, extra in _KINDS.items():
        try:
            done = await asker.generate(f"{name}: {STORY}", WARM_TOKENS, extra=extra)
            report(f"a {name} answer took {done.seconds:.1f} s")
        except EngineError as fault:
            report(f"{name} answers fail: {fault.message}")
    times: list[float] = []
    while len(times) < MOST_RUNS and not is_flat(times):
        done = await asker.generate(STORY, WARM_TOKENS)
        times.append(done.seconds_per_token)
        report(f"warm-up {len(times)}: {1000 * times[-1]:.0f} ms per token")
    return WarmUpTimes(
        requests=1 + len(_KINDS) + len(times),
        first_seconds_per_token=times[0],
        last_seconds_per_token=times[-1],
        flat=is_flat(times),
        prefill_tokens_per_s=prefill.prompt_tokens / prefill.seconds,
    )


def is_flat(times: list[float]) -> bool:
    last = times[-FLAT_RUNS:]
    return len(last) == FLAT_RUNS and max(last) <= FLAT_WITHIN * min(last)


async def prove(
    asker: Asker, *, drafts: bool, prompts: Sequence[str] = PROOFS, tokens: int = PROOF_TOKENS
) -> Proof:
    """Generate a real answer; with a drafter, try other prompts until a draft is accepted."""
    began = await asker.count_drafts()
    for prompt in prompts:
        generation = await asker.generate(prompt, tokens)
        counted = await asker.count_drafts()
        proof = Proof(generation, counted[0] - began[0], counted[1] - began[1])
        if proof.accepted or not drafts:
            break
    return proof


_KINDS: dict[str, Mapping[str, Any]] = {
    "sampled": {"temperature": 0.8, "top_p": 0.95, "top_k": 20, "seed": 1},
    "penalised": {"presence_penalty": 0.5, "frequency_penalty": 0.5, "repetition_penalty": 1.1},
    # Compiled at the first use, which took a minute of a busy machine and looked like a hang.
    "log probability": {"logprobs": 5, "echo": True},
    "structured": {"structured_outputs": {"json": SCHEMA}, "ignore_eos": False},
}
