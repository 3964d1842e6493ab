"""One simulated engine: a queue, chunked prefill, and steps whose time depends on the batch.

Between two arrivals or ends the batch is the same, so all steps until then pass at once: a request
costs a few events, however long its answer is. Steps stay whole: a request that arrives in the
middle of one waits for its end, and the step that reads a prompt is longer for everybody in it.
"""

from collections import deque
from dataclasses import dataclass
from heapq import heappop, heappush
from math import ceil

from slipstream.sizing.engine_speed import EngineSpeed

_HAIR = 1e-9


@dataclass(slots=True, eq=False)
class SimulatedRequest:
    """A request under way; `steps` are those after the one that gives its first token."""

    arrived: float
    kind: str
    prompt: int
    output: int
    steps: int
    first: float = -1.0


class Replica:
    """An engine's state at the end of its last step; `wake` is when it has to be looked at."""

    __slots__ = (
        *("load", "wake", "version", "busy_seconds", "_cost", "_length"),
        *("_marginal", "_by_prompt", "_most", "_budget", "_waiting", "_filling", "_ends"),
        *("_step", "_since", "_pace", "_filled", "_order", "_in_prefill"),
    )

    def __init__(self, speed: EngineSpeed, draft_length: int) -> None:
        cost = speed.find_cost(draft_length)
        self._cost, self._length = cost.fixed, draft_length
        self._marginal, self._by_prompt = cost.marginal(draft_length), speed.per_prompt_token
        self._most, self._budget = speed.max_sequences, speed.batched_tokens
        self._waiting: deque[SimulatedRequest] = deque()
        self._filling: deque[SimulatedRequest] = deque()
        self._filled: list[SimulatedRequest] = []
        self._ends: list[tuple[int, int, SimulatedRequest]] = []
        self._step = self._order = self.load = self.version = 0
        self._since = self._pace = self.busy_seconds = 0.0
        self._in_prefill = False
        self.wake: float | None = None

    def add(self, request: SimulatedRequest, now: float) -> bool:
        """Queue a request; return whether the replica has to be looked at sooner than planned."""
        self.load += 1
        self._waiting.append(request)
        if self.wake is None:
            self.wake = now
            return True
        if self._in_prefill or len(self._ends) >= self._most:
            return False
        whole = ceil((now - self._since) / self._pace - _HAIR)
        end = self._since + whole * self._pace
        if end < self.wake - _HAIR:
            self.wake = end
            return True
        return False

    def advance(self, now: float) -> list[SimulatedRequest]:
        """End the steps that are over, begin the next, and return the requests that ended."""
        ended = self._finish_steps(now)
        running = len(self._ends) + len(self._filling)
        while self._waiting and running < self._most:
            self._filling.append(self._waiting.popleft())
            running += 1
        self._since = now
        decoding = len(self._ends)
        self._in_prefill = bool(self._filling)
        if self._filling:
            tokens = self._read_prompts(self._budget - decoding * (self._length + 1))
            sequences = decoding + len(self._filled)
            self._pace = self._cost + self._marginal * sequences + self._by_prompt * tokens
            self.wake = now + self._pace
        elif decoding:
            self._pace = self._cost + self._marginal * decoding
            self.wake = now + (self._ends[0][0] - self._step) * self._pace
        else:
            self.wake = None
        return ended

    def fail(self) -> tuple[list[SimulatedRequest], list[SimulatedRequest]]:
        """Lose everything; return the requests without a token yet, and those under way."""
        fresh = [*self._filled, *self._filling, *self._waiting]
        begun = [request for _, _, request in self._ends]
        self._waiting.clear()
        self._filling.clear()
        self._filled, self._ends = [], []
        self.load, self.wake, self._in_prefill = 0, None, False
        return fresh, begun

    def _finish_steps(self, now: float) -> list[SimulatedRequest]:
        ended: list[SimulatedRequest] = []
        if self._in_prefill:
            self._step += 1
            self.busy_seconds += self._pace
            for request in self._filled:
                request.first = now
                if request.steps:
                    self._order += 1
                    heappush(self._ends, (self._step + request.steps, self._order, request))
                else:
                    ended.append(request)
            self._filled = []
        elif self._ends:
            steps = round((now - self._since) / self._pace)
            self._step += steps
            self.busy_seconds += steps * self._pace
        while self._ends and self._ends[0][0] <= self._step:
            ended.append(heappop(self._ends)[2])
        self.load -= len(ended)
        return ended

    def _read_prompts(self, budget: int) -> int:
        """Take prompts into the next step in their order; a long one goes on in the step after."""
        read, budget = 0, max(1, budget)
        while self._filling and budget > 0:
            request = self._filling[0]
            taken = min(request.prompt, budget)
            request.prompt -= taken
            read += taken
            budget -= taken
            if not request.prompt:
                self._filled.append(self._filling.popleft())
        return read
