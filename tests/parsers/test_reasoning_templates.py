"""Reasoning formats beside the chat templates of real models."""

from functools import cache

import pytest

from enginebay import ReasoningFormat
from enginebay.models.template.detect_formats import detect_reasoning
from enginebay.models.template.features import TemplateFeatures
from enginebay.models.template.template import ChatTemplate
from enginebay.models.template.turn_end import turn_end_marker
from enginebay_parsers import REASONING
from tests.llama_templates import llama_templates

TEMPLATES = llama_templates()
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
pytestmark = pytest.mark.skipif(not TEMPLATES, reason="needs llama-cpp-python's source package")


@cache
def features_of(name: str) -> TemplateFeatures:
    return TemplateFeatures(ChatTemplate(TEMPLATES[name], SPECIAL))


@cache
def format_of(features: TemplateFeatures) -> ReasoningFormat | None:
    return detect_reasoning(REASONING, features).format


REASONS = [name for name in sorted(TEMPLATES) if format_of(features_of(name))]


@pytest.mark.parametrize("name", REASONS)
def test_what_ends_a_turn_does_not_end_thought(name: str) -> None:
    """Else generation would stop behind the thought, and in a forced end of it."""
    features = features_of(name)
    marker = turn_end_marker(features)
    for tools in (True, False):
        form = format_of(features)
        marks = form.marks(tools=tools) if form else None
        assert marks
        assert not marker or marker not in marks.close


OFF = {"enable_thinking": False, "thinking": False, "reasoning_effort": "none"}
# Templates that make the model think whatever they are told.
ALWAYS = {
    "Apriel-1.6-15b-Thinker-fixed",
    "MiniMax-M2",
    "NVIDIA-Nemotron-Nano-v2",
    "StepFun3.5-Flash",
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B",
    "llama-cpp-deepseek-r1",
}


@pytest.mark.parametrize("name", REASONS)
def test_a_prompt_that_forbids_thought_does_not_begin_it(name: str) -> None:
    # TAB-3, TAB-4, TAB-6
    features = features_of(name)
    asked = [features.says("system", "Be brief."), features.says("user", "<think>, what is that?")]
    prompt = features.render(asked, variables=OFF) or features.render(asked[1:]) or ""
    form = format_of(features)
    assert form
    assert form.starts_inside(prompt) is (name in ALWAYS)


ON = {"enable_thinking": True, "thinking": True, "reasoning_effort": "high"}
BEGIN = {
    "GLM-4.7-Flash", "Kimi-K3", "Qwen-QwQ-32B", "Qwen3.5-4B", "deepseek-ai-DeepSeek-V3.1",
    "tencent-Hy3",
}  # fmt: skip


@pytest.mark.parametrize("name", sorted((BEGIN | ALWAYS) & TEMPLATES.keys()))
def test_a_prompt_that_begins_thought_is_known_by_it(name: str) -> None:
    # TAB-1, TAB-5
    features = features_of(name)
    prompt = features.render([features.says("user", "Hi.")], variables=ON)
    form = format_of(features)
    assert prompt
    assert form
    assert form.starts_inside(prompt)
