"""From messages to prompt tokens, the same way in training, evaluation and comparison."""

from typing import Any

from demo.turns import Json

Tokenizer = Any
"""A fast tokenizer of transformers, whose own annotations are too loose to help."""


def prompt_tokens(
    tokenizer: Tokenizer,
    messages: list[Json],
    tools: list[Json],
    enable_thinking: bool | None,
) -> list[int]:
    """The tokens of the rendered chat, up to where the answer begins."""
    options = {} if enable_thinking is None else {"enable_thinking": enable_thinking}
    text = tokenizer.apply_chat_template(
        messages,
        tools=tools or None,
        add_generation_prompt=True,
        tokenize=False,
        **options,
    )
    return list(tokenizer.encode(text))
