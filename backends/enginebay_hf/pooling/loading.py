"""From a model folder to an engine that generates nothing."""

import logging
from collections.abc import Callable
from typing import Any

import torch
import transformers
from transformers import AutoModel, AutoModelForCausalLM, AutoModelForSequenceClassification

from enginebay import BackendSettings, PassLimits, PoolingEngine
from enginebay_checkpoint.tokenizer import load_tokenizer
from enginebay_hf.number_format import choose_format, known_costs
from enginebay_hf.options import HFOptions
from enginebay_hf.placement import choose_device
from enginebay_hf.pooling.build import build
from enginebay_hf.pooling.folder import Answers, Classifies, PoolingFolder, Values
from enginebay_hf.pooling.info import pooling_info
from enginebay_hf.pooling.pooler import HFPooler
from enginebay_hf.weights import check_files, load_model, read_config, trust

logger = logging.getLogger(__name__)

_BATCH_TOKENS, _BATCH_TOKENS_GPU = 2048, 16384
_FOR_TEXT = ("adapters", "draft_model", "prompt_lookup", "cache_tokens", "quantize")
_UNUSED = ("pooler.",)


def load_pooling_engine(
    settings: BackendSettings, options: HFOptions, folder: PoolingFolder
) -> PoolingEngine:
    """The engine of one model, on the thread that will run it.

    Every problem with the model is a `BackendUnavailableError`.
    """
    checkpoint = folder.checkpoint
    if for_text := [name for name in _FOR_TEXT if getattr(options, name)]:
        raise checkpoint.unavailable(
            f"{for_text[0]} is for text generation, which this model does not do; remove it"
        )
    check_files(checkpoint)
    config = read_config(checkpoint, options)
    from_pretrained = _from_pretrained(folder, config)
    settings.report_progress("reading tokenizer", 0.0)
    tokenizer = load_tokenizer(checkpoint, **trust(options))
    if folder.said.lower_case:
        tokenizer.lower_case()
    model: Any
    formats = choose_format(
        checkpoint, options, choose_device(checkpoint, options).type, known_costs
    )
    dtype = getattr(torch, formats.others) if formats else None
    model, missing = load_model(
        checkpoint, options, dtype, settings.report_progress, from_pretrained
    )
    if lacking := [name for name in missing if not name.startswith(_UNUSED)]:
        raise checkpoint.unavailable(
            f"its weights lack {len(lacking)} tensors, such as {lacking[0]}; download it again"
        )
    settings.report_progress("checking the model", 0.95)
    model.eval()
    model.config.use_cache = False
    built = build(folder, model, tokenizer)
    pooler = HFPooler(
        built.head,
        model.device,
        pad=max(0, getattr(model.config.get_text_config(), "pad_token_id", None) or 0),
        separator=built.separator,
        adapted=built.adapted,
    )
    info = pooling_info(
        folder,
        options,
        model,
        tokenizer,
        built.labels,
        outputs=_outputs(folder, pooler),
        reranks=built.pairs is not None,
    )
    tokens = _BATCH_TOKENS if model.device.type == "cpu" else _BATCH_TOKENS_GPU
    limits = PassLimits(
        max_texts=options.max_batch_size, batch_tokens=options.batch_tokens or tokens, pads=True
    )
    engine = PoolingEngine(
        pooler, tokenizer, info, limits, pairs=built.pairs, relevance=built.relevance
    )
    if problem := engine.problem():
        engine.close()
        raise checkpoint.unavailable(problem)
    settings.report_progress("ready", 1.0)
    return engine


def _from_pretrained(folder: PoolingFolder, config: Any) -> Callable[..., Any]:
    """That of the class of transformers that has what the head needs."""
    architecture = next(iter(folder.checkpoint.config.get("architectures") or ()), "")
    match folder.purpose:
        case Classifies():
            return AutoModelForSequenceClassification.from_pretrained
        case Answers() | Values():
            return AutoModelForCausalLM.from_pretrained
    if architecture.endswith("EncoderModel"):
        load_encoder: Callable[..., Any] = getattr(transformers, architecture).from_pretrained
        return load_encoder
    if getattr(config, "is_encoder_decoder", False):
        raise folder.checkpoint.unavailable(
            f"{architecture} is an encoder and a decoder, whose embeddings are not supported"
        )
    return AutoModel.from_pretrained


def _outputs(folder: PoolingFolder, pooler: HFPooler) -> int:
    """How many numbers the model has for a text."""
    try:
        return len(pooler.run([[0]])[0])
    except Exception as error:
        raise folder.checkpoint.unavailable(
            f"it cannot run a token: {type(error).__name__}: {error}"
        ) from error
