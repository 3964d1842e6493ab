"""A `CacheCost` as a report and as a page."""

from collections.abc import Callable

from slipstream.measuring.verifying.cache_cost import CacheCost, CachedText, KindCost
from slipstream.reporting.html_page import render_page
from slipstream.reporting.measuring.conditions import describe_conditions, describe_plan
from slipstream.reporting.report import Report, Section, show, tabulate

_KINDS: dict[str, Callable[[KindCost], str]] = {
    "kind": lambda one: one.kind,
    "prompts": lambda one: str(one.prompts),
    "tokens per prompt": lambda one: f"{one.prompt_tokens:,.0f}",
    "no longer best, % (95 % interval)": lambda one: one.lost.show(100),
    "loss in log-probability (95 % interval)": lambda one: one.regret.show(decimals=4),
}
_TEXTS: dict[str, Callable[[tuple[str, CachedText]], str]] = {
    "kind and cache": lambda one: one[0],
    "tokens": lambda one: str(one[1].tokens),
    "best, %": lambda one: show(100 * one[1].best / (one[1].tokens or 1), 1),
    "below the best": lambda one: f"{one[1].regret:.4f}",
    "worst": lambda one: f"{one[1].worst:.2f}",
    "tokens per step": lambda one: show(one[1].drafts.tokens_per_step, 2),
}


def describe_cache_cost(cost: CacheCost) -> Report:
    plan, total = cost.conditions.plan, cost.kinds[-1]
    texts = [
        (f"{one.kind}, {name}", text)
        for one in cost.kinds
        for name, text in ((cost.kv_dtype, one.quantized), ("the target's own", one.plain))
    ]
    engines = {} if plan is None else {cost.kv_dtype: plan, "auto": plan.with_plain_cache()}
    return Report(
        title=f"{cost.conditions.model} with a cache in {cost.kv_dtype}",
        answer="measured" if cost.passed else "cannot tell",
        figure=f"{100 * total.lost.value:.1f}",
        interval=f"of 100 tokens, {total.quantized.tokens:,} in all",
        figure_note="are no longer the target's best one",
        sentence=cost.sentence,
        sections=[
            Section("cost of the quantized cache", tabulate(cost.kinds, _KINDS)),
            Section("answers, scored by prefill", tabulate(texts, _TEXTS)),
            *describe_conditions(cost.conditions, ("concurrency", str(cost.concurrency))),
            *(
                describe_plan(f"engine with --kv-cache-dtype {name}", one)
                for name, one in engines.items()
            ),
        ],
    )


def render_cache_cost_html(cost: CacheCost) -> str:
    return render_page(describe_cache_cost(cost), [])
