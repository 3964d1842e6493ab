"""What `plan` decides about conversations, for a small made-up checkpoint of every family."""

import json
from pathlib import Path
from typing import Any

import pytest

from slipstream.cli.main import run
from slipstream.engines.vllm import read_parsers
from slipstream.proving_ground.untrained_drafter import DrafterShape, drafter_config
from tests.unit.proving_ground.test_untrained_drafter import TARGET as CONFIG

JSON_CALLS = '{{ tools }}<tool_call>{"name": x, "arguments": y}</tool_call>'
XML_CALLS = "{{ tools }}<tool_call><function=f><parameter=p></parameter></function></tool_call>"
KEYED_CALLS = "{{ tools }}<tool_call>f<arg_key>k</arg_key><arg_value>v</arg_value></tool_call>"
THINKS = "{% if enable_thinking %}<think>{% endif %}"
BAR = "\uff5c"
DEEPSEEK_CALLS = f"<{BAR}tool▁calls▁begin{BAR}><{BAR}tool▁call▁begin{BAR}>"
LLAMA_CALLS = '{{ tools }}<|start_header_id|>{"name": f, "parameters": dictionary}'
MINIMAX_M3 = "{{ tools }}]<]minimax[>[<tool_call>{% if thinking_mode %}<mm:think>{% endif %}"
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
    "Gemma 4": (
        "Gemma4ForConditionalGeneration",
        "{{ tools }}<|tool_call>call:f{}<tool_call|><|channel>{{ enable_thinking }}",
        "gemma4",
        "gemma4",
    ),
    "GLM 4.6": ("Glm4MoeForCausalLM", KEYED_CALLS + THINKS, "glm47", "glm47"),
    "GLM 5": ("GlmMoeDsaForCausalLM", KEYED_CALLS + THINKS, "glm47", "glm47"),
    "GLM 5.3": ("Glm5NextForCausalLM", KEYED_CALLS + "<think>", "glm47", "glm47"),
    "Laguna": ("LagunaForCausalLM", KEYED_CALLS + THINKS, "poolside_v1", "poolside_v1"),
    "Kimi K2": (
        "DeepseekV3ForCausalLM",
        "{{ tools }}<|tool_calls_section_begin|>",
        "kimi_k2",
        None,
    ),
    "Kimi K2 Thinking": (
        "KimiK25ForConditionalGeneration",
        "{{ tools }}<|tool_calls_section_begin|><think>",
        "kimi_k2",
        "kimi_k2",
    ),
    "Kimi K3": ("KimiK3ForConditionalGeneration", None, "kimi_k3", "kimi_k3"),
    "DeepSeek V3": ("DeepseekV3ForCausalLM", DEEPSEEK_CALLS + "```json", "deepseek_v3", None),
    "DeepSeek R1": (
        "DeepseekV3ForCausalLM",
        DEEPSEEK_CALLS + "```json<think>",
        "deepseek_v3",
        "deepseek_r1",
    ),
    "DeepSeek V3.1": (
        "DeepseekV3ForCausalLM",
        DEEPSEEK_CALLS + "{% if thinking %}<think>{% endif %}",
        "deepseek_v31",
        "deepseek_v3",
    ),
    "DeepSeek V3.2": ("DeepseekV32ForCausalLM", None, "deepseek_v32", "deepseek_v3"),
    "DeepSeek V4": ("DeepseekV4ForCausalLM", None, "deepseek_v4", "deepseek_v4"),
    "DeepSeek V4.1": ("DeepseekV41ForCausalLM", None, "deepseek_v41", "deepseek_v41"),
    "gpt-oss": ("GptOssForCausalLM", "<|channel|>{{ tools }}", "openai", "openai_gptoss"),
    "MiniMax M2": (
        "MiniMaxM2ForCausalLM",
        "{{ tools }}<minimax:tool_call><think>",
        "minimax_m2",
        "minimax_m2",
    ),
    "MiniMax M3": ("MiniMaxM3SparseForCausalLM", MINIMAX_M3, "minimax_m3", "minimax_m3"),
    "Muse Glimmer": (
        "MuseGlimmerForCausalLM",
        "{{ tools }}<atem:function_calls>",
        "muse_glimmer",
        "muse_glimmer",
    ),
    "Llama 3.1": ("LlamaForCausalLM", LLAMA_CALLS, "llama3_json", None),
    "Llama 4": ("Llama4ForConditionalGeneration", "{{ tools }}", "llama4_pythonic", None),
    "Hermes 3": ("LlamaForCausalLM", JSON_CALLS, "hermes", None),
    "Mistral": ("MistralForCausalLM", "{{ tools }}[TOOL_CALLS]", "mistral", None),
    "Devstral": ("Mistral3ForConditionalGeneration", "{{ tools }}[TOOL_CALLS]", "mistral", None),
    "Magistral": ("MistralForCausalLM", "{{ tools }}[TOOL_CALLS][THINK]", "mistral", "mistral"),
    "Nemotron 3": ("NemotronHForCausalLM", XML_CALLS + THINKS, "qwen3_coder", "nemotron_v3"),
    "Nemotron Nano 2": ("NemotronHForCausalLM", "{{ tools }}<TOOLCALL>", None, None),
    "Granite 3.3": (
        "GraniteForCausalLM",
        "{{ tools }}<|tool_call|>{% if thinking %}<think>{% endif %}",
        "granite",
        "granite",
    ),
    "Granite 4": ("GraniteMoeHybridForCausalLM", JSON_CALLS, "granite4", None),
    "Granite 4.2": (
        "GraniteMoeHybridForCausalLM",
        XML_CALLS + THINKS,
        "qwen3_coder",
        "granite_thinking_parser",
    ),
    "Phi-4 mini": ("Phi3ForCausalLM", "{{ tools }}<|tool|>", "phi4_mini_json", None),
    "Hunyuan A13B": (
        "HunYuanMoEV1ForCausalLM",
        "{{ tools }}<tool_calls>" + THINKS,
        "hunyuan_a13b",
        "hunyuan_a13b",
    ),
    "Hy3": ("HYV3ForCausalLM", "{{ tools }}<tool_calls{{ reasoning_effort }}", "hy_v3", "hy_v3"),
    "ERNIE 4.5": ("Ernie4_5_MoeForCausalLM", JSON_CALLS, "ernie45", None),
    "ERNIE 4.5 Thinking": (
        "Ernie4_5_MoeForCausalLM",
        JSON_CALLS + "<think>",
        "ernie45",
        "ernie45",
    ),
    "Seed-OSS": (
        "SeedOssForCausalLM",
        "{{ tools }}<seed:tool_call><seed:think>{{ thinking_budget }}",
        "seed_oss",
        "seed_oss",
    ),
    "Step 3.5": ("Step3p5ForCausalLM", XML_CALLS + "<think>", "step3p5", "step3p5"),
    "Step 3": ("Step3TextForCausalLM", f"tools <{BAR}tool_calls_begin{BAR}>", "step3", None),
    "SmolLM3": ("SmolLM3ForCausalLM", JSON_CALLS + THINKS, "hermes", "qwen3"),
    "SmolLM2": ("LlamaForCausalLM", SMOLLM2, None, None),
    "nobody's": ("NewForCausalLM", "{{ tools }}<call>", None, None),
}


@pytest.fixture(autouse=True)
def _offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)


def make_target(architecture: str, template: str | None, **config: Any) -> str:
    """Lay out a checkpoint's small files, and return the folder's name."""
    folder = Path("model")
    folder.mkdir()
    described = {**CONFIG, "architectures": [architecture], "model_type": "made-up", **config}
    (folder / "config.json").write_text(json.dumps(described))
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    return str(folder)


def make_drafter(target: str) -> str:
    config = json.loads((Path(target) / "config.json").read_text())
    Path("drafter").mkdir()
    Path("drafter/config.json").write_text(json.dumps(drafter_config(config, DrafterShape())))
    return "drafter"


def plan(capsys: pytest.CaptureFixture[str], target: str, *words: str) -> dict[str, Any]:
    """Plan without drafts on an H100, and return the document."""
    own = words[: words.index("--")] if "--" in words else words
    speculation = () if "--drafter" in own else ("--no-speculation",)
    run(["plan", target, "--host", "h100", *speculation, "--json", *words], {})
    made: dict[str, Any] = json.loads(capsys.readouterr().out)
    return made


def find_value(made: dict[str, Any], setting: str) -> Any:
    choice = made["settings"].get(setting)
    return choice and choice["value"]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_gets_its_parsers(family: str, capsys: pytest.CaptureFixture[str]) -> None:
    architecture, template, tool, reasoning = FAMILIES[family]
    made = plan(capsys, make_target(architecture, template))
    assert find_value(made, "tool_parser") == tool
    assert find_value(made, "reasoning_parser") == reasoning
    assert find_value(made, "auto_tools") is (True if tool else None)
    assert any("tool calls are not parsed" in note for note in made["notes"]) is (tool is None)
    for setting in ("tool_parser", "reasoning_parser"):
        if (choice := made["settings"].get(setting)) is not None:
            assert choice["source"] == "checkpoint"
            assert "vLLM's" in choice["because"]


def test_the_template_in_the_tokenizers_file_counts_as_well(
    capsys: pytest.CaptureFixture[str],
) -> None:
    target = make_target("Qwen3MoeForCausalLM", None)
    named = [{"name": "default", "template": "none"}, {"name": "tool_use", "template": XML_CALLS}]
    for stated in (XML_CALLS, named):
        (Path(target) / "tokenizer_config.json").write_text(json.dumps({"chat_template": stated}))
        assert find_value(plan(capsys, target), "tool_parser") == "qwen3_coder"


@pytest.mark.parametrize(
    ("architecture", "template", "said"),
    [
        ("NewForCausalLM", "{{ tools }}<|tool_call_start|>", "no family is known"),
        ("MistralForCausalLM", None, "has no chat template"),
        ("LlamaForCausalLM", SMOLLM2, "shows the model no tools"),
    ],
)
def test_what_is_not_parsed_is_said_with_what_to_type(
    architecture: str, template: str | None, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    note = plan(capsys, make_target(architecture, template))["notes"][-1]
    assert said in note
    assert "--tool-call-parser NAME after --" in note


@pytest.mark.parametrize(("token", "parser"), [("<think>", "deepseek_r1"), ("<other>", None)])
def test_a_parser_that_needs_a_token_is_not_planned_without_it(
    token: str, parser: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    target = make_target("Qwen2ForCausalLM", JSON_CALLS + "<think>")
    tokens = {"added_tokens_decoder": {"7": {"content": token}}}
    (Path(target) / "tokenizer_config.json").write_text(json.dumps(tokens))
    assert find_value(plan(capsys, target), "reasoning_parser") == parser


def test_a_known_family_whose_template_shows_no_tools_is_warned_of(
    capsys: pytest.CaptureFixture[str],
) -> None:
    target = make_target("DeepseekV3ForCausalLM", DEEPSEEK_CALLS + "{{ thinking }}")
    (fault,) = [one for one in plan(capsys, target)["warnings"] if one["code"] == "template-tools"]
    assert "tool_chat_template_deepseekv31.jinja" in fault["hint"]


@pytest.mark.parametrize(
    ("words", "tool", "reasoning"),
    [
        (("--tool-call-parser", "hermes"), "hermes", "qwen3"),
        (("--reasoning-parser", "deepseek_r1"), "qwen3_coder", "deepseek_r1"),
        (("--tool-call-parser", "hf"), "hf", None),
        (("--reasoning-parser", "hf"), None, "hf"),
        (("--reasoning-config", '{"reasoning_parser": "step3"}'), "qwen3_coder", None),
        (("--structured-outputs-config.reasoning_parser", "step3"), "qwen3_coder", None),
    ],
)
def test_what_is_given_after_the_dashes_wins(
    words: tuple[str, str],
    tool: str | None,
    reasoning: str | None,
    capsys: pytest.CaptureFixture[str],
) -> None:
    target = make_target("Qwen3_5ForCausalLM", XML_CALLS + THINKS)
    made = plan(capsys, target, "--", *words)
    assert (find_value(made, "tool_parser"), find_value(made, "reasoning_parser")) == (
        tool,
        reasoning,
    )


def test_another_template_leaves_the_class_to_decide(capsys: pytest.CaptureFixture[str]) -> None:
    target = make_target("Qwen3MoeForCausalLM", XML_CALLS)
    made = plan(capsys, target, "--", "--chat-template", "mine.jinja")
    assert find_value(made, "tool_parser") is None


def test_a_response_template_is_read_by_vllms_hf_parsers(
    capsys: pytest.CaptureFixture[str],
) -> None:
    target = make_target("NewForCausalLM", "{{ tools }}")
    described = {"response_template": {"version": 1, "fields": {"tool_calls": {}, "content": {}}}}
    (Path(target) / "tokenizer_config.json").write_text(json.dumps(described))
    made = plan(capsys, target)
    assert find_value(made, "tool_parser") == "hf"
    assert find_value(made, "reasoning_parser") is None


@pytest.mark.parametrize(
    ("family", "wish", "arguments"),
    [
        ("Qwen3.5", "off", {"enable_thinking": False}),
        ("Gemma 4", "on", {"enable_thinking": True}),
        ("DeepSeek V3.1", "on", {"thinking": True}),
        ("DeepSeek V4", "off", {"thinking": False}),
        ("MiniMax M3", "off", {"thinking_mode": "disabled"}),
        ("Seed-OSS", "off", {"thinking_budget": 0}),
        ("Hy3", "off", {"reasoning_effort": "no_think"}),
    ],
)
def test_thinking_is_switched_as_the_template_has_it(
    family: str, wish: str, arguments: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    target = make_target(*FAMILIES[family][:2])
    made = plan(capsys, target, "--thinking", wish)
    choice = made["settings"]["template_arguments"]
    assert (choice["value"], choice["source"]) == (arguments, "user")
    assert "thinking" not in [fault["code"] for fault in made["warnings"]]


def test_the_users_template_arguments_are_kept_beside_thinking(
    capsys: pytest.CaptureFixture[str],
) -> None:
    target = make_target("Qwen3ForCausalLM", JSON_CALLS + THINKS)
    own = ("--", "--default-chat-template-kwargs", '{"tone": "plain"}')
    made = plan(capsys, target, "--thinking", "off", *own)
    assert find_value(made, "template_arguments") == {"enable_thinking": False, "tone": "plain"}
    assert find_value(plan(capsys, target, *own), "template_arguments") == {"tone": "plain"}


@pytest.mark.parametrize("family", ["GLM 5.3", "Kimi K2 Thinking", "gpt-oss", "SmolLM2"])
def test_thinking_without_a_switch_is_warned_of(
    family: str, capsys: pytest.CaptureFixture[str]
) -> None:
    made = plan(capsys, make_target(*FAMILIES[family][:2]), "--thinking", "off")
    assert "thinking" in [fault["code"] for fault in made["warnings"]]
    assert find_value(made, "template_arguments") is None


def test_pictures_are_off_until_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    target = make_target("Qwen3VLForConditionalGeneration", JSON_CALLS, vision_config={})
    off = plan(capsys, target)["settings"]["media_limits"]
    assert off["value"] == {"image": 0, "video": 0, "audio": 0}
    assert "--pictures" in off["because"]
    on = plan(capsys, target, "--pictures")["settings"]["media_limits"]
    assert on["value"]["image"] > 1
    assert (on["value"]["video"], on["value"]["audio"], on["source"]) == (0, 0, "user")


def test_a_class_of_vllms_multimodal_registry_sees_without_a_vision_config(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert "Phi4MMForCausalLM" in read_parsers().multimodal
    target = make_target("Phi4MMForCausalLM", "{{ tools }}")
    assert find_value(plan(capsys, target), "media_limits") == {"image": 0, "video": 0, "audio": 0}
    assert find_value(plan(capsys, target, "--pictures"), "media_limits")["image"] > 1


def test_pictures_are_refused_for_a_model_that_takes_none(
    capsys: pytest.CaptureFixture[str],
) -> None:
    target = make_target("Qwen3ForCausalLM", JSON_CALLS)
    made = plan(capsys, target, "--pictures")
    assert [fault["code"] for fault in made["refusals"]] == ["pictures"]
    assert find_value(made, "media_limits") is None


def test_sampling_defaults_are_the_checkpoints(capsys: pytest.CaptureFixture[str]) -> None:
    target = make_target("Qwen3ForCausalLM", JSON_CALLS)
    assert find_value(plan(capsys, target), "generation_config") is None
    sampling = {"temperature": 0.6, "top_p": 0.95, "do_sample": True, "min_p": 0.1}
    (Path(target) / "generation_config.json").write_text(json.dumps(sampling))
    made = plan(capsys, target)
    assert find_value(made, "generation_config") == "auto"
    assert "temperature 0.6, top_p 0.95" in made["settings"]["generation_config"]["because"]
    assert find_value(made, "generation_overrides") is None


def test_a_default_that_vllm_refuses_with_drafts_is_taken_out(
    capsys: pytest.CaptureFixture[str],
) -> None:
    target = make_target("LlamaForCausalLM", JSON_CALLS)
    (Path(target) / "generation_config.json").write_text(json.dumps({"min_p": 0.15}))
    drafter = make_drafter(target)
    made = plan(capsys, target, "--drafter", drafter)
    assert find_value(made, "generation_overrides") == {"min_p": 0.0}
    own = ("--", "--override-generation-config", '{"top_k": 5}')
    made = plan(capsys, target, "--drafter", drafter, *own)
    assert find_value(made, "generation_overrides") == {"min_p": 0.0, "top_k": 5}
    made = plan(capsys, target, "--drafter", drafter, "--", "--generation-config", "vllm")
    assert find_value(made, "generation_overrides") is None


def test_a_model_has_a_name_without_a_slash(capsys: pytest.CaptureFixture[str]) -> None:
    target = make_target("Qwen3ForCausalLM", None)
    assert find_value(plan(capsys, f"./{target}/"), "served_names") == ["model"]
    names = find_value(plan(capsys, "google/gemma-4-31B-it"), "served_names")
    assert names == ["gemma-4-31B-it", "google/gemma-4-31B-it"]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("raise_exception('System message must be at the beginning.')", "system-first"),
        ("This model only supports single tool-calls at once!", "single-tool-calls"),
        ("Tool call IDs should be alphanumeric strings with length 9!", "tool-call-ids"),
        ("After the system message, conversation roles must alternate", "alternating-roles"),
    ],
)
def test_a_known_fault_of_the_template_is_warned_of(
    text: str, code: str, capsys: pytest.CaptureFixture[str]
) -> None:
    target = make_target("Qwen3_5ForCausalLM", XML_CALLS + text)
    (fault,) = [one for one in plan(capsys, target)["warnings"] if one["code"] == code]
    assert fault["hint"]
    replaced = plan(capsys, target, "--", "--chat-template", "mine.jinja")["warnings"]
    assert code not in [one["code"] for one in replaced]
