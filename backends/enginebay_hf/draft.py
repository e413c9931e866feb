"""A draft model: a small, faster one with the vocabulary of the large one."""

from collections.abc import Sequence

from enginebay import Chunk, DraftModel
from enginebay_checkpoint.folder import Checkpoint
from enginebay_checkpoint.tokenizer import Tokenizer, load_tokenizer
from enginebay_hf.options import HFOptions
from enginebay_hf.sampling_runner import SamplingRunner
from enginebay_hf.weights import trust

_DIFFERENT_TOKENS = 16  # reserved ones may have other names


def check_vocabulary(draft: Checkpoint, tokenizer: Tokenizer, options: HFOptions) -> int:
    """How many token ids both have; a `BackendUnavailableError` if they mean something else."""
    own, served = load_tokenizer(draft, **trust(options)).tokens, tokenizer.tokens
    shared = min(max(own), max(served)) + 1
    different = sum(own.get(i) != served.get(i) for i in range(shared))
    if different > _DIFFERENT_TOKENS:
        raise draft.unavailable(
            f"{different} tokens of its vocabulary differ from those of the model that it is to "
            "draft for; choose another"
        )
    return shared


class Drafts(DraftModel):
    """A draft model in the same passes as any model."""

    def __init__(
        self, draft: Checkpoint, runner: SamplingRunner, length: int, vocab_size: int, batch: int
    ) -> None:
        if not (runner.memory.cuts and runner.memory.chunks):
            raise draft.unavailable(
                "its cache cannot be rolled back, so it cannot be a draft model; choose another"
            )
        self._runner = runner
        self.slots = runner.memory.slots
        self.length = length
        self.tokens = runner.memory.tokens
        self.vocab_size = vocab_size
        self.batch_tokens = batch

    def next_tokens(self, chunks: Sequence[Chunk]) -> list[int]:
        logits = self._runner.run(chunks)
        best: list[int] = logits[:, : self.vocab_size].argmax(dim=1).tolist()
        return best

    def cut(self, slot: int, tokens: int) -> None:
        self._runner.cut(slot, tokens)
