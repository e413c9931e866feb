"""Drafts by a draft model: a small, faster one with the vocabulary of the large one."""

from collections.abc import Mapping, Sequence
from operator import ne
from pathlib import Path
from typing import Any

from backends.llamacpp.context import Context, Rows
from backends.llamacpp.files import find_gguf, unavailable
from backends.llamacpp.memory import MAX_DRAFTED, CacheSize, draft_length, draft_options
from backends.llamacpp.model import Model
from backends.llamacpp.options import LlamaCppOptions
from backends.llamacpp.tokenizer import Tokenizer
from enginebay import ChoiceState, Drafter, common_prefix

_DIFFERENT_TOKENS = 16  # reserved ones may have other names


def load_drafter(
    draft: Path,
    served: Path,
    options: LlamaCppOptions,
    tokenizer: Tokenizer,
    context_length: int,
    *,
    gpu: bool,
) -> "ModelDrafter":
    """The draft model at `draft` for the model at `served`, whose options and tokenizer these are.

    A `BackendUnavailableError` for an incompatible one.
    """
    path = find_gguf(draft)
    own = draft_options(options)
    model = Model(path, own, lambda stage, fraction: None, gpu=gpu)
    model.check_generates_text()
    pieces = Tokenizer(model).pieces
    if sum(map(ne, pieces, tokenizer.pieces)) > _DIFFERENT_TOKENS:
        raise unavailable(
            path, f"its vocabulary differs from that of {served.name}; choose another"
        )
    length = draft_length(model.shape, context_length)
    context = Context(model, own, CacheSize.separate(MAX_DRAFTED, length), gpu=gpu)
    if not context.can_cut():
        raise unavailable(path, "a recurrent model cannot be a draft model; choose another")
    shared = min(len(pieces), len(tokenizer.pieces))
    return ModelDrafter(context, shared, options.draft_tokens)


class ModelDrafter(Drafter):
    """Greedy drafts for all choices at once, one token per round.

    It remembers what it has read in a slot for each choice, and reads the rest when asked. On the
    engine thread, as every context of a process: threads of two would wait for each other.
    """

    def __init__(self, context: Context, vocab_size: int, tokens: int) -> None:
        """`context` has `MAX_DRAFTED` slots, and forgets the end of a sequence when asked.

        Both models have the first `vocab_size` tokens.
        """
        self._context = context
        self._vocab_size = vocab_size
        self._tokens = tokens
        self._held: list[list[int]] = [[] for _ in range(MAX_DRAFTED)]

    def draft(
        self, choices: Sequence[ChoiceState[Any]], room: int
    ) -> Mapping[ChoiceState[Any], Sequence[int]]:
        drafts: dict[ChoiceState[Any], list[int]] = {}
        if len(choices) > MAX_DRAFTED:
            return drafts
        texts = {choice: _text(choice) for choice in choices}
        wanted = {}
        for choice in choices:
            left = self._context.tokens_per_sequence - len(texts[choice])
            tokens = min(self._tokens, choice.completion.tokens_left - 1, left, room)
            if tokens > 0:
                wanted[choice] = tokens
                room -= tokens
        if not wanted:
            return drafts
        slots = self._slots({choice: texts[choice] for choice in wanted})
        missing = {
            choice: texts[choice][len(self._held[slot]) :]
            for choice, slot in sorted(slots.items(), key=lambda entry: entry[1])
        }
        missing = {c: new for c, new in missing.items() if max(new) < self._vocab_size}
        while missing:
            rows = self._run(slots, missing)[:, : self._vocab_size]
            for choice, token in zip(missing, rows.argmax(axis=1).tolist(), strict=True):
                drafts.setdefault(choice, []).append(token)
            missing = {c: drafts[c][-1:] for c in missing if len(drafts[c]) < wanted[c]}
        return drafts

    def _slots(self, texts: Mapping[ChoiceState[Any], list[int]]) -> dict[ChoiceState[Any], int]:
        """For each choice the slot that holds most of its text, and no more than that."""
        slots: dict[ChoiceState[Any], int] = {}
        free = set(range(MAX_DRAFTED))
        for choice, text in texts.items():
            kept, slot = max((common_prefix(self._held[i], text), -i) for i in free)
            kept = min(kept, len(text) - 1)
            slots[choice] = -slot
            free.remove(-slot)
            self._context.remove(-slot, kept)
            del self._held[-slot][kept:]
        return slots

    def _run(
        self,
        slots: Mapping[ChoiceState[Any], int],
        tokens: Mapping[ChoiceState[Any], Sequence[int]],
    ) -> Rows:
        """Logits after the tokens of each choice."""
        token_ids: list[int] = []
        positions: list[int] = []
        places: list[int] = []
        outputs: list[bool] = []
        for choice, new in tokens.items():
            held = self._held[slots[choice]]
            token_ids += new
            positions += range(len(held), len(held) + len(new))
            places += [slots[choice]] * len(new)
            outputs += [False] * (len(new) - 1) + [True]
            held += new
        return self._context.run(token_ids, positions, places, outputs)


def _text(choice: ChoiceState[Any]) -> list[int]:
    """Its tokens; the draft model neither sees nor hears what others stand for."""
    text = choice.token_ids
    for span in reversed(choice.request.media):
        text = text[: span.start] + text[span.end :]
    return text
