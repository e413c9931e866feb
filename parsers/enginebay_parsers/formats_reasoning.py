"""The built-in reasoning formats."""

import re

from enginebay import Margins, ReasoningFormat
from enginebay_parsers.channels import harmony, muse
from enginebay_parsers.channels.channels import Channels
from enginebay_parsers.reasoning.tag_pair import TagPair

_LINES = Margins("\n", "\n", "\n\n")

# `auto` takes the first that matches a chat template, so what is special comes first.
REASONING: dict[str, ReasoningFormat] = {
    "harmony": Channels(
        harmony.TAGS,
        reasoning=re.compile(harmony.ANALYSIS),
        calls=harmony.TAGS.call,
        evidence="<|channel|>",
        opening="<|channel|>analysis<|message|>",
        end="<|end|>",
        answer="<|start|>assistant<|channel|>final<|message|>",
        answer_or_call="<|start|>assistant<|channel|>commentary",
        to_user=harmony.TO_USER,
        example=(
            "<|channel|>analysis<|message|>Two and two is four.<|end|><|start|>assistant"
            "<|channel|>final<|message|>It is 4.<|return|>"
        ),
    ),
    "muse": Channels(
        muse.TAGS,
        reasoning=muse.TO_ONESELF,
        calls=muse.TO_OTHERS,
        evidence="to=self<|message|>",
        opening=" to=self<|message|>",
        end="<|eom|>",
        answer="<|start|>assistant to=user<|message|>",
        answer_or_call="<|start|>assistant",
        to_user=muse.TO_USER,
        example=(
            " to=self<|message|>Two and two is four.<|eom|><|start|>assistant to=user"
            "<|message|>It is 4.<|eot|>"
        ),
    ),
    "gemma": TagPair(
        "<|channel>",
        "<channel|>",
        header="thought",
        example="<|channel>thought\nTwo and two is four.<channel|>It is 4.",
    ),
    "solar": TagPair(
        "<|think|>",
        "<|end|>",
        answer=("<|begin|>assistant", "<|content|>"),
        opens=("<|begin|>assistant<|content|>", "<|content|>"),
        closes=("<|end|>",),
        evidence=("<|begin|>assistant<|think|>",),
        example=(
            "<|think|>Two and two is four.<|end|><|begin|>assistant<|content|>It is 4.<|end|>"
        ),
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
        example=(
            "<|open|>think<|sep|>Two and two is four.<|close|>think<|sep|><|open|>response"
            "<|sep|>It is 4.<|close|>response<|sep|><|close|>message<|sep|>"
        ),
    ),
    "minimax-m3": TagPair(
        "<mm:think>", "</mm:think>", example="<mm:think>Two and two is four.</mm:think>It is 4."
    ),
    "mistral": TagPair(
        "[THINK]", "[/THINK]", example="[THINK]Two and two is four.[/THINK]It is 4."
    ),
    "cohere": TagPair(
        "<|START_THINKING|>",
        "<|END_THINKING|>",
        answer=("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"),
        opens=("<|START_RESPONSE|>", "<|START_TEXT|>"),
        closes=("<|END_RESPONSE|>", "<|END_TEXT|>"),
        example=(
            "<|START_THINKING|>Two and two is four.<|END_THINKING|>"
            "<|START_RESPONSE|>It is 4.<|END_RESPONSE|>"
        ),
    ),
    "seed": TagPair(
        "<seed:think>",
        "</seed:think>",
        space=Margins(gap="\n"),
        example="<seed:think>Two and two is four.</seed:think>It is 4.",
    ),
    "hunyuan": TagPair(
        "<think:opensource>",
        "</think:opensource>",
        evidence=("<think:opensource>", "<think{}>"),
        example="<think:opensource>Two and two is four.</think:opensource>It is 4.",
    ),
    "hunyuan-a13b": TagPair(
        "<think>",
        "</think>",
        answer=("<answer>", "</answer>"),
        opens=("<answer>",),
        closes=("</answer>",),
        evidence=("<answer>",),
        space=_LINES,
        example="<think>\nTwo and two is four.\n</think>\n<answer>\nIt is 4.\n</answer>",
    ),
    "apertus": TagPair(
        "<|inner_prefix|>",
        "<|inner_suffix|>",
        example="<|inner_prefix|>Two and two is four.<|inner_suffix|>It is 4.",
    ),
    "apriel": TagPair(
        "Here are my reasoning steps:\n",
        "[BEGIN FINAL RESPONSE]",
        answer=("[END FINAL RESPONSE]",),
        closes=("[END FINAL RESPONSE]",),
        evidence=("[BEGIN FINAL RESPONSE]",),
        space=Margins(tail="\n", gap="\n"),
        example=(
            "Here are my reasoning steps:\nTwo and two is four.\n[BEGIN FINAL RESPONSE]\n"
            "It is 4.\n[END FINAL RESPONSE]"
        ),
    ),
    "granite": TagPair(
        "<think>",
        "</think>",
        answer=("<response>", "</response>"),
        opens=("<response>",),
        closes=("</response>",),
        evidence=("<response></response>",),
        space=Margins(gap="\n"),
        example="<think>Two and two is four.</think>\n<response>It is 4.</response>",
    ),
    "granite-3.2": TagPair(
        "Here is my thought process:",
        "Here is my response:",
        space=Margins("\n", "\n\n", "\n"),
        example=(
            "Here is my thought process:\nTwo and two is four.\n\nHere is my response:\nIt is 4."
        ),
    ),
    "exaone-deep": TagPair(
        "<thought>",
        "</thought>",
        space=_LINES,
        example="<thought>\nTwo and two is four.\n</thought>\n\nIt is 4.",
    ),
    "thinking": TagPair(
        "<thinking>",
        "</thinking>",
        space=_LINES,
        example="<thinking>\nTwo and two is four.\n</thinking>\n\nIt is 4.",
    ),
    "think": TagPair(
        "<think>",
        "</think>",
        space=_LINES,
        example="<think>\nTwo and two is four.\n</think>\n\nIt is 4.",
    ),
}
