"""Drafts by a draft model: a small, faster one with the vocabulary of the large one."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from enginebay.engine.batching.choice import ChoiceState
from enginebay.engine.batching.drafts import Drafter
from enginebay.engine.batching.runner import Chunk
from enginebay.engine.batching.slots import common_prefix


class DraftModel(ABC):
    """A draft model with its KV cache, on the engine thread.

    `slots` sequences of at most `length` tokens, `tokens` in all of them together. It knows the
    tokens below `vocab_size`. `batch_tokens`: of prompts it reads in one step.
    """

    slots: int
    length: int
    tokens: int
    vocab_size: int
    batch_tokens: int

    @abstractmethod
    def next_tokens(self, chunks: Sequence[Chunk]) -> list[int]:
        """Run chunks, each with logits of its last token; the likeliest token after each."""

    @abstractmethod
    def cut(self, slot: int, tokens: int) -> None:
        """Truncate a slot to its first `tokens`."""


class ModelDrafter(Drafter):
    """Greedy drafts for all choices at once, one token per round.

    It remembers what it has read in a slot for each choice. Prompts are read in several steps, so
    that the other choices wait for none.
    """

    def __init__(self, model: DraftModel, tokens: int) -> None:
        self.tokens = tokens
        self._model = model
        self._held: list[list[int]] = [[] for _ in range(model.slots)]
        self._salts: list[str | None] = [None] * model.slots
        self._slots: dict[ChoiceState[Any], int] = {}

    def ready(self, wanted: Mapping[ChoiceState[Any], int]) -> Mapping[ChoiceState[Any], int]:
        model = self._model
        self._slots = {c: slot for c, slot in self._slots.items() if c.slot is not None}
        ready: dict[ChoiceState[Any], int] = {}
        unread: dict[ChoiceState[Any], Sequence[int]] = {}
        budget, reserved = model.batch_tokens, 0
        for choice, asked in wanted.items():
            text = _text(choice)
            tokens = min(asked, model.length - len(text))
            slot = self._place(choice, text) if tokens > 0 else None
            if slot is None:
                continue
            reserved += len(text) + tokens - len(self._held[slot])
            if not self._make_room(reserved):
                break
            missing = text[len(self._held[slot]) : -1]
            if len(missing) <= self.tokens:
                ready[choice] = tokens
                continue
            read = missing[:budget]  # of a prompt, or of what was said while nothing was drafted
            if read:
                unread[choice] = read
            budget -= len(read)
            if len(read) == len(missing):
                ready[choice] = tokens
        unread = {c: new for c, new in unread.items() if self._knows(new)}
        if unread:
            self._run(unread)
        return {c: tokens for c, tokens in ready.items() if self._knows(self._new(c))}

    def draft(
        self, wanted: Mapping[ChoiceState[Any], int]
    ) -> Mapping[ChoiceState[Any], Sequence[int]]:
        drafts: dict[ChoiceState[Any], list[int]] = {choice: [] for choice in wanted}
        missing = {choice: self._new(choice) for choice in wanted}
        while missing:
            for choice, token in zip(missing, self._run(missing), strict=True):
                drafts[choice].append(token)
            missing = {c: drafts[c][-1:] for c in missing if len(drafts[c]) < wanted[c]}
        return drafts

    def _new(self, choice: ChoiceState[Any]) -> Sequence[int]:
        """What it has not read of a choice."""
        return _text(choice)[len(self._held[self._slots[choice]]) :]

    def _knows(self, token_ids: Iterable[int]) -> bool:
        return max(token_ids, default=0) < self._model.vocab_size

    def _place(self, choice: ChoiceState[Any], text: Sequence[int]) -> int | None:
        """The slot of a choice, or one that holds most of its text, and no more than that.

        Only choices with the same cache salt get what is held.
        """
        slot = self._slots.get(choice)
        if slot is None:
            free = self._free()
            if not free:
                return None
            salt = choice.request.cache_salt
            same = {i: self._held[i] if self._salts[i] == salt else [] for i in free}
            slot = -max((common_prefix(same[i], text), -i) for i in free)[1]
            self._cut(slot, len(same[slot]))
            self._slots[choice], self._salts[slot] = slot, salt
        self._cut(slot, min(common_prefix(self._held[slot], text), len(text) - 1))
        return slot

    def _free(self) -> list[int]:
        used = set(self._slots.values())
        return [slot for slot in range(self._model.slots) if slot not in used]

    def _make_room(self, tokens: int) -> bool:
        """Forget what no choice needs until there is room for so many; whether there is."""
        left = self._model.tokens - sum(map(len, self._held)) - tokens
        for slot in self._free():
            if left >= 0:
                break
            left += len(self._held[slot])
            self._cut(slot, 0)
        return left >= 0

    def _cut(self, slot: int, tokens: int) -> None:
        if tokens < len(self._held[slot]):
            self._model.cut(slot, tokens)
            del self._held[slot][tokens:]

    def _run(self, tokens: Mapping[ChoiceState[Any], Sequence[int]]) -> list[int]:
        """The likeliest token after those of each choice."""
        chunks = []
        for choice, new in tokens.items():
            slot = self._slots[choice]
            chunks.append(Chunk(slot, len(self._held[slot]), new, 1))
            self._held[slot] += new
        return self._model.next_tokens(chunks)


def _text(choice: ChoiceState[Any]) -> list[int]:
    """Its tokens; the draft model neither sees nor hears what others stand for."""
    text = choice.token_ids
    for span in reversed(choice.request.media):
        text = text[: span.start] + text[span.end :]
    return text
