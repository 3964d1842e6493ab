"""Loads: so many requests in flight until they run out, or all through, or arrivals by the clock.

A load that is allowed to run out is not one load but many: its last requests run in ever smaller
batches. A steady load keeps every place busy for as long as a request that counts is in flight.

A request that fails is a sample with an error, and the load goes on; a server that is not there at
all ends it before it begins.
"""

import asyncio
import math
import random
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import accumulate, count
from typing import Protocol

from slipstream.measuring.client.completions import Request, work_off, work_together
from slipstream.measuring.client.endpoint import Endpoint, no_answer, open_client, read_model
from slipstream.measuring.client.sample import Sample
from slipstream.measuring.client.streaming import OnTokens, stream
from slipstream.measuring.client.wire import Wire

OnSample = Callable[[Sample], None]


class _Measure(Protocol):
    async def __call__(self, request: Request, concurrency: int | None = None) -> Sample:
        """Send one request and return its sample."""


def run_closed_loop(
    endpoint: Endpoint, requests: Sequence[Request], *, concurrency: int
) -> list[Sample]:
    """Send all requests, `concurrency` at a time; return the samples in the requests' order."""

    async def run() -> list[Sample]:
        async with _open_load(endpoint) as measure:
            return await work_off(
                requests, lambda _, request: measure(request, concurrency), concurrency
            )

    return asyncio.run(run())


def run_steady_loop(
    endpoint: Endpoint,
    make_requests: Callable[[int], Sequence[Request]],
    *,
    counted: int,
    concurrency: int,
    on_sample: OnSample,
    on_tokens: OnTokens | None,
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
        async with _open_load(endpoint, on_tokens) as measure:

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
                    samples.append(await measure(request, concurrency))
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
    endpoint: Endpoint, requests: Sequence[Request], *, arrivals: Sequence[float]
) -> list[Sample]:
    """Send each request at its second, drawn or from a trace, whatever is still in flight."""

    async def run() -> list[Sample]:
        async with _open_load(endpoint) as measure:
            began = time.monotonic()

            async def work(_: int, pair: tuple[Request, float]) -> Sample:
                await asyncio.sleep(began + pair[1] - time.monotonic())
                return await measure(pair[0])

            return await work_off(pairs, work, len(pairs))

    pairs = list(zip(requests, arrivals, strict=True))
    return asyncio.run(run())


def draw_arrivals(count: int, *, rate: float, seed: int) -> tuple[float, ...]:
    """Draw the seconds of a Poisson process's first arrivals, `rate` a second on average."""
    chance = random.Random(seed)
    return tuple(accumulate(chance.expovariate(rate) for _ in range(count)))


@asynccontextmanager
async def _open_load(
    endpoint: Endpoint, on_tokens: OnTokens | None = None
) -> AsyncIterator[_Measure]:
    """Open connections and a clock; yield what measures one request.

    Without a concurrency a sample has as many as are in flight when it is sent.
    """
    wire = Wire(endpoint)
    model = await _find_model(endpoint, wire)
    began, in_flight = time.monotonic(), 0

    async def measure(request: Request, concurrency: int | None = None) -> Sample:
        nonlocal in_flight
        in_flight += 1
        try:
            return await stream(
                wire,
                request,
                model=model,
                concurrency=concurrency or in_flight,
                load_began=began,
                on_tokens=on_tokens,
            )
        finally:
            in_flight -= 1

    try:
        yield measure
    finally:
        wire.close()


async def _find_model(endpoint: Endpoint, wire: Wire) -> str:
    """Return the model's name, which also shows whether the server is there."""
    if endpoint.model is None:
        async with open_client(endpoint) as client:
            return (await read_model(client))[0]
    try:
        async with wire.borrow():
            return endpoint.model
    except OSError as fault:
        raise no_answer(endpoint.base, fault) from fault
