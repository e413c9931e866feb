"""Thought and calls of one model, each in its own syntax."""

import pytest

from enginebay_parsers import REASONING, TOOLS
from tests.parsers.cutting import Joined, Pipe, same_however_cut
from tests.parsers.tools.xml_writers import BY_NAME

CALL = ("f", {"s": "a"})
KIMI = BY_NAME["kimi-k3"].write(("f", {"s": "a<|close|>response<|sep|>b"}), ("g", {}))
MUSE = BY_NAME["muse"]
M3 = '<tool_call>\n<invoke name="f"><s>a</s></invoke>\n</tool_call>'.replace("<", "]<]minimax[>[<")
THOUGHT = ("reasoning", "hm")
F = ("call", 0, "f", '{"s": "a"}')


@pytest.mark.parametrize(
    ("reasoning", "tools", "text", "parts"),
    [
        ("think", "glm", f"<think>hm</think>{BY_NAME['glm'].write(CALL)}", [THOUGHT, F]),
        (
            "kimi-k3",
            "kimi-k3",
            "<|open|>think<|sep|>hm<|close|>think<|sep|><|open|>response<|sep|>Hi."
            f"<|close|>response<|sep|>{KIMI}<|close|>message<|sep|>",
            [
                THOUGHT,
                ("content", "Hi."),
                ("call", 0, "f", '{"s": "a<|close|>response<|sep|>b"}'),
                ("call", 1, "g", "{}"),
            ],
        ),
        (
            "muse",
            "muse",
            " to=self<|message|>hm<|eom|><|start|>assistant to=f<|message|>"
            f"{MUSE.write(CALL)}<|eom|><|start|>assistant to=g<|message|>"
            f"{MUSE.write(('g', {}))}<|eot|>",
            [THOUGHT, F, ("call", 1, "g", "{}")],
        ),
        (
            "gemma",
            "gemma",
            '<|channel>thought\nhm<channel|><|tool_call>call:f{s:<|"|><channel|><|"|>}<tool_call|>',
            [THOUGHT, ("call", 0, "f", '{"s": "<channel|>"}')],
        ),
        (
            "think",
            "lfm2",
            "<think>hm</think><|tool_call_start|>[f(s='</think>')]<|tool_call_end|>so",
            [THOUGHT, ("call", 0, "f", '{"s": "</think>"}'), ("content", "so")],
        ),
        ("minimax-m3", "minimax-m3", f"<mm:think>hm</mm:think>{M3}", [THOUGHT, F]),
        (
            "hunyuan",
            "hunyuan",
            f"<think:opensource>hm</think:opensource>{BY_NAME['hunyuan'].write(CALL)}",
            [THOUGHT, F],
        ),
        ("seed", "seed", f"<seed:think>hm</seed:think>{BY_NAME['seed'].write(CALL)}", [THOUGHT, F]),
    ],
)
def test_thought_then_calls(reasoning: str, tools: str, text: str, parts: Joined) -> None:
    # TAB-60, TAB-70, VLLM-58, VLLM-59; complaint 6
    tags, calls = REASONING[reasoning], TOOLS[tools]
    assert same_however_cut(lambda: Pipe(tags, calls, inside=False), text) == parts
