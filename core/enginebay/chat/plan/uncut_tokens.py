"""Tokens of texts and prompts that need not fit into their model's context: to be counted, or cut.

`param` is the field that errors name.
"""

from enginebay.chat.plan.media_tokens import tokenize_media
from enginebay.chat.plan.prompt import Prompt
from enginebay.chat.plan.prompt_tokens import CONTEXTS_READ, plain_tokens, tokenize_text
from enginebay.models.served import ServedModel


async def uncut_tokens(
    model: ServedModel, text: str, param: str, *, add_special_tokens: bool
) -> list[int]:
    """The tokens of a text."""
    return await tokenize_text(
        model, text, add_special_tokens=add_special_tokens, param=param, contexts=CONTEXTS_READ
    )


async def uncut_plain_tokens(
    model: ServedModel, text: str, param: str, *, add_special_tokens: bool
) -> list[int] | None:
    """The same, with nothing in it read as a special token; None if the engine cannot do that."""
    return await plain_tokens(
        model, text, add_special_tokens=add_special_tokens, param=param, contexts=CONTEXTS_READ
    )


async def uncut_prompt(model: ServedModel, prompt: Prompt, param: str) -> list[int]:
    """The tokens of a rendered prompt, also of what its media come to."""
    if prompt.pieces:
        return list((await tokenize_media(model, prompt, contexts=CONTEXTS_READ)).token_ids)
    add = prompt.add_special_tokens
    return await uncut_tokens(model, prompt.text, param, add_special_tokens=add)
