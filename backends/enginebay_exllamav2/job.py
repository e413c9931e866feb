"""A choice as the library's generator runs it."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from enginebay import Delta, Sampled, ServingError
from enginebay_exllamav2.choice import LibraryChoice
from enginebay_exllamav2.library import generator as library
from enginebay_exllamav2.pages import PAGE, Pages

logger = logging.getLogger(__name__)

# Room left beside the prompt when a job starts, so that it need not give way at once.
_HEADROOM = 16

Emit = Callable[[LibraryChoice, Delta | ServingError], None]
"""Receives a choice's new output, or what ended its request; on the engine thread."""


class Job(library.ExLlamaV2DynamicJob):  # type: ignore[misc]
    """The generator computes logits and keeps the cache; the choice says which token comes next.

    So the library has no stop conditions, no sampler settings and no limit of tokens from us, and
    what it reports of the job is not looked at. It does take back the tokens of banned strings.

    Pages are reserved for the prompt and little more; others come as they are needed.
    """

    banned_strings_utf32_offsets: Any
    held_text: str

    def __init__(
        self,
        choice: LibraryChoice,
        pages: Pages,
        emit: Emit,
        *,
        vocab_size: int,
        usable: int,
        banned_strings: Sequence[str],
        row_id: int | None,
    ) -> None:
        """`usable`: how many tokens of the vocabulary the tokenizer knows.

        `row_id`: the token that stands for pictures in prompts and is never generated.
        """
        token_ids = choice.sequence
        super().__init__(
            input_ids=torch.tensor([token_ids], dtype=torch.long),
            max_new_tokens=sys.maxsize,
            filters=[choice.filter] if choice.filter else [],
            banned_strings=list(banned_strings),
            embeddings=list({id(each): each for _, each in choice.embeddings}.values()),
        )
        self.choice = choice
        self._key = choice.cache_key
        self._salt = pages.salt(self._key)
        self._pages = pages
        self._emit = emit
        self._vocab_size = vocab_size
        self._usable = usable
        self._row_id = row_id
        self._known = len(token_ids) - choice.said
        self._next = Sampled(0)
        self._forced = False
        self._failure: ServingError | None = None
        self._banned = self.banned_strings_utf32_offsets
        self._cached_pages = 0
        self._shared_pages = 0

    @property
    def pages_needed(self) -> int:
        """Free pages that the job needs to start."""
        return int(self.current_new_pages_required())

    def grow(self) -> bool:
        """Make room for what the next pass may add; False if there is none."""
        if not self.generator.paged:
            return True
        [sequence] = self.sequences
        # The pass writes a token and its drafts; the library then looks up the page after them.
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
        self._shared_pages = len(sequence.page_hashes)

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
            if self._row_id is not None:
                row[self._row_id] = -np.inf
            checkpoint: Any = self.checkpoint
            banned = checkpoint["explored_tokens"] if self._offset == 0 else []
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
        # Forced tokens are not rolled back, nor what the prompt already has.
        stays = self._forced or (self.choice.healing is not None and not self.choice.said)
        self.banned_strings_utf32_offsets = None if stays else self._banned
        self._forget_broken_character()
        [sequence] = self.sequences
        tokens, offset = len(sequence.sequence_ids), self._offset
        with self._pages.apart(sequence) if self.generator.paged else nullcontext():
            super().receive_sample(logits, token, None, None, None, False, results, first)
        if stays:
            self.checkpoint = None
        elif offset is not None and offset == self._offset and len(sequence.sequence_ids) > tokens:
            self._count_incomplete_character()
        self.choice.hold(self._next)
        self.choice.take_back(len(sequence.sequence_ids) - self._known - self.choice.said)
        if self._banned is not None:
            self._repair_checkpoint()
        if self.generator.paged and self.checkpoint is None:
            while (self._shared_pages + 1) * PAGE <= sequence.kv_position:
                self._pages.share(sequence, self._shared_pages, self._salt)
                self._shared_pages += 1
        ends = self.choice.completion.ends_with(self._next.token_id, held=len(self.choice.held))
        if self.checkpoint is None or (self.choice.held and ends):
            for delta in self.choice.release():
                self._emit(self.choice, delta)

    @property
    def _offset(self) -> int | None:
        """How many tokens are held; None where none may be rolled back."""
        checkpoint: Any = self.checkpoint
        return None if checkpoint is None else checkpoint["offset"]

    def _forget_broken_character(self) -> None:
        """The library looks for nothing in text with a character that is never completed."""
        pieces = self.generator.tokenizer.get_id_to_piece_list()
        if "\ufffd" in self.held_text and not pieces[self._next.token_id].startswith("\ufffd"):
            self.held_text = ""

    def _count_incomplete_character(self) -> None:
        """Where the library holds a token for its character, it leaves it out of the checkpoint."""
        checkpoint: Any = self.checkpoint
        checkpoint["offset"] += 1
        if checkpoint["offset"] == 1:
            checkpoint["explored_tokens"].append(self._next.token_id)

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
