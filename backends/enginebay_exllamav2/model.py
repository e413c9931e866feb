"""A loaded model: weights, cache, the library's tokenizer, draft model, adapters."""

import gc
import logging
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from enginebay import ReportProgress
from enginebay_checkpoint.tokenizer import Tokenizer
from enginebay_exllamav2.adapters import Adapters, configured_adapters
from enginebay_exllamav2.attention import choose_attention
from enginebay_exllamav2.config import STEP_TOKENS, library_config
from enginebay_exllamav2.draft import draft_config, draft_options
from enginebay_exllamav2.folder import ExLlamaV2Checkpoint
from enginebay_exllamav2.library import exllamav2, generator
from enginebay_exllamav2.memory import (
    adapter_bytes,
    cache_bytes_per_token,
    cache_tokens,
    weight_bytes,
)
from enginebay_exllamav2.options import ExLlamaV2Options
from enginebay_exllamav2.vision.pictures import Pictures
from enginebay_exllamav2.vision.tower import Tower, load_tower, seeing_family, tower_bytes
from enginebay_exllamav2.weights import check_gpus, free_memory, load_weights

logger = logging.getLogger(__name__)


class _Generator(generator.ExLlamaV2DynamicGenerator):  # type: ignore[misc]
    """The library's, which fails on prompt lookup in a text that is shorter than its n-grams."""

    def iterate_ngram_gen(self, results: list[Any]) -> Any:
        """The draft tokens `[jobs, num_draft_tokens]`; None for a pass without any."""
        ready = [job.sequences[0] for job in self.active_jobs if job.is_prefill_done()]
        if any(len(sequence.sequence_ids) < self.max_ngram - 1 for sequence in ready):
            return None
        drafts = super().iterate_ngram_gen(results)
        if drafts is None:
            return None
        # Tokens of pictures, from a billion up, are none that a model says.
        return drafts.masked_fill(drafts >= self.model.config.vocab_size, 0)


@dataclass(kw_only=True)
class LoadedModel:
    """What a generator needs, on the engine thread, which loaded it.

    The types of the library are its own: `model` is an `ExLlamaV2`, `cache` one of its caches with
    room for `cache_tokens` (whole pages), `tokenizer` its `ExLlamaV2Tokenizer`. `paged`: whether
    requests share the cache, else one runs at a time, and `max_batch_size` is 1. `prefill_tokens`
    are those of a pass. `draft_tokens` are drafted per step (0: none) by the draft model or,
    without one, from the text. `pictures`: what the model sees with, None for text only.
    """

    model: Any
    cache: Any
    tokenizer: Any
    adapters: Adapters
    paged: bool
    context_length: int
    cache_tokens: int
    max_batch_size: int
    prefill_tokens: int
    draft_model: Any = None
    draft_cache: Any = None
    draft_tokens: int = 0
    pictures: Pictures | None = None

    @property
    def vocab_size(self) -> int:
        """Tokens that the model knows; the library's logits are padded to a multiple of 32."""
        size: int = self.model.config.vocab_size
        return size

    def new_generator(self) -> Any:
        """An `ExLlamaV2DynamicGenerator` with an empty page table, in place of any before."""
        return _Generator(
            model=self.model,
            cache=self.cache,
            tokenizer=self.tokenizer,
            max_batch_size=self.max_batch_size,
            max_chunk_size=self.prefill_tokens,
            max_q_size=STEP_TOKENS,
            draft_model=self.draft_model,
            draft_cache=self.draft_cache,
            num_draft_tokens=self.draft_tokens,
            use_ngram_draft=bool(self.draft_tokens and self.draft_model is None),
            paged=self.paged,
        )

    def close(self) -> None:
        """Free the memory of the GPUs; called once, last, on the thread that loaded."""
        for model in (self.draft_model, self.model):
            if model is not None:
                model.unload()
        if self.pictures is not None:
            self.pictures.close()
        self.pictures = None
        self.model = self.cache = self.tokenizer = self.draft_model = self.draft_cache = None
        del self.adapters
        free_unused()


def free_unused() -> None:
    """Return unused memory to the GPUs."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def load_model(
    checkpoint: ExLlamaV2Checkpoint,
    options: ExLlamaV2Options,
    folder: Path,
    tokenizer: Tokenizer,
    report_progress: ReportProgress,
) -> LoadedModel:
    """The model with its cache, draft model and adapters; relative paths start at `folder`.

    A `BackendUnavailableError` says what cannot be loaded; nothing stays in memory.
    """
    config = library_config(checkpoint, options)
    choose_attention(checkpoint, options, config)
    check_gpus(checkpoint, options, config)
    weights = weight_bytes(checkpoint) + adapter_bytes(options, folder)
    token_bytes = cache_bytes_per_token(config, options.cache_type)
    draft: tuple[ExLlamaV2Checkpoint, ExLlamaV2Options, Any] | None = None
    if options.draft_model:
        draft_folder = ExLlamaV2Checkpoint(folder / Path(options.draft_model).expanduser())
        own = draft_options(options)
        draft = draft_folder, own, draft_config(draft_folder, own, checkpoint, config, tokenizer)
        weights += weight_bytes(draft_folder)
        token_bytes += cache_bytes_per_token(draft[2], own.cache_type)
    family = seeing_family(checkpoint, options, config, tokenizer)
    if family:
        weights += tower_bytes(config)
    free = free_memory(options)
    tokens = cache_tokens(
        checkpoint, options, config, weights=weights, token_bytes=token_bytes, free=free
    )
    with ExitStack() as failed:
        failed.callback(free_unused)
        draft_model, draft_cache = None, None
        if draft:
            draft_model, draft_cache = load_weights(*draft, tokens, report_progress)
            failed.callback(draft_model.unload)
        tower: Tower | None = None
        if family:
            tower = load_tower(checkpoint, config, family)
            failed.callback(tower.close)
        model, cache = load_weights(checkpoint, options, config, tokens, report_progress)
        failed.callback(model.unload)
        theirs = exllamav2.ExLlamaV2Tokenizer(config)
        kept = options.media_cache_mb << 20
        loaded = LoadedModel(
            model=model,
            cache=cache,
            tokenizer=theirs,
            pictures=Pictures(tower, model, theirs, kept) if tower else None,
            adapters=configured_adapters(
                model, options.adapters, folder, tensor_parallel=options.tensor_parallel
            ),
            paged=options.paged,
            context_length=min(config.rope.context_length, tokens - options.guessed_tokens),
            cache_tokens=tokens,
            max_batch_size=options.max_batch_size if options.paged else 1,
            prefill_tokens=options.prefill_tokens,
            draft_model=draft_model,
            draft_cache=draft_cache,
            draft_tokens=options.guessed_tokens,
        )
        failed.pop_all()
    _log(checkpoint, options, loaded, token_bytes)
    return loaded


def _log(
    checkpoint: ExLlamaV2Checkpoint,
    options: ExLlamaV2Options,
    loaded: LoadedModel,
    token_bytes: float,
) -> None:
    wanted = loaded.model.config.rope.context_length
    if loaded.context_length < wanted:
        logger.warning(
            "%s: context reduced from %d tokens to the %d that fit the cache",
            checkpoint.path,
            wanted,
            loaded.context_length,
        )
    logger.info(
        "%s: KV cache of %d tokens (%s), about %.2f GiB; contexts of %d tokens; %s",
        checkpoint.path,
        loaded.cache_tokens,
        options.cache_type,
        loaded.cache_tokens * token_bytes / 2**30,
        loaded.context_length,
        f"{loaded.max_batch_size} decoded together" if loaded.paged else "one after another",
    )
