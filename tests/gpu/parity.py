"""Texts of an engine beside those of the reference: transformers in float32 on the CPU.

Greedy decoding is a chain of choices, so two engines that compute in different ways say the same
only until two tokens are nearly as likely. A text may therefore leave the reference's where that
one's two best logits are closer than a stated bound, and nowhere else.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.gpu import answers


@dataclass(frozen=True, slots=True)
class Continuation:
    """What the reference says behind a prompt, by token: without the one that ends it.

    `texts` are all texts up to and with each token, `margins` how far the best logit was above the
    second best. `complete` is whether it ended by itself.
    """

    prompt: list[int]
    token_ids: list[int]
    texts: list[str]
    logprobs: list[float]
    margins: list[float]
    complete: bool

    @property
    def text(self) -> str:
        """All that was said."""
        return self.texts[-1] if self.texts else ""

    def agreement(self, text: str, bound: float) -> int:
        """How many tokens of this text are the reference's.

        `AssertionError` if it leaves them where the margin is above `bound`. A text as long as the
        reference's limit may have other tokens behind it; none are looked at.
        """
        if text == self.text:
            return len(self.token_ids)
        same = _common_length(text, self.text)
        at = next((i for i, said in enumerate(self.texts) if len(said) > same), len(self.texts))
        self._check(at, bound, f"{text!r} is not {self.text!r}")
        return at

    def token_agreement(self, token_ids: Sequence[int], bound: float) -> int:
        """The same of token ids."""
        if list(token_ids) == self.token_ids:
            return len(self.token_ids)
        at = _common_length(token_ids, self.token_ids)
        self._check(at, bound, f"{list(token_ids)} are not {self.token_ids}")
        return at

    def _check(self, at: int, bound: float, what: str) -> None:
        # Behind the last token was the choice to end, with a margin; behind a cut, nothing.
        assert at < len(self.margins), f"the reference ended here: {what}"
        margin = self.margins[at]
        sure = f"the reference was sure of token {at} by {margin:.3g}, more than {bound:g}"
        assert margin <= bound, f"{sure}: {what}"


def _common_length(first: Sequence[Any], second: Sequence[Any]) -> int:
    pairs = zip(first, second, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)))


class Reference:
    """A model by transformers in float32 on the CPU, one text at a time.

    It is loaded only for an answer that was not computed before (`tests.gpu.answers`).
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known = {
            asked: Continuation(**answer) for asked, answer in answers.known(folder).items()
        }

    @cached_property
    def tokenizer(self) -> Any:
        return AutoTokenizer.from_pretrained(self._folder)

    @cached_property
    def model(self) -> Any:
        return AutoModelForCausalLM.from_pretrained(self._folder, dtype=torch.float32).eval()

    def prompt(self, message: str) -> list[int]:
        """A user's message as the model gets it, without room for thought."""
        messages = [{"role": "user", "content": message}]
        text = self.tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True, enable_thinking=False
        )
        token_ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False)
        return token_ids

    def answer(self, message: str, tokens: int) -> Continuation:
        """Its greedy answer to a message, of so many tokens at most."""
        key = message, tokens
        if key not in self._known:
            self._known[key] = self._continue(self.prompt(message), tokens)
        return self._known[key]

    @torch.inference_mode()
    def _continue(self, prompt: list[int], tokens: int) -> Continuation:
        asked = torch.tensor([prompt])
        [whole] = self.model.generate(
            asked,
            attention_mask=torch.ones_like(asked),
            max_new_tokens=tokens,
            do_sample=False,
            pad_token_id=0,
        )
        logits = self.model(whole[None]).logits[0, len(prompt) - 1 : -1]
        best = logits.topk(2).values
        said = whole[len(prompt) :].tolist()
        logprobs = logits.log_softmax(-1)[range(len(said)), said].tolist()
        ends = self.model.generation_config.eos_token_id
        complete = said[-1] in (ends if isinstance(ends, list) else [ends])
        kept = said[:-1] if complete else said
        return Continuation(
            prompt,
            kept,
            [self.tokenizer.decode(kept[: i + 1]) for i in range(len(kept))],
            logprobs[: len(kept)],
            (best[:, 0] - best[:, 1]).tolist(),
            complete,
        )
