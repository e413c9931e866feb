"""A draft model: a small, faster one with the vocabulary of the large one."""

from collections.abc import Sequence
from operator import ne
from pathlib import Path

from enginebay import Chunk, DraftModel, ModelDrafter
from enginebay_llamacpp.cache import draft_size
from enginebay_llamacpp.context import Context
from enginebay_llamacpp.files import find_gguf, unavailable
from enginebay_llamacpp.memory import draft_options
from enginebay_llamacpp.model import Model
from enginebay_llamacpp.options import LlamaCppOptions
from enginebay_llamacpp.tokenizer import Tokenizer

_DIFFERENT_TOKENS = 16  # reserved ones may have other names


def load_drafter(
    draft: Path,
    served: Path,
    options: LlamaCppOptions,
    tokenizer: Tokenizer,
    context_length: int,
    *,
    gpu: bool,
) -> ModelDrafter:
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
    size, length = draft_size(model.shape, options, context_length)
    context = Context(model, own, size, gpu=gpu)
    if not context.can_cut():
        raise unavailable(path, "a recurrent model cannot be a draft model; choose another")
    shared = min(len(pieces), len(tokenizer.pieces))
    return ModelDrafter(_Drafts(context, length, shared), options.draft_tokens)


class _Drafts(DraftModel):
    """On the engine thread, as every context of a process: threads of two would get in the way."""

    def __init__(self, context: Context, length: int, vocab_size: int) -> None:
        self._context = context
        self.slots = context.size.slots
        self.length = min(length, context.tokens_per_sequence)
        self.tokens = context.tokens
        self.vocab_size = vocab_size
        self.batch_tokens = context.batch_tokens

    def next_tokens(self, chunks: Sequence[Chunk]) -> list[int]:
        token_ids: list[int] = []
        positions: list[int] = []
        places: list[int] = []
        outputs: list[bool] = []
        for chunk in chunks:
            count = len(chunk.token_ids)
            token_ids += chunk.token_ids
            positions += range(chunk.start, chunk.start + count)
            places += [chunk.slot] * count
            outputs += [False] * (count - 1) + [True]
        rows = self._context.run(token_ids, positions, places, outputs)
        best: list[int] = rows[:, : self.vocab_size].argmax(axis=1).tolist()
        return best

    def cut(self, slot: int, tokens: int) -> None:
        self._context.remove(slot, tokens)
