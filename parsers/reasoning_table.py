"""The built-in reasoning formats."""

from enginebay import ReasoningFormat
from parsers import harmony, muse
from parsers.tag_pair import TagPair

# `auto` takes the first that matches a chat template, so what is special comes first.
REASONING: dict[str, ReasoningFormat] = {
    "harmony": harmony.REASONING,
    "muse": muse.REASONING,
    "gemma": TagPair("<|channel>", "<channel|>", header="thought"),
    "solar": TagPair(
        "<|think|>",
        "<|end|>",
        answer=("<|begin|>assistant", "<|content|>"),
        opens=("<|begin|>assistant<|content|>", "<|content|>"),
        closes=("<|end|>",),
        evidence=("<|begin|>assistant<|think|>",),
    ),
    "kimi-k3": TagPair(
        "<|open|>think<|sep|>",
        "<|close|>think<|sep|>",
        answer=(
            "<|open|>response<|sep|>",
            "<|close|>response<|sep|>",
            "<|close|>message<|sep|>",
        ),
        opens=("<|open|>response<|sep|>",),
        closes=(
            "<|close|>response<|sep|><|close|>message<|sep|>",
            "<|close|>response<|sep|>",
        ),
        evidence=("open_tag('think'", "<|open|>think<|sep|>"),
    ),
    "minimax-m3": TagPair("<mm:think>", "</mm:think>"),
    "mistral": TagPair("[THINK]", "[/THINK]"),
    "cohere": TagPair(
        "<|START_THINKING|>",
        "<|END_THINKING|>",
        answer=("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"),
        opens=("<|START_RESPONSE|>", "<|START_TEXT|>"),
        closes=("<|END_RESPONSE|>", "<|END_TEXT|>"),
    ),
    "seed": TagPair("<seed:think>", "</seed:think>"),
    "hunyuan": TagPair(
        "<think:opensource>", "</think:opensource>", evidence=("<think:opensource>", "<think{}>")
    ),
    "hunyuan-a13b": TagPair(
        "<think>",
        "</think>",
        answer=("<answer>", "</answer>"),
        opens=("<answer>",),
        closes=("</answer>",),
        evidence=("<answer>",),
    ),
    "apertus": TagPair("<|inner_prefix|>", "<|inner_suffix|>"),
    "apriel": TagPair(
        "Here are my reasoning steps:\n",
        "[BEGIN FINAL RESPONSE]",
        answer=("[END FINAL RESPONSE]",),
        closes=("[END FINAL RESPONSE]",),
        evidence=("[BEGIN FINAL RESPONSE]",),
    ),
    "granite": TagPair(
        "<think>",
        "</think>",
        answer=("<response>", "</response>"),
        opens=("<response>",),
        closes=("</response>",),
        evidence=("<response></response>",),
    ),
    "granite-3.2": TagPair("Here is my thought process:", "Here is my response:"),
    "exaone-deep": TagPair("<thought>", "</thought>"),
    "thinking": TagPair("<thinking>", "</thinking>"),
    "think": TagPair("<think>", "</think>"),
}
