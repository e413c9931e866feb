"""Draft models for speculative decoding, with the vocabulary of the large model."""

import json
import logging
from operator import ne
from typing import Any

from enginebay_checkpoint.tokenizer import Tokenizer, load_tokenizer
from enginebay_exllamav2.config import library_config
from enginebay_exllamav2.folder import ExLlamaV2Checkpoint
from enginebay_exllamav2.options import ExLlamaV2Options

logger = logging.getLogger(__name__)

_DIFFERENT_TOKENS = 16  # reserved ones may have other names


def draft_options(options: ExLlamaV2Options) -> ExLlamaV2Options:
    """How the draft model of a model with these options is loaded: first, on the same GPUs."""
    return ExLlamaV2Options(
        max_batch_size=options.max_batch_size,
        prefill_tokens=options.prefill_tokens,
        paged=options.paged,
        flash_attention=options.flash_attention,
        cache_type=options.draft_cache_type,
        gpu_split=options.gpu_split,
        autosplit_reserve=options.autosplit_reserve,
        rope_alpha=options.draft_rope_alpha,
    )


def draft_config(
    checkpoint: ExLlamaV2Checkpoint,
    options: ExLlamaV2Options,
    served: ExLlamaV2Checkpoint,
    config: Any,
    tokenizer: Tokenizer,
) -> Any:
    """The `ExLlamaV2Config` of the draft model in the folder `checkpoint`.

    `config` and `tokenizer` are those of the model `served`. `BackendUnavailableError` for an
    incompatible draft model.
    """
    checkpoint.check()
    own = library_config(checkpoint, options)
    theirs, ours = _pieces(load_tokenizer(checkpoint, local_files_only=True)), _pieces(tokenizer)
    differ = abs(len(theirs) - len(ours)) + sum(map(ne, theirs, ours))
    if differ > _DIFFERENT_TOKENS or own.vocab_size > padded_vocabulary(config.vocab_size):
        raise checkpoint.unavailable(
            f"its vocabulary differs from that of {served.path.name}, so it cannot be its draft "
            "model; choose one of the same family"
        )
    if own.rope.context_length < config.rope.context_length:
        logger.info(
            "%s: trained for %d tokens; drafts beyond that are less accurate",
            checkpoint.path,
            own.rope.context_length,
        )
    own.max_seq_len = max(own.max_seq_len, config.max_seq_len)
    return own


def padded_vocabulary(tokens: int) -> int:
    """How many rows the library gives a model's embeddings."""
    return -(-tokens // 32) * 32


def _pieces(tokenizer: Tokenizer) -> list[str]:
    """The tokens as `tokenizer.json` writes them, by id."""
    content = json.loads(tokenizer.tokenizer_json or "{}")
    listed = content.get("model", {}).get("vocab", {})
    ids = listed if isinstance(listed, dict) else {entry[0]: i for i, entry in enumerate(listed)}
    pieces: dict[int, str] = {token_id: piece for piece, token_id in ids.items()}
    pieces.update((token["id"], token["content"]) for token in content.get("added_tokens", []))
    return [pieces.get(index, "") for index in range(max(pieces, default=-1) + 1)]
