"""The phases of a start, read from excerpts of real logs of vLLM 0.32.

Both CPU logs were written on two cores. No GPU was at hand: that log is put together from the
messages in the source of 0.32.0, in the order in which the V2 runner says them.
"""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as some

from slipstream.engines.vllm_log import PHASES, PhaseMark, PhaseTracker, read_phase

PLAIN_CPU_LOG = """\
Triton is installed, but doesn't include CPU backend. Disabling Triton.
(EngineCore pid=11582) INFO 11-15 05:29:52 [core.py:133] Initializing a V1 LLM engine (v0.32.0) \
with config: model='SmolLM2-135M-Instruct', speculative_config=None
(Worker pid=11652) INFO 11-15 05:30:15 [cpu_model_runner.py:68] Starting to load model \
SmolLM2-135M-Instruct...
\rLoading safetensors checkpoint shards:   0% Completed | 0/1 [00:00<?, ?it/s]
\rLoading safetensors checkpoint shards: 100% Completed | 1/1 [00:00<00:00,  4.29it/s]
\rLoading safetensors checkpoint shards: 100% Completed | 1/1 [00:00<00:00,  4.29it/s]

(EngineCore pid=11582) INFO 11-15 05:30:17 [utils.py:347] Using LBHNC KV cache layout.
(Worker pid=11652) INFO 11-15 05:30:17 [cpu_worker.py:260] Explicitly set (3.17/23.54) GiB for KV \
cache on node 0.
(EngineCore pid=11582) INFO 11-15 05:30:17 [kv_cache_utils.py:2327] CPU KV cache size: 136,822 \
tokens, Maximum concurrency for 1,068 tokens per request: 128.11x
(EngineCore pid=11582) INFO 11-15 05:30:20 [core.py:402] init engine (profile, create kv cache, \
warmup model) took 3.53 s
(APIServer pid=11536) INFO 11-15 05:30:22 [entry.py:140] Starting vLLM server on http://127.0.0.1:1
INFO:     Waiting for application startup.
INFO:     Application startup complete.
(APIServer pid=11536) INFO 11-15 05:30:33 [loggers.py:335] Engine 000: CPU KV cache usage: 11.1%
"""
DRAFTING_CPU_LOG = """\
(EngineCore pid=13813) INFO 11-15 03:12:55 [core.py:133] Initializing a V1 LLM engine (v0.32.0)
(Worker pid=13823) INFO 11-15 03:13:03 [cpu_model_runner.py:68] Starting to load model SmolLM2...
\rLoading safetensors checkpoint shards:   0% Completed | 0/1 [00:00<?, ?it/s]
\rLoading safetensors checkpoint shards: 100% Completed | 1/1 [00:00<00:00,  2.56it/s]

(Worker pid=13823) INFO 11-15 03:13:05 [cpu_model_runner.py:75] Loading drafter model...
\rLoading safetensors checkpoint shards:   0% Completed | 0/1 [00:00<?, ?it/s]
\rLoading safetensors checkpoint shards: 100% Completed | 1/1 [00:00<00:00, 553.56it/s]
(EngineCore pid=13813) INFO 11-15 03:13:07 [kv_cache_utils.py:2327] CPU KV cache size: 16,384 tokens
(EngineCore pid=13813) INFO 11-15 03:13:08 [core.py:402] init engine (profile, create kv cache
INFO:     Application startup complete.
"""
GPU_LOG = """\
(EngineCore pid=2) INFO 11-15 03:00:00 [core.py:133] Initializing a V1 LLM engine (v0.32.0)
(Worker pid=3) INFO 11-15 03:00:09 [model_runner.py:394] Loading model from scratch...
\rLoading safetensors checkpoint shards:   0% Completed | 0/2 [00:00<?, ?it/s]
\rLoading safetensors checkpoint shards:  50% Completed | 1/2 [00:20<00:20, 20.00s/it]
\rLoading safetensors checkpoint shards: 100% Completed | 2/2 [00:40<00:00, 20.00s/it]
\rLoading safetensors checkpoint shards:   0% Completed | 0/1 [00:00<?, ?it/s]
\rLoading safetensors checkpoint shards: 100% Completed | 1/1 [00:04<00:00,  4.00s/it]
(Worker pid=3) INFO 11-15 03:01:01 [monitor.py:42] [backbone] Starting torch.compile
(Worker pid=3) INFO 11-15 03:01:09 [backends.py:1166] Dynamo bytecode transform time: 7.10 s
\rCapturing CUDA graphs (PIECEWISE):   0%|          | 0/2 [00:00<?, ?it/s]\
\rCapturing CUDA graphs (PIECEWISE): 100%|██████████| 2/2 [00:00<00:00,  4.29it/s]
(Worker pid=3) INFO 11-15 03:01:40 [model_runner.py:1127] Graph capturing finished in 2 secs
(Worker pid=3) INFO 11-15 03:01:41 [gpu_worker.py:759] Available KV cache memory: 40.00 GiB
(EngineCore pid=2) INFO 11-15 03:01:41 [kv_cache_utils.py:2327] GPU KV cache size: 300,000 tokens
(Worker pid=3) INFO 11-15 03:01:42 [kernel_warmup.py:176] JIT kernel warmup starting.
\rCapturing CUDA graphs (FULL):   0%|          | 0/2 [00:00<?, ?it/s]\
\rCapturing CUDA graphs (FULL):  50%|█████     | 1/2 [00:00<00:00,  4.29it/s]\
(EngineCore pid=2) INFO 11-15 03:01:59 [core.py:402] init engine (profile, create kv cache
(APIServer pid=1) INFO 11-15 03:02:00 [entry.py:140] Starting vLLM server on http://127.0.0.1:1
INFO:     Application startup complete.
"""
LOGS = (PLAIN_CPU_LOG, DRAFTING_CPU_LOG, GPU_LOG)
LISTENING = [("server", None), ("listening", None)]


def follow(log: str, *, drafts: bool = True) -> list[tuple[str, float | None]]:
    marks = PhaseTracker(0, drafts=drafts).feed(log, 1)
    return [(mark.phase, mark.share) for mark in marks]


@pytest.mark.parametrize(
    ("said", "phase", "share"),
    [
        ("Initializing a V1 LLM engine (v0.32.0) with config: model='m'", "engine", None),
        ("Starting to load model owner/model...", "weights", None),
        ("Loading model from scratch...", "weights", None),
        ("Loading safetensors checkpoint shards:  50% Completed | 1/2 [0", "weights", 0.5),
        ("Loading safetensors checkpoint shards (eager):   7% Completed | 1/14", "weights", 0.07),
        ("Loading safetensors using InstantTensor loader:  25% Completed | 1/4", "weights", 0.25),
        ("Loading pt checkpoint shards: 100% Completed | 1/1 [00:00", "weights", 1),
        ("Multi-thread loading shards:  10% Completed | 1/10 [00:00", "weights", 0.1),
        ("Loading drafter model...", "drafter", None),
        ("Warming up model for the compilation...", "compile", None),
        ("Dynamo bytecode transform time: 7.10 s", "compile", None),
        ("[eagle_head] Compiling a graph for compile range (1, 8) takes 3 s", "compile", None),
        ("Directly load AOT compilation from path /cache/model", "compile", None),
        ("Profiling CUDA graph memory: FULL=35 (largest=256)", "profile", None),
        ("Initial profiling/warmup run took 1.20 s", "profile", None),
        ("Available KV cache memory: 40.00 GiB", "cache", None),
        ("Auto set (1.00/8.00) GiB for KV cache on node 0, with 2 GiB", "cache", None),
        ("Initial free memory 90.10 GiB, reserved 36.00 GiB memory for KV Cache", "cache", None),
        ("GPU + host KV cache size: 1,000 tokens", "cache", None),
        ("Capturing CUDA graphs (decode, FULL):  50%|█████     | 1/2 [00:0", "graphs", 0.5),
        ("Capturing model for DFlash speculator...", "graphs", None),
        ("Graph capturing finished in 5 secs, took 0.50 GiB", "graphs", None),
        ("init engine (profile, create kv cache, warmup model) took 3.53 s", "server", None),
        ("Starting vLLM server on http://127.0.0.1:1", "server", None),
        ("Application startup complete.", "listening", None),
    ],
)
@pytest.mark.parametrize(
    "prefix",
    [
        "",
        "INFO:     ",
        "(Worker pid=3) INFO 11-15 05:30:15 [a_b.py:68] ",
        "(VllmWorker-0 pid=3) INFO 11-15 05:30:15 [v1/.../core.py:68] ",
        "\x1b[0;36m(Worker pid=3)\x1b[0;0m INFO 11-15 05:30:15 \x1b[90m[a.py:6]\x1b[0m ",
    ],
)
def test_a_line_tells_its_phase_whoever_says_it(
    prefix: str, said: str, phase: str, share: float | None
) -> None:
    mark = read_phase(f"{prefix}{said}\n")
    assert mark is not None
    assert (mark.phase, mark.share) == (phase, share)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "INFO:     Waiting for application startup.",
        "INFO:     Application shutdown complete.",
        '(APIServer pid=1) INFO 11-15 05:30:33 [a.py:1] prompt: "Loading drafter model..."',
        "(APIServer pid=1) INFO 11-15 05:30:33 [loggers.py:335] CPU KV cache usage: 11.1%",
        "(EngineCore pid=2) INFO 11-15 05:30:17 [utils.py:347] Using LBHNC KV cache layout.",
    ],
)
def test_other_lines_tell_no_phase(line: str) -> None:
    assert read_phase(line) is None


LOADED = [("engine", None), ("weights", None), ("weights", 1)]
HALVES = [("engine", None), ("weights", None), ("weights", 0.5), ("weights", 1)]
MADE = [("compile", None), ("profile", None), ("cache", None), ("graphs", None)]


@pytest.mark.parametrize(
    ("log", "drafts", "phases"),
    [
        (PLAIN_CPU_LOG, True, [*LOADED, ("cache", None)]),
        # The bar after the drafter's line is the drafter's.
        (DRAFTING_CPU_LOG, True, [*LOADED, ("drafter", None), ("drafter", 1), ("cache", None)]),
        # A GPU's runner does not name the drafter; a second bar is its own if there is one.
        (GPU_LOG, True, [*HALVES, ("drafter", 0), ("drafter", 1), *MADE]),
        (GPU_LOG, False, [*HALVES, *MADE]),
    ],
)
def test_a_start_is_followed_to_its_end(
    log: str, drafts: bool, phases: list[tuple[str, float | None]]
) -> None:
    assert follow(log, drafts=drafts) == [*phases, *LISTENING]


def test_graphs_that_are_captured_to_learn_their_size_are_part_of_the_profile() -> None:
    rehearsal = "Capturing CUDA graphs (FULL):  50%|█████     | 1/2 [00:00\n"
    tracker = PhaseTracker(0, drafts=True)
    assert tracker.feed(rehearsal, 1) == (PhaseMark("profile"),)
    assert tracker.feed("Available KV cache memory: 40.00 GiB\n", 2) == (PhaseMark("cache"),)
    assert tracker.feed(rehearsal, 3) == (PhaseMark("graphs"),)


def test_a_line_counts_when_it_is_whole() -> None:
    tracker = PhaseTracker(0, drafts=True)
    assert tracker.feed("(Worker pid=3) INFO 11-15 05:30:15 [a.py:1] Loading dra", 1) == ()
    assert tracker.feed("fter model...", 2) == ()
    assert tracker.feed("\n", 3) == (PhaseMark("drafter"),)


def test_what_another_process_says_behind_a_bar_is_not_lost() -> None:
    glued = (
        "\rCapturing CUDA graphs (FULL):  50%|█████     | 1/2 [00:00<00:00]"
        "(EngineCore pid=2) INFO 11-15 03:01:59 [core.py:402] init engine (profile) took 3 s\n"
    )
    assert follow(glued) == [("profile", None), ("server", None)]


def test_each_phase_lasts_until_the_next_begins() -> None:
    tracker = PhaseTracker(100, drafts=False)
    tracker.feed("Starting to load model m...\n", 110)
    tracker.feed("Loading safetensors checkpoint shards:  50% Completed | 1/2\n", 130)
    tracker.feed("CPU KV cache size: 1 tokens\n", 150)
    assert tracker.seconds_by_phase(151) == {"boot": 10, "weights": 40, "cache": 1}
    tracker.feed("Application startup complete.\n", 160)
    assert tracker.seconds_by_phase(999) == {"boot": 10, "weights": 40, "cache": 10}


@given(log=some.sampled_from(LOGS), cuts=some.lists(some.integers(0, 4000)))
def test_how_the_log_is_cut_into_chunks_changes_nothing(log: str, cuts: list[int]) -> None:
    tracker = PhaseTracker(0, drafts=True)
    edges = [0, *sorted(min(cut, len(log)) for cut in cuts), len(log)]
    marks = [
        (mark.phase, mark.share)
        for begin, end in pairwise(edges)
        for mark in tracker.feed(log[begin:end], 1)
    ]
    assert marks == follow(log)


@given(some.lists(some.sampled_from("".join(LOGS).splitlines(keepends=True)), max_size=60))
def test_a_start_never_goes_back(lines: list[str]) -> None:
    tracker = PhaseTracker(0, drafts=True)
    marks = [mark for now, line in enumerate(lines) for mark in tracker.feed(line, now)]
    steps = [(PHASES.index(mark.phase), mark.share or 0) for mark in marks]
    assert steps == sorted(steps)
    assert len(set(marks)) == len(marks)
    seconds = tracker.seconds_by_phase(len(lines))
    assert list(seconds) == [phase for phase in PHASES if phase in seconds]
    assert min(seconds.values()) >= 0
