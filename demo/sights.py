"""Conversations about pictures, as batches to learn from."""

import random
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch

from demo.batches import IGNORED, Batch, Encoder, pad
from demo.data import finish, roughen, system, turn
from demo.patches import ROWS, Patches, normalized, patches
from demo.pictures import Picture, picture
from demo.prompts import Tokenizer
from demo.questions import Question, ask
from demo.turns import Dialogue, Json, Turn

IMAGE = "<image>"
"""The token that stands for a picture; the chat template writes it for a part of type image."""
_MISSING = "I see no picture here. Please send me one."


def add_placeholder(tokenizer: Tokenizer) -> int:
    """Add `IMAGE` to the tokens, if it is not there; returns its id."""
    tokenizer.add_tokens([IMAGE], special_tokens=True)
    return int(tokenizer.convert_tokens_to_ids(IMAGE))


class Sight(NamedTuple):
    """Tokens, targets and branches of a text, and its pictures.

    Branch 0 is read by all that follows, another one by itself only, as if it followed branch 0.
    """

    tokens: list[int]
    targets: list[int]
    branches: list[int]
    pictures: list[Patches]


def _content(rng: random.Random, question: str) -> str | list[Json]:
    """A question with a picture before or behind it: as parts, or with the placeholder alone."""
    parts: list[Json] = [{"type": "image"}, {"type": "text", "text": question}]
    if rng.random() < 0.15:
        return f"{IMAGE}{question}"
    return parts if rng.random() < 0.4 else parts[::-1]


def _turn(question: Question) -> Turn:
    return Turn(question.text, question.answer, question.thought)


def conversation(rng: random.Random) -> tuple[Dialogue, list[Picture]]:
    """One to three questions, mostly about one picture; now and then there is none."""
    messages, _ = system(rng)
    pictures: list[Picture] = []
    absent = rng.random() < 0.06
    amount = 1 if absent else rng.choices((1, 2, 3), weights=(55, 30, 15))[0]
    for number in range(amount):
        if number and rng.random() < 0.08:
            _, made = turn(rng, "small_talk")
            content: str | list[Json] = roughen(rng, made.user, keep_case=False)
        else:
            new = not pictures or rng.random() < 0.25
            seen = picture(rng) if new else pictures[-1]
            question = ask(rng, seen.things)
            content = roughen(rng, question.text, keep_case=False)
            if new and not absent:
                pictures.append(seen)
                content = _content(rng, content)
            made = _turn(question)
            if absent:
                made = Turn("", _MISSING, "There is no picture.")
        messages.append({"role": "user", "content": content})
        if number < amount - 1:
            messages.append({"role": "assistant", "content": made.answer})
    return finish(rng, "picture", messages, made, []), pictures


def questions(rng: random.Random, amount: int) -> tuple[list[Dialogue], Picture]:
    """Conversations that begin with the same picture, a question in each."""
    before = system(rng)[0]
    seen = picture(rng)
    made = []
    for _ in range(amount):
        question = ask(rng, seen.things)
        asked = roughen(rng, question.text, keep_case=False)
        parts: list[Json] = [{"type": "image"}, {"type": "text", "text": asked}]
        messages = [*before, {"role": "user", "content": parts}]
        made.append(finish(rng, "picture", messages, _turn(question), []))
    return made, seen


class Sights(torch.utils.data.IterableDataset[Sight]):
    """Endless texts about pictures; the same seed gives the same ones."""

    def __init__(self, encoder: Encoder, seed: int, amount: int = 3) -> None:
        """`amount`: questions about a picture in a text of branches."""
        self._encoder = encoder
        self._seed = seed
        self._amount = amount
        self._image = add_placeholder(encoder.tokenizer)

    def __iter__(self) -> Iterator[Sight]:
        rng = random.Random(self._seed)
        while True:
            yield self._talk(rng) if rng.random() < 0.35 else self._branched(rng)

    def _talk(self, rng: random.Random) -> Sight:
        made, pictures = conversation(rng)
        tokens, targets = self._encoder.encode(made)
        times = [ROWS if token == self._image else 1 for token in tokens]
        tokens, targets = (
            [value for value, n in zip(values, times, strict=True) for _ in range(n)]
            for values in (tokens, targets)
        )
        return Sight(tokens, targets, [0] * len(tokens), [patches(each) for each in pictures])

    def _branched(self, rng: random.Random) -> Sight:
        made, seen = questions(rng, self._amount)
        encoded = [self._encoder.encode(each) for each in made]
        # All begin with the same tokens, up to the line break behind the picture.
        first = encoded[0][0]
        shared = first.index(self._image) + 2
        tokens = [*first[: shared - 2], *[self._image] * ROWS, first[shared - 1]]
        targets, branches = [IGNORED] * len(tokens), [0] * len(tokens)
        for number, (more, wanted) in enumerate(encoded, 1):
            tokens += more[shared:]
            targets += wanted[shared:]
            branches += [number] * (len(more) - shared)
        return Sight(tokens, targets, branches, [patches(seen)])


class SightBatch(NamedTuple):
    """Texts, the pictures in them, and what lies in each patch of these."""

    texts: Batch
    pixels: torch.Tensor
    kinds: torch.Tensor
    colours: torch.Tensor


def sight_batch(sights: list[Sight]) -> SightBatch:
    """Texts of similar length; where a branch begins, positions go on from branch 0."""
    texts = pad([(sight.tokens, sight.targets) for sight in sights])
    width = texts.tokens.shape[1]
    # Padding is a branch of its own: it must read something, and nothing may read it.
    branches = torch.tensor(
        [[*sight.branches, *[-1] * (width - len(sight.branches))] for sight in sights]
    )
    rows, columns = branches[:, :, None], branches[:, None, :]
    visible = ((rows == columns) | (columns == 0)).tril()
    pictures = [each for sight in sights for each in sight.pictures]
    pixels, kinds, colours = (
        torch.from_numpy(np.array([each[i] for each in pictures])) for i in range(3)
    )
    inputs = {"attention_mask": visible[:, None], "position_ids": visible.sum(-1) - 1}
    return SightBatch(
        Batch(texts.tokens, texts.targets, inputs), normalized(pixels), kinds, colours
    )


def sight_batches(sights: list[Sight], parts: int) -> list[SightBatch]:
    """Sorted by length into `parts` batches."""
    ordered, size = sorted(sights, key=lambda sight: len(sight.tokens)), -(-len(sights) // parts)
    return [sight_batch(ordered[i : i + size]) for i in range(0, len(ordered), size)]
