"""A choice as the library's generator runs it."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from itertools import pairwise
from typing import Any

import torch

from backends.batching.runner import Sampled
from backends.exllamav2.choice import LibraryChoice
from backends.exllamav2.library import generator as library
from backends.exllamav2.pages import PAGE, Pages
from enginebay import Delta, ServingError

logger = logging.getLogger(__name__)

# Room left beside the prompt when a job starts, so that it need not give way at once.
_HEADROOM = 16

Emit = Callable[[LibraryChoice, Delta | ServingError], None]
"""Takes what a choice gained, or what ended its request; on the engine thread."""


class Job(library.ExLlamaV2DynamicJob):  # type: ignore[misc]
    """The generator computes logits and keeps the cache; the choice says which token comes next.

    So the library has no stop conditions, no sampler settings and no limit of tokens from us, and
    what it reports of the job is not looked at. It does take back the tokens of banned strings.

    Pages are reserved for the prompt and little more; others come as they are needed.
    """

    banned_strings_utf32_offsets: Any

    def __init__(
        self,
        choice: LibraryChoice,
        pages: Pages,
        emit: Emit,
        *,
        vocab_size: int,
        usable: int,
        banned_strings: Sequence[str],
    ) -> None:
        """`usable`: how many tokens of the vocabulary the tokenizer knows."""
        token_ids = choice.sequence
        super().__init__(
            input_ids=torch.tensor([token_ids], dtype=torch.long),
            max_new_tokens=sys.maxsize,
            filters=[choice.filter] if choice.filter else [],
            banned_strings=list(banned_strings),
        )
        self.choice = choice
        self._key = choice.cache_key
        self._salt = pages.salt(self._key)
        self._pages = pages
        self._emit = emit
        self._vocab_size = vocab_size
        self._usable = usable
        self._known = len(token_ids) - choice.said
        self._next = Sampled(0)
        self._forced = False
        self._failure: ServingError | None = None
        self._banned = self.banned_strings_utf32_offsets
        self._cached_pages = 0

    @property
    def pages_needed(self) -> int:
        """Pages that nobody uses now and the job must have to start."""
        return int(self.current_new_pages_required())

    def grow(self) -> bool:
        """Have room for what the next pass may add; False if there is none."""
        if not self.generator.paged:
            return True
        [sequence] = self.sequences
        # The pass writes a token and its drafts; the library then looks up the page behind them.
        tokens = len(sequence.sequence_ids) + self.generator.num_draft_tokens + 1
        return self._pages.extend(sequence, tokens, self._key)

    # What the library calls.

    def prepare_for_queue(self, generator: Any, serial_number: int) -> None:
        """Find out which pages the job begins with."""
        reserved = _HEADROOM + generator.num_draft_tokens
        # Without pages there is one, which is the whole cache.
        [sequence] = self.sequences
        left = generator.max_total_tokens - len(sequence.sequence_ids)
        self.max_new_tokens = min(reserved, left) if generator.paged else 0
        super().prepare_for_queue(generator, serial_number)
        self.max_new_tokens = sys.maxsize
        if self._salt is not None:
            hashes = self._pages.hashes(
                sequence.sequence_ids.torch(), len(sequence.page_hashes), self._salt
            )
            sequence.page_hashes = self.all_unique_hashes = hashes

    def allocate_pages(self) -> None:
        """Take the pages, with what is known in them already."""
        super().allocate_pages()
        [sequence] = self.sequences
        self._pages.own(sequence.allocated_pages, self._key)
        # More may be found filled later on: by a sibling that runs the same prompt.
        self._cached_pages = self.cached_pages

    def prefill(self, results: list[Any]) -> None:
        """Run a chunk of the prompt."""
        if not self.generator.paged:
            super().prefill(results)
        elif not self.is_prefill_done():
            with self._pages.hidden_from(self._key):
                super().prefill(results)

    def receive_logits(self, logits: torch.Tensor) -> tuple[torch.Tensor, None, None, None, bool]:
        """Choose the next token; on any thread, so nothing may be raised here."""
        try:
            row = logits[0, 0, : self._vocab_size].numpy()
            checkpoint: Any = self.checkpoint
            again = checkpoint is not None and checkpoint["offset"] == 0
            banned = checkpoint["explored_tokens"] if again else []
            self._next, self._forced = self.choice.next_token(row, self._usable, banned)
        except ServingError as error:
            self._failure = error
        except Exception as error:
            logger.exception("choosing a token of %s failed", self.choice.request.request_id)
            self._failure = ServingError(
                f"choosing a token failed on this request: {type(error).__name__}: {error}"
            )
        return torch.tensor([[self._next.token_id]]), None, None, None, False

    def receive_sample(
        self,
        logits: torch.Tensor | None,
        next_token: torch.Tensor,
        next_k_tokens: None,
        next_k_probs: None,
        next_prob: None,
        filter_eos: bool | None,
        results: list[Any],
        first_sample_in_sd_batch: bool = True,
    ) -> tuple[bool, torch.Tensor]:
        """Take the chosen token; whether the choice has ended by it."""
        if self._failure is None:
            try:
                self._append(logits, next_token, results, first_sample_in_sd_batch)
            except ServingError as error:
                self._failure = error
        if self._failure is not None:
            self._emit(self.choice, self._failure)
            return True, next_token
        return self.choice.finished, next_token

    def _append(
        self, logits: torch.Tensor | None, token: torch.Tensor, results: list[Any], first: bool
    ) -> None:
        if self.choice.cached is None:
            cached = self._cached_pages * self.generator.page_size + self.cached_tokens
            self.choice.cached = min(cached, len(self.choice.request.prompt_token_ids))
        # What must come is not taken back.
        self.banned_strings_utf32_offsets = None if self._forced else self._banned
        with self._first_page_salted():
            super().receive_sample(logits, token, None, None, None, False, results, first)
        if self._forced:
            self.checkpoint = None
        [sequence] = self.sequences
        self.choice.hold(self._next)
        self.choice.take_back(len(sequence.sequence_ids) - self._known - self.choice.said)
        if self._banned is not None:
            self._repair_checkpoint()
        ends = self.choice.completion.ends_with(self._next.token_id, held=len(self.choice.held))
        if self.checkpoint is None or (self.choice.held and ends):
            for delta in self.choice.release():
                self._emit(self.choice, delta)

    def _first_page_salted(self) -> Any:
        [sequence] = self.sequences
        completes = self.generator.paged and sequence.kv_position + 1 == PAGE
        if not completes or self._salt is None:
            return nullcontext()
        # All tokens of the page are there, as the newest one has not been run.
        token_ids = sequence.sequence_ids.torch()[:, :PAGE]
        return self._pages.salted(sequence.allocated_pages, token_ids, self._salt)

    def _repair_checkpoint(self) -> None:
        """Where the library loses track.

        What it held before a checkpoint is out after a rewind, and it may rewind to there again.
        A page that fills up while text is held gets no hash, and the next one no predecessor, by
        which it would be taken for the first page of a sequence.
        """
        if self.checkpoint is not None and self.checkpoint["offset"] == 0:
            self.checkpoint["held_text"] = self.held_text
            self.checkpoint["held_tokens"] = self.held_tokens.clone()
        [sequence] = self.sequences
        if not self.generator.paged:
            return
        for before, page in pairwise(sequence.allocated_pages):
            if page.kv_position and page.prev_hash is None:
                page.prev_hash = before.phash
