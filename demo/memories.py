"""Texts without pictures, for a language model that learns to see.

It must go on reading them as it did before: conversations, and what it makes up itself when it is
hot and cannot end, which is unlike anything it was taught. And it learns how JSON goes on, behind
any question: a schema may ask for that.
"""

import json
import random
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from transformers import LlamaForCausalLM

from demo import words
from demo.batches import IGNORED, Encoder, pad
from demo.data import dialogues
from demo.prompts import prompt_tokens
from demo.turns import Dialogue, Json


class Row(NamedTuple):
    """Tokens and targets; `free`: whether these are to be learned, whatever it wrote before."""

    tokens: list[int]
    targets: list[int]
    free: bool = False


_KEYS = (
    *("name", "age", "city", "colour", "weight", "fragile", "count", "item", "title", "price"),
    *("tags", "size", "id", "ok", "unit", "answer", "kind", "when", "who", "number", "value"),
    *("text", "total", "list", "location", "country", "date"),
)
_TEXTS = [*words.COLOURS, *words.NAMES, *words.THINGS]
_SEPARATORS = ((", ", ": "), (", ", ": "), (",", ":"))
_PROMPT = 300
"""The most tokens of a prompt that is made up to."""


class Memories(NamedTuple):
    """A batch; `read` is true where a token is no padding, `free` in rows that are.

    All of the shape rows x length.
    """

    tokens: torch.Tensor
    targets: torch.Tensor
    read: torch.Tensor
    free: torch.Tensor


def memories(
    encoder: Encoder, teacher: LlamaForCausalLM, seed: int, rows: int, parts: int
) -> Iterator[list[Memories]]:
    """Endlessly, `rows` texts, sorted by length into `parts` batches."""
    texts, size = _texts(encoder, _made_up(teacher, encoder, seed), seed), -(-rows // parts)
    while True:
        chosen = sorted((next(texts) for _ in range(rows)), key=lambda row: len(row.tokens))
        yield [_batch(chosen[i : i + size]) for i in range(0, rows, size)]


def _batch(rows: list[Row]) -> Memories:
    texts = pad([(row.tokens, row.targets) for row in rows])
    longest = range(texts.tokens.shape[1])
    return Memories(
        texts.tokens,
        texts.targets,
        torch.tensor([[at < len(row.tokens) for at in longest] for row in rows]),
        torch.tensor([[row.free for _ in longest] for row in rows]),
    )


def _texts(encoder: Encoder, made_up: list[list[int]], seed: int) -> Iterator[Row]:
    rng = random.Random(seed)
    for made in dialogues(seed):
        roll = rng.random()
        if roll < 0.3:
            tokens = rng.choice(made_up)
            yield Row(tokens, [IGNORED] * len(tokens))
        elif roll < 0.6:
            yield _constrained(rng, encoder, made)
        else:
            yield Row(*encoder.encode(made))


def _constrained(rng: random.Random, encoder: Encoder, made: Dialogue) -> Row:
    """An answer that a schema, or a list of choices, has forced; its first token is not learned."""
    thought, end, _ = made.completion.rpartition("</think>\n\n")
    answer = _json(rng) if rng.random() < 0.8 else rng.choice(words.COLOURS + words.CITIES)
    made.completion = thought + end + answer
    tokens, _ = encoder.encode(made)
    forced = len(tokens) - len(encoder.tokenizer.encode(answer))
    return Row(tokens, [IGNORED] * forced + tokens[forced:], free=True)


def _json(rng: random.Random) -> str:
    return json.dumps(
        _object(rng, 0),
        separators=rng.choice(_SEPARATORS),
        indent=2 if rng.random() < 0.25 else None,
        ensure_ascii=False,
    )


def _object(rng: random.Random, depth: int) -> Json:
    return {key: _value(rng, depth) for key in rng.sample(_KEYS, rng.randint(1, 4))}


def _value(rng: random.Random, depth: int) -> Any:
    kind = rng.random()
    if kind < 0.25:
        return rng.choice(_TEXTS)
    if kind < 0.33:
        return words.city(rng)
    if kind < 0.48:
        return rng.random() < 0.5
    if kind < 0.53:
        return None
    if kind < 0.61:
        return round(rng.random() * 100, rng.randint(1, 3))
    if kind < 0.68 and depth < 2:
        return [_value(rng, depth + 1) for _ in range(rng.randint(0, 3))]
    if kind < 0.75 and depth < 2:
        return _object(rng, depth + 1)
    return rng.randint(0, 10 ** rng.randint(1, 4))


def _made_up(
    teacher: LlamaForCausalLM, encoder: Encoder, seed: int, batches: int = 14, rows: int = 64
) -> list[list[int]]:
    """Prompts of conversations with 90 tokens of the teacher's behind each."""
    made, rng = dialogues(seed), random.Random(seed)
    generate: Any = teacher.generate
    texts: list[list[int]] = []
    for _ in range(batches):
        prompts = []
        for _ in range(rows):
            each = next(made)
            prompt = prompt_tokens(
                encoder.tokenizer, each.messages, each.tools, each.enable_thinking
            )
            prompts.append(prompt[-_PROMPT:])
        longest = max(map(len, prompts))
        padding = [[0] * (longest - len(prompt)) for prompt in prompts]
        written = generate(
            torch.tensor([pad + prompt for pad, prompt in zip(padding, prompts, strict=True)]),
            attention_mask=torch.tensor(
                [[*pad, *[1] * len(prompt)] for pad, prompt in zip(padding, prompts, strict=True)]
            ),
            do_sample=True,
            temperature=rng.choice((0.7, 1.0, 1.3)),
            top_p=1.0,
            top_k=0,
            max_new_tokens=90,
            eos_token_id=None,
        )
        texts += [p + row[longest:].tolist() for p, row in zip(prompts, written, strict=True)]
    return texts
