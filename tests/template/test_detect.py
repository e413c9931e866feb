"""Formats are told from chat templates by what the templates render."""

import pytest

from enginebay.contract.errors import BackendUnavailableError
from enginebay.models.template.detect_formats import Detected, choose_reasoning, choose_tools
from enginebay.models.template.features import TemplateFeatures
from enginebay.models.template.template import ChatTemplate
from enginebay.models.template.turn_end import turn_end_marker
from enginebay.plugins import Plugins
from tests.llama_templates import WITHOUT, llama_templates

TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
PLUGINS = Plugins()

HERMES = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for c in m.tool_calls or [] %}"
    '\n<tool_call>\n{"name": "{{ c.function.name }}", '
    '"arguments": {{ c.function.arguments | tojson }}}\n</tool_call>'
    "{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
UNKNOWN = HERMES.replace('{"name": "', "CALLING ").replace('", "arguments": ', " WITH ")
THINK = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.reasoning_content %}"
    "<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}{{ m.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
OPENED = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content.split('</think>')[-1] }}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n"
    "{% endif %}"
)
PLAIN = "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}"


def features(source: str) -> TemplateFeatures:
    return TemplateFeatures(ChatTemplate(source, TOKENS))


@pytest.mark.parametrize(
    ("source", "name", "evidence"),
    [
        (HERMES, "hermes", "reads back the call in '<tool_call>"),
        (UNKNOWN, None, "no format reads back the call in '<tool_call>"),
        (PLAIN + '{# <tool_call>{"name" #}', "hermes", "its tags are in the chat template"),
        (PLAIN, None, "none found in the chat template"),
    ],
)
def test_tools(source: str, name: str | None, evidence: str) -> None:
    found = choose_tools("auto", PLUGINS.tools, features(source))
    assert found.name == name
    assert found.evidence.startswith(evidence)
    assert found.format is (PLUGINS.tools[name] if name else None)


@pytest.mark.parametrize(
    ("source", "name", "evidence"),
    [
        (THINK, "think", "reads back the reasoning in '<think>"),
        (OPENED, "think", "the generation prompt opens it"),
        (PLAIN + "{# [THINK] #}", "mistral", "its tags are in the chat template"),
        (PLAIN, None, "none found in the chat template"),
        (THINK.replace("think>", "odd:thought>"), None, "none found in the chat template"),
    ],
)
def test_reasoning(source: str, name: str | None, evidence: str) -> None:
    found = choose_reasoning("auto", PLUGINS.reasoning, features(source))
    assert found.name == name
    assert found.evidence.startswith(evidence)


def test_the_config_goes_before() -> None:
    # VLLM-5
    here = features(THINK)
    none = choose_reasoning("none", PLUGINS.reasoning, here)
    assert none == Detected(None, None, "set to none in the config")
    named = choose_tools("hermes", PLUGINS.tools, here)
    assert (named.name, named.evidence) == ("hermes", "set in the config")
    with pytest.raises(BackendUnavailableError, match="unknown reasoning or tool format 'odd'"):
        choose_tools("odd", PLUGINS.tools, here)
    assert choose_tools("auto", PLUGINS.tools, None).evidence == "there is no chat template"


@pytest.mark.parametrize(
    ("source", "marker"),
    [
        (HERMES, "<|im_end|>"),
        (PLAIN, None),
        ("{% for m in messages %}<a>{{ m.content }}<|end|><b>x<|end|>{% endfor %}", None),
        (PLAIN + "<tool_call>", None),
        ("{{ raise_exception('never') }}", None),
        (PLAIN + "{% if tools %}<tools>{{ tools | tojson }}{% endif %}", None),
    ],
)
def test_turn_end(source: str, marker: str | None) -> None:
    # TAB-46
    assert turn_end_marker(features(source)) == marker


TEMPLATES = llama_templates()
EXPECTED: dict[str, tuple[str | None, str | None]] = {
    "Apertus-8B-Instruct": ("apertus", "apertus"),
    "Apriel-1.6-15b-Thinker-fixed": ("apriel", "apriel"),
    "Bielik-11B-v3.0-Instruct": ("think", "hermes"),
    "ByteDance-Seed-OSS": ("seed", "seed"),
    "Cohere2MoE": ("cohere", "cohere"),
    "CohereForAI-c4ai-command-r-plus-tool_use": (None, "command-r"),
    "CohereForAI-c4ai-command-r7b-12-2024-tool_use": ("cohere", "cohere"),
    "GLM-4.6": ("think", "glm"),
    "GLM-4.7-Flash": ("think", "glm"),
    "GigaChat3-10B-A1.8B": (None, "gigachat3"),
    "GigaChat3.1-10B-A1.8B": (None, "gigachat3"),
    "HuggingFaceTB-SmolLM3-3B": ("think", None),
    "Kimi-K2-Instruct": (None, "kimi-k2"),
    "Kimi-K2-Thinking": ("think", "kimi-k2"),
    "Kimi-K3": ("kimi-k3", "kimi-k3"),
    "LFM2-8B-A1B": (None, "lfm2"),
    "LFM2.5-8B-A1B": ("think", "lfm2"),
    "LFM2.5-Instruct": ("think", "lfm2"),
    "MiMo-VL": (None, "hermes"),
    "MiniMax-M1": (None, "minimax-m1"),
    "MiniMax-M2": ("think", "minimax-m2"),
    "MiniMax-M3": ("minimax-m3", "minimax-m3"),
    "Mistral-Small-3.2-24B-Instruct-2506": (None, "mistral"),
    "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": ("think", "qwen3-coder"),
    "NVIDIA-Nemotron-Nano-v2": ("think", "nemotron"),
    "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use": (None, "hermes"),
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use": (None, "hermes"),
    "Qwen-QwQ-32B": ("think", "hermes"),
    "Qwen-Qwen2.5-7B-Instruct": (None, "hermes"),
    "Qwen-Qwen3-0.6B": ("think", "hermes"),
    "Qwen3-Coder": (None, "qwen3-coder"),
    "Qwen3.5-4B": ("think", "qwen3-coder"),
    "Reka-Edge": ("think", "hermes"),
    "Spark2.5": ("think", "glm"),
    "StepFun3.5-Flash": ("think", "qwen3-coder"),
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B": ("think", "deepseek-v3"),
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B": ("think", "deepseek-v3"),
    "deepseek-ai-DeepSeek-V3.1": ("think", "deepseek-v3.1"),
    "deepseek-ai-DeepSeek-V3.2": ("think", "deepseek-v3.2"),
    "deepseek-ai-DeepSeek-V4": ("think", "deepseek-v4"),
    "deepseek-ai-DeepSeek-V4-Flash-0731": ("think", "deepseek-v4"),
    "fireworks-ai-llama-3-firefunction-v2": (None, "firefunction"),
    "google-gemma-2-2b-it": (None, None),
    "google-gemma-4-31B-it": ("gemma", "gemma"),
    "google-gemma-4-31B-it-interleaved": ("gemma", "gemma"),
    "ibm-granite-granite-3.3-2B-Instruct": ("granite", "granite"),
    "ibm-granite-granite-4.0": (None, "hermes"),
    "ibm-granite-granite-4.1": (None, "hermes"),
    "inclusionai-ling-3.0-flash": ("think", "glm"),
    "llama-cpp-deepseek-r1": ("think", "deepseek-v3"),
    "llama-cpp-rwkv-world": ("think", None),
    "meetkai-functionary-medium-v3.1": (None, "functionary-v3.1"),
    "meetkai-functionary-medium-v3.2": (None, "functionary-v3.2"),
    "meta-llama-Llama-3.1-8B-Instruct": (None, "llama3-json"),
    "meta-llama-Llama-3.2-3B-Instruct": (None, "llama3-json"),
    "meta-llama-Llama-3.3-70B-Instruct": (None, "llama3-json"),
    "microsoft-Phi-3.5-mini-instruct": (None, None),
    "mistralai-Ministral-3-14B-Reasoning-2512": ("mistral", "mistral"),
    "mistralai-Mistral-Nemo-Instruct-2407": (None, "mistral-list"),
    "moonshotai-Kimi-K2": (None, "kimi-k2"),
    "muse-glimmer": ("muse", "muse"),
    "openai-gpt-oss-120b": ("harmony", "harmony"),
    "openbmb-MiniCPM5-1B": ("think", "minicpm"),
    "poolside-Laguna-S-2.1": ("think", "glm"),
    "poolside-Laguna-XS-2.1": ("think", "glm"),
    "poolside-Laguna-XS.2": ("think", "glm"),
    "tencent-Hy3": ("hunyuan", "hunyuan"),
    "unsloth-Apriel-1.5": ("apriel", "apriel"),
    "unsloth-mistral-Devstral-Small-2507": (None, "mistral"),
    "upstage-Solar-Open-100B": ("solar", "solar"),
}


@pytest.mark.skipif(not TEMPLATES, reason=WITHOUT)
@pytest.mark.parametrize("name", TEMPLATES)
def test_formats_of_llama_cpps_templates(name: str) -> None:
    """What each of them writes, by reading them: (reasoning, tools)."""
    here = features(TEMPLATES[name])
    reasoning = choose_reasoning("auto", PLUGINS.reasoning, here)
    tools = choose_tools("auto", PLUGINS.tools, here)
    assert (reasoning.name, tools.name) == EXPECTED[name], (reasoning.evidence, tools.evidence)
