"""Loads: so many requests in flight until they run out, or all through, or arrivals by the clock.

A load that is allowed to run out is not one load but many: its last requests run in ever smaller
batches. A steady load keeps every place busy for as long as a request that counts is in flight.

A request that fails is a sample with an error, and the load goes on; a server that is not
there at all ends it before it begins. At the deadline nothing more is sent, and what is in
flight ends with an error.
"""

import asyncio
import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate, count

from slipstream.measuring.client.completions import Request, work_together
from slipstream.measuring.client.endpoint import Endpoint, no_answer, open_client, read_model
from slipstream.measuring.client.sample import Sample
from slipstream.measuring.client.streaming import OnTokens, stream
from slipstream.measuring.client.wire import Wire

OnSample = Callable[[Sample], None]


def run_closed_loop(
    endpoint: Endpoint,
    requests: Sequence[Request],
    *,
    concurrency: int,
    deadline_seconds: float = math.inf,
    on_sample: OnSample = lambda _: None,
) -> list[Sample]:
    """Send all requests, `concurrency` at a time; return the samples in the requests' order."""

    async def run() -> list[Sample]:
        async with _Load(endpoint, requests, deadline_seconds, on_sample) as load:
            waiting = iter(range(len(requests)))

            async def work() -> None:
                for number in waiting:
                    await load.send(number, concurrency)

            await work_together(min(concurrency, len(requests)), work)
        return load.list_samples()

    return asyncio.run(run())


def run_steady_loop(
    endpoint: Endpoint,
    make_requests: Callable[[int], Sequence[Request]],
    *,
    counted: int,
    concurrency: int,
    on_sample: OnSample = lambda _: None,
    on_tokens: OnTokens | None = None,
) -> list[Sample]:
    """Return the samples of the tasks 0, 1, ... `counted`, each run with every place busy.

    A task is one request, or turns that are asked one after the other until one fails. Tasks with
    negative numbers fill the places first, with graded lengths, so that the places do not start
    their next tasks together. Tasks from `counted` on keep the places busy until the last one that
    counts has ended; then they are dropped.
    """

    async def run() -> list[Sample]:
        numbers = count(-concurrency if concurrency > 1 else 0)
        kept: dict[int, list[Sample]] = {}
        async with _Load(endpoint, (), math.inf, lambda _: None, on_tokens) as load:

            async def work() -> None:
                for number in numbers:
                    requests = make_requests(number)
                    if number < 0:
                        requests = _shorten(requests, -number / concurrency)
                    counts = 0 <= number < counted
                    samples = await ask(requests, on_sample if counts else lambda _: None)
                    if counts:
                        kept[number] = samples
                    if len(kept) == counted:
                        for place in places:
                            place.cancel()
                        return
                    if number >= counted and samples[-1].error is not None:
                        return

            async def ask(requests: Sequence[Request], on_sample: OnSample) -> list[Sample]:
                samples: list[Sample] = []
                for request in requests:
                    samples.append(await load.measure(request, concurrency))
                    on_sample(samples[-1])
                    if samples[-1].error is not None:
                        break
                return samples

            places: list[asyncio.Task[None]] = []
            await work_together(concurrency, work, places)
        return [sample for number in sorted(kept) for sample in kept[number]]

    return asyncio.run(run())


def _shorten(requests: Sequence[Request], share: float) -> Sequence[Request]:
    """Return the first turns of a task, or a request with a shorter answer."""
    if len(requests) > 1:
        return requests[: math.ceil(len(requests) * share)]
    (request,) = requests
    return [replace(request, max_tokens=max(1, math.ceil(request.max_tokens * share)))]


def run_open_loop(
    endpoint: Endpoint,
    requests: Sequence[Request],
    *,
    arrivals: Sequence[float],
    deadline_seconds: float = math.inf,
    on_sample: OnSample = lambda _: None,
) -> list[Sample]:
    """Send each request at its second, drawn or from a trace, whatever is still in flight."""

    async def run() -> list[Sample]:
        async with _Load(endpoint, requests, deadline_seconds, on_sample) as load:
            waiting = iter(enumerate(arrivals))

            async def work() -> None:
                number, arrival = next(waiting)
                await asyncio.sleep(load.count_seconds_until(arrival))
                await load.send(number)

            await work_together(len(requests), work)
        return load.list_samples()

    if len(arrivals) != len(requests):
        raise ValueError(f"{len(arrivals)} arrivals for {len(requests)} requests")
    return asyncio.run(run())


def draw_arrivals(count: int, *, rate: float, seed: int) -> tuple[float, ...]:
    """Draw the seconds of a Poisson process's first arrivals, `rate` a second on average."""
    chance = random.Random(seed)
    return tuple(accumulate(chance.expovariate(rate) for _ in range(count)))


class _Load:
    """A load under way: its connections, its clock and its samples so far."""

    def __init__(
        self,
        endpoint: Endpoint,
        requests: Sequence[Request],
        deadline_seconds: float,
        on_sample: OnSample,
        on_tokens: OnTokens | None = None,
    ) -> None:
        self._endpoint = endpoint
        self._on_tokens = on_tokens
        self._requests = requests
        self._deadline_seconds = deadline_seconds
        self._on_sample = on_sample
        self._wire = Wire(endpoint)
        self._samples: dict[int, Sample] = {}
        self._in_flight = 0

    async def __aenter__(self) -> "_Load":
        self._model = await self._find_model()
        self._began = time.monotonic()
        self._until = self._began + self._deadline_seconds
        return self

    async def __aexit__(self, *_: object) -> None:
        self._wire.close()

    async def send(self, number: int, concurrency: int | None = None) -> None:
        """Send one request and keep its sample, unless the deadline has passed."""
        if time.monotonic() >= self._until:
            return
        sample = await self.measure(self._requests[number], concurrency)
        self._samples[number] = sample
        self._on_sample(sample)

    async def measure(self, request: Request, concurrency: int | None = None) -> Sample:
        """Send one request and return its sample."""
        self._in_flight += 1
        try:
            return await stream(
                self._wire,
                request,
                model=self._model,
                concurrency=concurrency or self._in_flight,
                load_began=self._began,
                until=self._until,
                on_tokens=self._on_tokens,
            )
        finally:
            self._in_flight -= 1

    def count_seconds_until(self, arrival: float) -> float:
        """Count the seconds until an arrival or the deadline, whichever comes first."""
        return min(self._began + arrival, self._until) - time.monotonic()

    def list_samples(self) -> list[Sample]:
        """List the samples in the order of their requests."""
        return [self._samples[number] for number in sorted(self._samples)]

    async def _find_model(self) -> str:
        """Return the model's name, which also shows whether the server is there."""
        if self._endpoint.model is None:
            async with open_client(self._endpoint) as client:
                return await read_model(client)
        try:
            async with self._wire.borrow():
                return self._endpoint.model
        except OSError as fault:
            raise no_answer(self._endpoint.base, fault) from fault
