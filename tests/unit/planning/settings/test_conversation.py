"""What is decided about conversations: parsers by family, thinking, sampling, names, faults."""

from pathlib import Path
from typing import Any

import pytest

from slipstream.checkpoints.checkpoint import ConversationFacts
from slipstream.engines.vllm_tables import VERSION, read_multimodal, read_table
from slipstream.planning import LaunchPlan, make_plan
from slipstream.planning.inputs import PlanInputs
from slipstream.planning.settings.conversation import (
    Family,
    decide_conversation,
    decide_served_names,
    find_family,
    load_families,
    load_template_faults,
)
from tests.snapshots import read_snapshot
from tests.unit.planning.pieces import make_inputs

JSON_CALLS = '{{ tools }}<tool_call>{"name": x, "arguments": y}</tool_call>'
XML_CALLS = "{{ tools }}<tool_call><function=f><parameter=p></parameter></function></tool_call>"
KEYED_CALLS = "{{ tools }}<tool_call>f<arg_key>k</arg_key><arg_value>v</arg_value></tool_call>"
THINKS = "{% if enable_thinking %}<think>{% endif %}"
SWITCHED = "{% if thinking %}<think>{% endif %}"
BAR = "\uff5c"
DEEPSEEK_CALLS = f"<{BAR}tool▁calls▁begin{BAR}><{BAR}tool▁call▁begin{BAR}>"
LLAMA_CALLS = '{{ tools }}<|start_header_id|>{"name": f, "parameters": dictionary}'
DEEPSEEK_V31 = DEEPSEEK_CALLS + SWITCHED
DEEPSEEK_V3 = DEEPSEEK_CALLS + "```json"
GEMMA = "{{ tools }}<|tool_call>call:f{}<tool_call|><|channel>{{ enable_thinking }}"
GRANITE = "{{ tools }}<|tool_call|>" + SWITCHED
GRANITE_4 = "granite_thinking_parser"
HUNYUAN = "{{ tools }}<tool_calls>" + THINKS
KIMI = "{{ tools }}<|tool_calls_section_begin|>"
MUSE = "{{ tools }}<atem:function_calls>"
MINIMAX_M2 = "{{ tools }}<minimax:tool_call><think>"
MINIMAX_M3 = "{{ tools }}]<]minimax[>[<tool_call>{% if thinking_mode %}<mm:think>{% endif %}"
SEED = "{{ tools }}<seed:tool_call><seed:think>{{ thinking_budget }}"
SMOLLM2 = "{% for message in messages %}{{ '<|im_start|>' + message['content'] }}{% endfor %}"

FAMILIES: dict[str, tuple[str, str | None, str | None, str | None]] = {
    "Qwen3": ("Qwen3ForCausalLM", JSON_CALLS + THINKS, "qwen3_json", "qwen3"),
    "Qwen3 Instruct 2507": ("Qwen3MoeForCausalLM", JSON_CALLS, "qwen3_json", None),
    "Qwen3-Coder": ("Qwen3MoeForCausalLM", XML_CALLS, "qwen3_coder", None),
    "Qwen3-Coder-Next": ("Qwen3NextForCausalLM", XML_CALLS, "qwen3_coder", None),
    "Qwen3.5": ("Qwen3_5ForConditionalGeneration", XML_CALLS + THINKS, "qwen3_coder", "qwen3"),
    "Qwen3.6": ("Qwen3_5MoeForConditionalGeneration", XML_CALLS + THINKS, "qwen3_coder", "qwen3"),
    "Qwen3-VL": ("Qwen3VLForConditionalGeneration", JSON_CALLS, "qwen3_json", None),
    "Qwen2.5": ("Qwen2ForCausalLM", JSON_CALLS, "qwen3_json", None),
    "QwQ": ("Qwen2ForCausalLM", JSON_CALLS + "<think>", "qwen3_json", "deepseek_r1"),
    "R1 distilled": ("Qwen2ForCausalLM", f"<{BAR}Assistant{BAR}><think>", None, "deepseek_r1"),
    "Gemma 4": ("Gemma4ForConditionalGeneration", GEMMA, "gemma4", "gemma4"),
    "GLM 4.6": ("Glm4MoeForCausalLM", KEYED_CALLS + THINKS, "glm47", "glm47"),
    "GLM 5": ("GlmMoeDsaForCausalLM", KEYED_CALLS + THINKS, "glm47", "glm47"),
    "GLM 5.3": ("Glm5NextForCausalLM", KEYED_CALLS + "<think>", "glm47", "glm47"),
    "Laguna": ("LagunaForCausalLM", KEYED_CALLS + THINKS, "poolside_v1", "poolside_v1"),
    "Kimi K2": ("DeepseekV3ForCausalLM", KIMI, "kimi_k2", None),
    "Kimi K2 Thinking": ("KimiK25ForConditionalGeneration", KIMI + "<think>", "kimi_k2", "kimi_k2"),
    "Kimi K3": ("KimiK3ForConditionalGeneration", None, "kimi_k3", "kimi_k3"),
    "DeepSeek V3": ("DeepseekV3ForCausalLM", DEEPSEEK_V3, "deepseek_v3", None),
    "DeepSeek R1": ("DeepseekV3ForCausalLM", DEEPSEEK_V3 + "<think>", "deepseek_v3", "deepseek_r1"),
    "DeepSeek V3.1": ("DeepseekV3ForCausalLM", DEEPSEEK_V31, "deepseek_v31", "deepseek_v3"),
    "DeepSeek V3.2": ("DeepseekV32ForCausalLM", None, "deepseek_v32", "deepseek_v3"),
    "DeepSeek V4": ("DeepseekV4ForCausalLM", None, "deepseek_v4", "deepseek_v4"),
    "DeepSeek V4.1": ("DeepseekV41ForCausalLM", None, "deepseek_v41", "deepseek_v41"),
    "gpt-oss": ("GptOssForCausalLM", "<|channel|>{{ tools }}", "openai", "openai_gptoss"),
    "MiniMax M2": ("MiniMaxM2ForCausalLM", MINIMAX_M2, "minimax_m2", "minimax_m2"),
    "MiniMax M3": ("MiniMaxM3SparseForCausalLM", MINIMAX_M3, "minimax_m3", "minimax_m3"),
    "Muse Glimmer": ("MuseGlimmerForCausalLM", MUSE, "muse_glimmer", "muse_glimmer"),
    "Llama 3.1": ("LlamaForCausalLM", LLAMA_CALLS, "llama3_json", None),
    "Llama 4": ("Llama4ForConditionalGeneration", "{{ tools }}", "llama4_pythonic", None),
    "Hermes 3": ("LlamaForCausalLM", JSON_CALLS, "hermes", None),
    "Mistral": ("MistralForCausalLM", "{{ tools }}[TOOL_CALLS]", "mistral", None),
    "Devstral": ("Mistral3ForConditionalGeneration", "{{ tools }}[TOOL_CALLS]", "mistral", None),
    "Magistral": ("MistralForCausalLM", "{{ tools }}[TOOL_CALLS][THINK]", "mistral", "mistral"),
    "Nemotron 3": ("NemotronHForCausalLM", XML_CALLS + THINKS, "qwen3_coder", "nemotron_v3"),
    "Nemotron Nano 2": ("NemotronHForCausalLM", "{{ tools }}<TOOLCALL>", None, None),
    "Granite 3.3": ("GraniteForCausalLM", GRANITE, "granite", "granite"),
    "Granite 4": ("GraniteMoeHybridForCausalLM", JSON_CALLS, "granite4", None),
    "Granite 4.2": ("GraniteMoeHybridForCausalLM", XML_CALLS + THINKS, "qwen3_coder", GRANITE_4),
    "Phi-4 mini": ("Phi3ForCausalLM", "{{ tools }}<|tool|>", "phi4_mini_json", None),
    "Hunyuan A13B": ("HunYuanMoEV1ForCausalLM", HUNYUAN, "hunyuan_a13b", "hunyuan_a13b"),
    "Hy3": ("HYV3ForCausalLM", "{{ tools }}<tool_calls{{ reasoning_effort }}", "hy_v3", "hy_v3"),
    "ERNIE 4.5": ("Ernie4_5_MoeForCausalLM", JSON_CALLS, "ernie45", None),
    "ERNIE 4.5 Thinking": ("Ernie4_5_MoeForCausalLM", JSON_CALLS + "<think>", "ernie45", "ernie45"),
    "Seed-OSS": ("SeedOssForCausalLM", SEED, "seed_oss", "seed_oss"),
    "Step 3.5": ("Step3p5ForCausalLM", XML_CALLS + "<think>", "step3p5", "step3p5"),
    "Step 3": ("Step3TextForCausalLM", f"tools <{BAR}tool_calls_begin{BAR}>", "step3", None),
    "SmolLM3": ("SmolLM3ForCausalLM", JSON_CALLS + THINKS, "hermes", "qwen3"),
    "SmolLM2": ("LlamaForCausalLM", SMOLLM2, None, None),
    "nobody's": ("NewForCausalLM", "{{ tools }}<call>", None, None),
}


def converse(
    architecture: str | None, template: str | None, plain: bool = True, **changes: Any
) -> PlanInputs:
    """Make the inputs for a target with a class and a chat template, by default without drafts."""
    options = {
        name: changes.pop(name) for name in ("thinking", "engine", "goal") if name in changes
    }
    conversation = ConversationFacts(template=template, **changes)
    target = {"architecture": architecture, "conversation": conversation}
    return make_inputs(target=target, plain=plain, **options)


def decide(inputs: PlanInputs) -> dict[str, Any]:
    return {
        name: choice.value
        for name, choice in decide_conversation(inputs).items()
        if choice is not None
    }


def plan(inputs: PlanInputs) -> LaunchPlan:
    return make_plan(inputs.host, inputs.target, inputs.drafter, None, inputs.options)


def codes(inputs: PlanInputs) -> list[str]:
    return [fault.code for fault in plan(inputs).warnings]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_gets_its_parsers(family: str) -> None:
    architecture, template, tool, reasoning = FAMILIES[family]
    inputs = converse(architecture, template)
    parsers = {"tool_parser": tool, "auto_tools": tool and True, "reasoning_parser": reasoning}
    assert decide(inputs) == {name: value for name, value in parsers.items() if value}
    notes = plan(inputs).notes
    assert any("tool calls are not parsed" in note for note in notes) is (tool is None)


@pytest.mark.parametrize(
    ("architecture", "template", "said"),
    [
        ("NewForCausalLM", "{{ tools }}<|tool_call_start|>", "no family is known"),
        ("MistralForCausalLM", None, "has no chat template"),
        (
            "LlamaForCausalLM",
            SMOLLM2,
            "shows the model no tools; another model, or --chat-template",
        ),
    ],
)
def test_what_is_not_parsed_is_said_with_what_to_type(
    architecture: str, template: str | None, said: str
) -> None:
    notes = plan(converse(architecture, template)).notes
    assert [one for one in notes if said in one and "--tool-call-parser NAME after --" in one]
    assert "tool-parser" in codes(converse(architecture, template, goal="agent"))


@pytest.mark.parametrize(
    ("has", "parser"), [(True, "deepseek_r1"), (None, "deepseek_r1"), (False, None)]
)
def test_a_parser_that_needs_a_token_is_not_planned_without_it(
    has: bool | None, parser: str | None
) -> None:
    inputs = converse("Qwen2ForCausalLM", JSON_CALLS + "<think>", has_thinking_token=has)
    assert decide(inputs).get("reasoning_parser") == parser


def test_a_known_family_whose_template_shows_no_tools_is_warned_of() -> None:
    made = plan(converse("DeepseekV3ForCausalLM", DEEPSEEK_CALLS + "{{ thinking }}"))
    (hint,) = (one.hint for one in made.warnings if one.code == "template-tools")
    assert "tool_chat_template_deepseekv31.jinja" in hint


@pytest.mark.parametrize(
    ("words", "tool", "reasoning"),
    [
        (("--tool-call-parser", "hermes"), "hermes", "qwen3"),
        (("--reasoning-parser", "deepseek_r1"), "qwen3_coder", "deepseek_r1"),
        (("--tool-call-parser", "hf"), "hf", None),
        (("--reasoning-parser", "hf"), None, "hf"),
        (("--reasoning-config", '{"reasoning_parser": "step3"}'), "qwen3_coder", None),
        (("--structured-outputs-config.reasoning_parser", "step3"), "qwen3_coder", None),
        (("--chat-template", "mine.jinja"), "qwen3_coder", "qwen3"),
    ],
)
def test_what_is_given_after_the_dashes_wins(
    words: tuple[str, str], tool: str | None, reasoning: str | None
) -> None:
    made = decide(converse("Qwen3_5ForCausalLM", XML_CALLS + THINKS, engine=words))
    assert (made.get("tool_parser"), made.get("reasoning_parser")) == (tool, reasoning)


@pytest.mark.parametrize(("words", "parser"), [((), "hf"), (("--reasoning-parser", "qwen3"), None)])
def test_a_response_template_is_read_by_vllms_hf_parsers(
    words: tuple[str, ...], parser: str | None
) -> None:
    fields: dict[str, Any] = {"response_fields": ("tool_calls", "content")}
    inputs = converse("NewForCausalLM", "{{ tools }}", engine=words, **fields)
    assert decide(inputs).get("tool_parser") == parser


@pytest.mark.parametrize(
    ("family", "wanted", "arguments"),
    [
        ("Qwen3.5", "off", {"enable_thinking": False}),
        ("Gemma 4", "on", {"enable_thinking": True}),
        ("DeepSeek V3.1", "on", {"thinking": True}),
        ("DeepSeek V4", "off", {"thinking": False}),
        ("MiniMax M3", "off", {"thinking_mode": "disabled"}),
        ("Seed-OSS", "off", {"thinking_budget": 0}),
        ("Hy3", "off", {"reasoning_effort": "no_think"}),
        ("GLM 5.3", "off", None),
        ("Kimi K2 Thinking", "off", None),
        ("gpt-oss", "off", None),
        ("SmolLM2", "off", None),
    ],
)
def test_thinking_is_switched_as_the_template_has_it_or_warned_of(
    family: str, wanted: str, arguments: dict[str, Any] | None
) -> None:
    inputs = converse(*FAMILIES[family][:2], thinking=wanted)
    assert decide(inputs).get("template_arguments") == arguments
    assert ("thinking" in codes(inputs)) is (arguments is None)


def test_the_users_template_arguments_are_kept_beside_thinking() -> None:
    own = ("--default-chat-template-kwargs", '{"tone": "plain"}')
    both = converse("Qwen3ForCausalLM", JSON_CALLS + THINKS, engine=own, thinking="off")
    assert decide(both)["template_arguments"] == {"enable_thinking": False, "tone": "plain"}
    alone = converse("Qwen3ForCausalLM", JSON_CALLS + THINKS, engine=own)
    assert decide(alone)["template_arguments"] == {"tone": "plain"}


@pytest.mark.parametrize(
    ("sampling", "plain", "words", "config", "overrides"),
    [
        ({}, False, (), None, None),
        ({"temperature": 0.6, "min_p": 0.1}, True, (), "auto", None),
        ({"min_p": 0.1}, False, (), "auto", {"min_p": 0.0}),
        ({"temperature": 0.6}, False, (), "auto", None),
        (
            {"min_p": 0.1},
            False,
            ("--override-generation-config", '{"top_k": 5}'),
            "auto",
            {"min_p": 0.0, "top_k": 5},
        ),
        ({"min_p": 0.1}, False, ("--generation-config", "vllm"), "vllm", None),
    ],
)
def test_sampling_defaults_are_the_checkpoints_but_for_what_vllm_refuses_with_drafts(
    sampling: dict[str, float],
    plain: bool,
    words: tuple[str, ...],
    config: str | None,
    overrides: dict[str, Any] | None,
) -> None:
    made = decide(converse("LlamaForCausalLM", SMOLLM2, plain, sampling=sampling, engine=words))
    assert made.get("generation_config") == config
    assert made.get("generation_overrides") == overrides


@pytest.mark.parametrize(
    ("name", "source", "names"),
    [
        ("google/gemma-4-31B-it", "hub", ("gemma-4-31B-it", "google/gemma-4-31B-it")),
        ("/models/mine/", "folder", ("mine",)),
        ("/", "folder", None),
    ],
)
def test_a_model_has_a_name_without_a_slash(
    name: str, source: str, names: tuple[str, ...] | None
) -> None:
    choice = decide_served_names(make_inputs(target={"name": name, "source": source}))
    assert (choice and choice.value) == names


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("raise_exception('System message must be at the beginning.')", "system-first"),
        ("This model only supports single tool-calls at once!", "single-tool-calls"),
        ("Tool call IDs should be alphanumeric strings with length 9!", "tool-call-ids"),
        ("After the system message, conversation roles must alternate", "alternating-roles"),
    ],
)
def test_a_known_fault_of_the_template_is_warned_of(text: str, code: str) -> None:
    template = XML_CALLS + text
    assert code in codes(converse("Qwen3_5ForCausalLM", template))
    replaced = converse("Qwen3_5ForCausalLM", template, engine=("--chat-template", "mine.jinja"))
    assert code not in codes(replaced)


# Their calls are found without a tag: bare JSON or Python, or tokens of mistral-common.
UNTAGGED = ("llama3_json", "llama4_pythonic", "mistral", "phi4_mini_json")
KNOWN = {family.name: family for family in load_families()}


def test_the_parsers_are_those_of_the_engine_that_is_planned_for() -> None:
    tools = read_table("tool parsers", VERSION)
    assert "step5" in read_table("tool parsers", "0.33.0").keys() - tools.keys()
    assert len(tools) > 50
    assert len(read_table("reasoning parsers", VERSION)) > 35
    assert "Qwen3_5ForConditionalGeneration" in read_multimodal(VERSION)


def test_every_parser_that_a_family_names_is_registered() -> None:
    tools = {one.tool_parser for one in KNOWN.values()} - {None}
    reasoning = {one.reasoning_parser for one in KNOWN.values()} - {None}
    assert tools - read_table("tool parsers", None).keys() == set()
    assert reasoning - read_table("reasoning parsers", None).keys() == set()
    assert len(KNOWN) == len(load_families())


@pytest.mark.parametrize("family", KNOWN.values(), ids=KNOWN)
def test_a_familys_markers_are_what_its_parsers_look_for(family: Family) -> None:
    if family.tool_parser and family.markers and family.tool_parser not in UNTAGGED:
        row = read_table("tool parsers", None)[family.tool_parser]
        assert set(family.markers) & set(row["markers"])
    tags = {one for one in family.reasoning_markers if one.startswith("<")}
    if family.reasoning_parser and family.reasoning_parser != "granite":
        row = read_table("reasoning parsers", None)[family.reasoning_parser]
        assert tags <= set(row["markers"])


def test_a_family_without_markers_is_known_by_its_class() -> None:
    bare = [one for one in KNOWN.values() if not one.markers and not one.encoded]
    assert [one.name for one in bare if not (one.classes and one.class_decides)] == []


@pytest.mark.parametrize(
    "architecture",
    ["Qwen3ForCausalLM", "DeepseekV3ForCausalLM", "LlamaForCausalLM", "NewForCausalLM", None],
)
def test_a_class_of_several_families_is_unknown_without_its_template(
    architecture: str | None,
) -> None:
    assert find_family(architecture, None) is None
    # So it is if the user gives another template.
    given = converse(architecture, XML_CALLS, engine=("--chat-template", "mine.jinja"))
    assert decide(given) == {}


def test_every_template_fault_names_its_source_and_what_to_type() -> None:
    faults = load_template_faults()
    assert len({one.name for one in faults}) == len(faults) > 3
    assert all(one.hint and one.sources and one.message.endswith(".") for one in faults)


def describe(family: Family) -> str:
    """Write a family as a line of the page."""
    classes = ", ".join(f"`{one}`" for one in family.classes) or "any"
    markers = ", ".join(f"`` {one} ``" if "`" in one else f"`{one}`" for one in family.markers)
    told = "vLLM's own prompts" if family.encoded else markers or "not looked at"
    told = told.replace("|", r"\|")
    thinking = ", ".join(family.thinking.off) if family.thinking else ""
    off = " (off)" if family.thinking and not family.thinks_by_default else ""
    parsers = [one or "" for one in (family.tool_parser, family.reasoning_parser)]
    return f"| {family.name} | {classes} | {told} | {' | '.join(parsers)} | {thinking}{off} |"


def test_the_page_shows_every_family() -> None:
    page = Path(__file__).parents[4] / "docs/families.md"
    head, title, _ = page.read_text().partition("## Families\n")
    lines = [
        "Thinking is switched by the template's argument; `(off)`: it is off unless switched on.\n",
        "| family | class | template has | tool calls | reasoning | thinking |",
        "| --- | --- | --- | --- | --- | --- |",
        *map(describe, KNOWN.values()),
    ]
    shown = f"{head}{title}\n" + "\n".join(lines) + "\n"
    assert shown == read_snapshot(page.name, shown, page.parent)
