"""From conversations to batches of tokens."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch

from demo.data import dialogues
from demo.prompts import Tokenizer, prompt_tokens
from demo.turns import Dialogue

IGNORED = -100


@dataclass(frozen=True, slots=True)
class Batch:
    """Conversations of similar length, padded at the end to the longest."""

    tokens: torch.Tensor
    targets: torch.Tensor
    inputs: dict[str, torch.Tensor] = field(default_factory=dict)
    """What else the model's `forward` takes."""


class Encoder:
    """Turns a dialogue into tokens, and into the targets that the model must write itself."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._end: int = tokenizer.convert_tokens_to_ids("<|im_end|>")
        self._header: list[int] = tokenizer.encode("<|im_start|>assistant\n")

    def encode(self, made: Dialogue) -> tuple[list[int], list[int]]:
        """Tokens and, of the same length, targets."""
        prompt = prompt_tokens(self.tokenizer, made.messages, made.tools, made.enable_thinking)
        answer = [*self.tokenizer.encode(made.completion), self._end]
        return prompt + answer, self._history(prompt, made.unlearned) + answer

    def _history(self, prompt: list[int], unlearned: frozenset[int]) -> list[int]:
        """Targets for the assistant messages that are already in the prompt."""
        targets, width = [IGNORED] * len(prompt), len(self._header)
        starts = [i + width for i in range(len(prompt)) if prompt[i : i + width] == self._header]
        for number, start in enumerate(starts[:-1]):
            if number not in unlearned:
                stop = prompt.index(self._end, start) + 1
                targets[start:stop] = prompt[start:stop]
        return targets


def pad(rows: list[tuple[list[int], list[int]]]) -> Batch:
    """Tokens and targets of conversations as one batch."""
    longest = max(len(tokens) for tokens, _ in rows)
    return Batch(
        torch.tensor([tokens + [0] * (longest - len(tokens)) for tokens, _ in rows]),
        torch.tensor([targets + [IGNORED] * (longest - len(targets)) for _, targets in rows]),
    )


def batches(
    encoder: Encoder, seed: int, rows: int, parts: int, easy: bool = False
) -> Iterator[list[Batch]]:
    """Endlessly, `rows` random conversations, sorted by length into `parts` batches.

    On a CPU this is faster than packing them into long rows: attention costs the square of the
    length, and padding at the end needs no mask.
    """
    stream = (encoder.encode(made) for made in dialogues(seed, easy))
    size = -(-rows // parts)
    while True:
        chosen = sorted((next(stream) for _ in range(rows)), key=lambda row: len(row[0]))
        yield [pad(chosen[i : i + size]) for i in range(0, rows, size)]
