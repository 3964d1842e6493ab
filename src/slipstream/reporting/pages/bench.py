"""A `BenchReport` as a page with charts, and as Markdown."""

from slipstream.measuring.bench import BenchReport
from slipstream.measuring.comparing.blocks import Block
from slipstream.reporting.pages.comparison import draw_loads, draw_run
from slipstream.reporting.pages.html_page import render_page
from slipstream.reporting.pages.report import render_markdown
from slipstream.reporting.pages.sides import take_side
from slipstream.reporting.pages.timeline import Strip
from slipstream.reporting.text.bench import describe_bench


def render_bench_markdown(report: BenchReport) -> str:
    """Write a server's figures as Markdown."""
    return render_markdown(describe_bench(report))


def render_bench_html(report: BenchReport) -> str:
    """Write a server's figures as one page."""
    sides = [take_side(report)]
    block = Block(arm="B", round=0, samples=report.samples)
    strip = Strip("server", report.conditions.start_seconds, report.warm_up, block)
    return render_page(describe_bench(report), [*draw_loads(sides), draw_run([strip], sides)])
