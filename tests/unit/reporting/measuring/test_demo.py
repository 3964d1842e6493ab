"""A demo's outcome in words and as a page, with what it cannot tell."""

from slipstream.demo.performance import Demo
from slipstream.hardware import load_host
from slipstream.measuring.machine_watch import MachineLoad
from slipstream.reporting.measuring.demo import describe_demo, render_demo_html
from slipstream.reporting.report import Report, render_text
from tests.snapshots import read_snapshot
from tests.unit.demo.pieces import TEXT, make_demo
from tests.unit.reporting.page_reading import Reader, find_drawings, list_texts
from tests.unit.reporting.records import BUSY


def render_demo_text(demo: Demo) -> str:
    return render_text(describe_demo(demo))


def test_the_terminal_gets_the_sentence_the_prompts_and_the_limits() -> None:
    shown = render_demo_text(make_demo(TEXT[:8] + "!" + TEXT[9:])) + "\n"
    assert shown == read_snapshot("demo.txt", shown)


def test_equal_texts_are_not_sold_as_a_proof() -> None:
    shown = render_demo_text(make_demo())
    assert "the same text for 2 prompts proves nothing; `slipstream verify` tests it" in shown
    assert "nearly tied" not in shown


def test_the_outcome_has_a_name() -> None:
    answers = [describe_demo(make_demo(step=step)).answer for step in (1.0, 2.8, 4.0)]
    assert answers == ["faster", "even", "slower"]


def on_machine(name: str, features: tuple[str, ...], demo: Demo) -> Demo:
    host = load_host(name)
    processor = host.processor.model_copy(update={"features": features})
    conditions = demo.conditions.model_copy(
        update={"host": host.model_copy(update={"processor": processor})}
    )
    return demo.model_copy(update={"conditions": conditions})


def test_drafts_that_lose_say_why_and_name_a_processor_without_bfloat16() -> None:
    slow = make_demo(step=4.1)
    why = "A verification step takes 4.1 plain steps' time here, and 2.7 tokens come out of it: "
    without = describe_demo(on_machine("cpu-server", ("avx2",), slow)).sentence
    assert f"{why}drafting loses. This processor has no bfloat16 instructions. On" in without
    assert without.endswith("plain one, 2.7 tokens per step are what carries over.")
    for name, features in (("cpu-server", ("amx_bf16",)), ("gb10", ("neon",)), ("cpu-server", ())):
        told = describe_demo(on_machine(name, features, slow)).sentence
        assert f"{why}drafting loses. On a GPU" in told
    assert "verification step" not in describe_demo(make_demo()).sentence
    assert "drafting wins" in render_demo_text(make_demo())


def test_a_target_in_8_bits_is_told_with_its_reason() -> None:
    why = "an 8-bit matrix product takes 0.30 of the time of one in float32 here"
    told = render_demo_text(make_demo().model_copy(update={"quantized": why}))
    assert f"the target is quantized in both engines: {why}" in told
    assert "quantized in both" not in render_demo_text(make_demo())


def test_a_busy_machine_takes_the_verdict_away() -> None:
    quiet = BUSY.model_copy(update={"other_cpu_share": 0.02})
    demo = make_demo()

    def describe(*machines: MachineLoad) -> Report:
        starts = tuple(
            start.model_copy(update={"machine": machine})
            for start, machine in zip(demo.starts, machines, strict=True)
        )
        return describe_demo(demo.model_copy(update={"starts": starts}))

    report = describe(BUSY, quiet)
    assert report.answer == "cannot tell"
    assert report.sentence.startswith(
        "Cannot tell: the machine was busy during 1 of 2 starts: other processes used 0.9 of 2 "
        "cores, most of it ffmpeg. By these times: drafts made"
    )
    assert describe(quiet, quiet).answer == "faster"


def test_the_page_draws_each_prompt_and_has_both_texts_and_every_second() -> None:
    page = render_demo_html(make_demo(TEXT[:-5]))
    drawings = find_drawings(page)
    assert "4.5 s" in list_texts(drawings[0])
    assert [len(drawing.findall(".//path")) for drawing in drawings] == [2, 2]
    read = Reader(page)
    assert read.dangers == []
    for told in (
        TEXT,
        TEXT[:-5],
        "Some prose, please.",
        "one is longer",
        "9.5",
        "100.0 ms",
        "2.79",
    ):
        assert any(told in words for words in read.words), told


def test_a_step_of_the_stairs_is_a_chunk() -> None:
    plain, drafted = find_drawings(render_demo_html(make_demo()))[1].findall(".//path")
    assert (plain.get("d") or "").count("V") == len(TEXT)
    assert (drafted.get("d") or "").count("V") == 11
