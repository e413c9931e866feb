"""Filling in the middle: prompts with a suffix, for models that have tokens for it.

The layout of the three parts differs by model; the vocabulary shows which tokens it has. Formats:
Bavarian et al., 2022 (https://arxiv.org/abs/2207.14255), and the model cards of the families named
below.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from enginebay.chat.plan.prompt_tokens import tokenize_text
from enginebay.contract.errors import UnsupportedParameterError
from enginebay.models.served import ServedModel


@dataclass(frozen=True, slots=True)
class Infill:
    """The tokens before prefix and suffix, and after both.

    `suffix_first`: the suffix precedes the prefix, so the model continues the prefix; then `middle`
    may be empty.
    """

    prefix: str
    suffix: str
    middle: str = ""
    suffix_first: bool = False

    @property
    def tokens(self) -> tuple[str, ...]:
        """The tokens that a vocabulary must have."""
        return tuple(filter(None, (self.prefix, self.suffix, self.middle)))

    def around(
        self, prefix: Sequence[int], suffix: Sequence[int], ids: Mapping[str, int]
    ) -> list[int]:
        """Both parts in their order, with the tokens, whose ids are `ids`."""
        before, after = [ids[self.prefix], *prefix], [ids[self.suffix], *suffix]
        parts = after + before if self.suffix_first else before + after
        return [*parts, *([ids[self.middle]] if self.middle else [])]


FORMATS = (
    Infill("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen 2.5 Coder, CodeGemma
    Infill("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder, Granite Code
    Infill("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),  # SantaCoder
    Infill("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # DeepSeek Coder
    Infill("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),  # GLM 4.5
    Infill("<[fim-prefix]>", "<[fim-suffix]>", "<[fim-middle]>", suffix_first=True),  # Seed Coder
    Infill("▁<PRE>", "▁<SUF>", "▁<MID>"),  # Code Llama
    Infill("[PREFIX]", "[SUFFIX]", suffix_first=True),  # Codestral
)


async def infill_prompt(
    prompt: str | list[int], suffix: str, model: ServedModel, *, add_special_tokens: bool
) -> list[int]:
    """The tokens of a prompt whose completion leads to `suffix`; an error if the model has none.

    `add_special_tokens`: prepend what the tokenizer puts before a text (a BOS).
    """
    format, ids = await infill_format(model, param="suffix")
    prefix = prompt
    if isinstance(prefix, str):
        prefix = await tokenize_text(model, prefix, add_special_tokens=False, param="prompt")
    rest = await tokenize_text(model, suffix, add_special_tokens=False, param="suffix")
    start = model.formats.beginning.token_ids if add_special_tokens else ()
    return [*start, *format.around(prefix, rest, ids)]


async def infill_format(model: ServedModel, *, param: str) -> tuple[Infill, dict[str, int]]:
    """The first format all of whose tokens the vocabulary has, and does not all call unknown.

    An error that names the field `param` if there is none.
    """
    for format in FORMATS:
        ids: dict[str, int] = {}
        for text in format.tokens:
            found = await model.backend.tokenize(text, add_special_tokens=False)
            if len(found) != 1:
                break
            ids[text] = found[0]
        if len(set(ids.values())) == len(format.tokens):
            return format, ids
    raise UnsupportedParameterError(
        f"model {model.asked!r} does not support {param}: its vocabulary has no "
        "fill-in-the-middle tokens (such as <|fim_prefix|>)",
        param=param,
    )


async def fills_in(model: ServedModel) -> bool:
    """Whether a model takes a suffix."""
    try:
        await infill_format(model, param="suffix")
    except UnsupportedParameterError:
        return False
    return True
