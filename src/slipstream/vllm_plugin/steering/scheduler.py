"""vLLM's scheduler, steered: `--scheduler-cls slipstream.vllm_plugin.steering.scheduler.make`.

Like a patch it is for the source that it was written for. With another, or if our own part cannot
be loaded, vLLM's own scheduler runs; a line in the log says so, and the run notes it. vLLM asks
its table of lengths (`dynamic_sd_lookup`) once per step: an object in its place is all it takes.
"""

import logging
import os
import time
from collections import deque
from collections.abc import Callable
from hashlib import sha256
from inspect import getsource
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import RequestStatus
from vllm.v1.spec_decode.metrics import SpecDecodingStats

if TYPE_CHECKING:
    from slipstream.vllm_plugin.steering.steering import Steering

MOST_COPIED = 31
GATE_VARIABLE = "SLIPSTREAM_GATE"
COPY_VARIABLE = "SLIPSTREAM_COPY"
# The methods of Scheduler that are overridden or relied upon, by every name that a version has for
# them, and the SHA-256 of their source.
TOUCHED = (
    "schedule",
    "update_from_output",
    "make_spec_decoding_stats",
    "add_request",
    "finish_requests",
    "_free_request",
    "update_draft_token_ids",
)
KNOWN_SOURCES = {
    "0.32": "f1d9a06c496e7e2ac49a28422d3909bf6e3391148b8592d30f8b7964f9a616e1",
    "0.33": "e0309e7dbcc021e50d9370e771e4f7a26923a7f73fb2e7e1fdaa1244e337b9da",
}
_ENDED = {
    RequestStatus.FINISHED_STOPPED: "stop",
    RequestStatus.FINISHED_LENGTH_CAPPED: "length",
    RequestStatus.FINISHED_ABORTED: "aborted",
}

log = logging.getLogger("vllm.slipstream")


def make(*, vllm_config: Any, **others: Any) -> Any:
    """Return the scheduler for a config, steered if its source is known and there is a run."""
    asynchronous = vllm_config.scheduler_config.async_scheduling
    try:
        gate = _require_gate()
        from slipstream.vllm_plugin.steering.steering import Steering
    except Exception as fault:  # noqa: BLE001 an engine serves without steering, too
        log.warning("slipstream steering: not applied: %s", fault)
        plain = AsyncScheduler if asynchronous else Scheduler
        return plain(vllm_config=vllm_config, **others)
    steered = SteeredAsyncScheduler if asynchronous else SteeredScheduler
    scheduler = steered(vllm_config=vllm_config, **others)
    scheduler.steer(Steering, Path(gate).parent, vllm_config)
    return scheduler


def _require_gate() -> str:
    """Return the gate's settings file, which lies where the run's files are."""
    if (gate := os.environ.get(GATE_VARIABLE)) is None:
        raise LookupError("no folder of a run is set")
    if hash_source() not in KNOWN_SOURCES.values():
        raise LookupError("the source of vLLM's scheduler differs from the known one")
    return gate


def hash_source() -> str:
    there = (name for name in TOUCHED if name in vars(Scheduler))
    methods = (getsource(getattr(Scheduler, name)) for name in there)
    return sha256("".join(methods).encode()).hexdigest()


def find_most_copied(config: Any) -> int:
    """Return the longest copy, 0 if nothing is copied.

    Only a synchronous scheduler sees drafts before they are verified, and only a greedy drafter's
    are points: with a distribution beside each of its tokens vLLM would hold a copy against that.
    """
    method = getattr(config.speculative_config, "draft_sample_method", None)
    if config.scheduler_config.async_scheduling or method != "greedy":
        return 0
    return min(int(os.environ.get(COPY_VARIABLE, 0)), MOST_COPIED)


class _Steered:
    """The steering that is added to either scheduler; vLLM's own methods do all the work."""

    _steering: "Steering"

    def steer(self: Any, steering: type["Steering"], folder: Path, config: Any) -> None:
        """Start steering: from now on the draft length is ours."""
        from slipstream.vllm_plugin.steering.draft_length import begin_on_gpu, list_lengths

        longest, planned = self.num_spec_tokens, self.dynamic_sd_lookup
        lengths = list_lengths(config, longest, planned, os.environ)
        if config.use_v2_model_runner:
            planned = begin_on_gpu(longest, self.max_num_running_reqs, planned)
        rank = config.parallel_config.data_parallel_rank
        self._most_copied = find_most_copied(config)
        self._steering = steering(folder, lengths, longest=longest, planned=planned, rank=rank)
        if self._steering.steers or self._most_copied:
            self.dynamic_sd_lookup = _SteeredLookup(self._steering)
        self._begun: deque[tuple[int, float]] = deque(maxlen=8)
        self._ended = time.perf_counter()
        self._idle, self._updating = True, False
        self._longest_verified = max(longest, self._most_copied)
        self._finished: list[Any] = []
        self._drafts: dict[str, tuple[int, int]] = {}
        log.warning("slipstream steering: draft lengths %s", lengths)

    def schedule(self: Any, *arguments: Any, **named: Any) -> Any:
        output = super().schedule(*arguments, **named)  # type: ignore[misc]
        self._begun.append((id(output), time.perf_counter()))
        return output

    def update_from_output(self: Any, scheduler_output: Any, model_runner_output: Any) -> Any:
        self._updating = True
        try:
            results = super().update_from_output(  # type: ignore[misc]
                scheduler_output, model_runner_output
            )
        finally:
            self._updating = False
        began, now = self._find_beginning(scheduler_output), time.perf_counter()
        tokens = self._count_tokens(scheduler_output.num_scheduled_tokens, results)
        waiting, drafted = len(self.waiting), scheduler_output.num_spec_tokens_to_schedule
        self._steering.see_step(
            scheduler_output.num_scheduled_tokens,
            tokens,
            self._drafts,
            # From 0.33 on the runner drafts nothing where nobody could use it.
            0 if getattr(scheduler_output, "skip_drafts", False) else drafted,
            seconds=None if began is None else now - began,
            waiting=waiting,
            cache=self.kv_cache_manager.usage,
        )
        self._drafts.clear()
        self._write_ended()
        self._ended, self._idle = now, not self.running
        if self._idle:
            self._steering.rest(waiting)
        return results

    def _count_tokens(self: Any, scheduled: dict[str, int], results: Any) -> dict[str, int]:
        """Return the tokens that each request of a step was given."""
        ledger, given = self._steering.ledger, dict.fromkeys(scheduled, 0)
        for outputs in results.values():
            for one in outputs.outputs:
                if one.prefill_stats is not None:
                    ledger.see_cached(one.request_id, one.prefill_stats.num_cached_tokens)
                given[one.request_id] = len(one.new_token_ids)
        return given

    def update_draft_token_ids(self: Any, draft_token_ids: Any) -> None:
        """Let every request verify what is worth it: a part of its draft, or a copy."""
        names, rows = draft_token_ids.req_ids, draft_token_ids.draft_token_ids
        chances = getattr(draft_token_ids, "chances", None)
        found = [(place, self.requests.get(name)) for place, name in enumerate(names)]
        generating = [
            (place, request)
            for place, request in found
            if request is not None and not request.is_prefill_chunk and not request.is_finished()
        ]
        bound = self._bound_copies()
        chosen = self._steering.choose_drafts(
            [(one.request_id, one._all_token_ids, bound(one)) for _, one in generating],
            [rows[place] for place, _ in generating],
            chances and [chances[place] for place, _ in generating],
        )
        for (place, _), draft in zip(generating, chosen, strict=True):
            rows[place] = draft
        super().update_draft_token_ids(draft_token_ids)  # type: ignore[misc]

    def _bound_copies(self: Any) -> Callable[[Any], int]:
        """Return the longest copy by request.

        A step has so many tokens for all, and vLLM has masks of a grammar and states of a thinking
        budget for as many tokens as are drafted.
        """
        seats, running = self.max_num_running_reqs, self.running
        constrained = sum(request.use_structured_output for request in running)
        masked = self._steering.find_most_constrained(seats, constrained)
        share = self.max_num_scheduled_tokens // max(1, len(running)) - 1
        most: int = min(self._most_copied, share)

        def bound(request: Any) -> int:
            thinks = getattr(request.sampling_params, "thinking_token_budget", None) is not None
            room: int = self.num_spec_tokens if thinks else most
            return min(most, room, masked if request.use_structured_output else most)

        return bound

    def make_spec_decoding_stats(
        self: Any,
        spec_decoding_stats: Any,
        num_draft_tokens: int,
        num_accepted_tokens: int,
        num_invalid_spec_tokens: dict[str, int] | None,
        request_id: str,
    ) -> Any:
        """Count a draft of a request where vLLM counts it for all."""
        valid = num_draft_tokens - (num_invalid_spec_tokens or {}).get(request_id, 0)
        self._drafts[request_id] = (valid, num_accepted_tokens)
        if spec_decoding_stats is None and self._most_copied and self.log_stats:
            spec_decoding_stats = SpecDecodingStats.new(self._longest_verified)
        return super().make_spec_decoding_stats(  # type: ignore[misc]
            spec_decoding_stats,
            num_draft_tokens,
            num_accepted_tokens,
            num_invalid_spec_tokens,
            request_id,
        )

    def add_request(self: Any, request: Any) -> Any:
        params = request.sampling_params
        if params is not None:
            self._steering.begin(request.request_id, params.extra_args, params.temperature)
        added = super().add_request(request)  # type: ignore[misc]
        if (metrics := request.spec_decode_metrics) is not None:
            metrics.histogram += [0] * (self._longest_verified + 1 - len(metrics.histogram))
        return added

    def finish_requests(self: Any, *arguments: Any, **named: Any) -> Any:
        """Finish requests from outside, which happens when a client leaves."""
        finished = super().finish_requests(*arguments, **named)  # type: ignore[misc]
        if not self._updating:
            self._write_ended()
        return finished

    def _free_request(self: Any, request: Any, *arguments: Any, **named: Any) -> Any:
        self._finished.append(request)
        return super()._free_request(request, *arguments, **named)  # type: ignore[misc]

    def shutdown(self: Any) -> None:
        self._steering.close()
        super().shutdown()  # type: ignore[misc]

    def _write_ended(self: Any) -> None:
        for request in self._finished:
            # Images are placeholder tokens in a prompt.
            of_text = request.prompt_token_ids is not None and not request.mm_features
            self._steering.end(
                request.request_id,
                _ENDED.get(request.status, "other"),
                prompt=request.num_prompt_tokens,
                tokens=request.num_output_tokens,
                text=(request.prompt_token_ids, request.output_token_ids) if of_text else None,
            )
        self._finished.clear()

    def _find_beginning(self: Any, output: Any) -> float | None:
        """Return when a step began: with the end of the last one, unless the engine was idle."""
        while self._begun:
            step, at = self._begun.popleft()
            if step == id(output):
                ended: float = self._ended
                return at if self._idle else ended
        return None


class SteeredScheduler(_Steered, Scheduler):  # type: ignore[misc]
    """The steered synchronous scheduler."""


class SteeredAsyncScheduler(_Steered, AsyncScheduler):  # type: ignore[misc]
    """The steered scheduler that plans a step while the last one runs."""


class _SteeredLookup:
    """Replaces vLLM's table of lengths by batch, which is read once per step."""

    def __init__(self, steering: "Steering") -> None:
        self._steering = steering

    def __getitem__(self, sequences: int) -> int:
        return self._steering.choose_width(sequences)
