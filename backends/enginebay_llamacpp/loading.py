"""From a GGUF file to an engine, or to an error that says what to do."""

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from llama_cpp import __version__ as bindings_version

from enginebay import (
    BackendSettings,
    BatchLimits,
    Drafter,
    GrammarCompiler,
    PoolingEngine,
    PromptLookup,
    fingerprint,
    open_kv_store,
)
from enginebay_llamacpp.adapters import configured_adapters
from enginebay_llamacpp.cache import CachePlan, cache_plan
from enginebay_llamacpp.context import POSITION_OPTIONS
from enginebay_llamacpp.draft import load_drafter
from enginebay_llamacpp.embedding import EmbeddingContext
from enginebay_llamacpp.engine import LlamaCppEngine
from enginebay_llamacpp.files import find_gguf, parts_of, unavailable
from enginebay_llamacpp.growing import GrowingCache
from enginebay_llamacpp.info import model_info
from enginebay_llamacpp.library import llama
from enginebay_llamacpp.media_loading import load_projector
from enginebay_llamacpp.memory import DRAFT_TOKENS
from enginebay_llamacpp.model import Model
from enginebay_llamacpp.options import LlamaCppOptions
from enginebay_llamacpp.pairs import PairTokenizer
from enginebay_llamacpp.pooling_engines import pooling_engine
from enginebay_llamacpp.runner import LlamaRunner
from enginebay_llamacpp.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

_PREFILL_TOKENS, _PREFILL_TOKENS_GPU = 256, 512
_FOR_TEXT = ("adapters", "draft_model", "prompt_lookup", "mmproj")
_OF_STATE = {
    "cache_type_k",
    "cache_type_v",
    "flash_attention",
    "swa_full",
    "override_kv",
    "rope_scaling",
    *POSITION_OPTIONS,
}
"""Options that change what is in the KV cache, or how it lies there."""

_NUMA = {
    "disabled": llama.GGML_NUMA_STRATEGY_DISABLED,
    "distribute": llama.GGML_NUMA_STRATEGY_DISTRIBUTE,
    "isolate": llama.GGML_NUMA_STRATEGY_ISOLATE,
    "numactl": llama.GGML_NUMA_STRATEGY_NUMACTL,
}


def load_engine(settings: BackendSettings) -> LlamaCppEngine | PoolingEngine:
    """The engine of one model, on the thread that will run it.

    Every problem with the model is a `BackendUnavailableError`.
    """
    options = LlamaCppOptions.of(settings.options)
    path = find_gguf(Path(settings.path))
    gpu = bool(options.gpu_layers) and llama.llama_supports_gpu_offload()
    _check_gpu(path, options, gpu=gpu)
    if options.numa != "disabled":
        llama.llama_numa_init(_NUMA[options.numa])
    model = Model(path, options, settings.report_progress, gpu=gpu)
    model.check_supported()
    settings.report_progress("allocating the KV cache", 0.9)
    tokenizer = Tokenizer(model)
    engine = (
        _pooling_engine(settings.name, model, tokenizer, options, gpu=gpu)
        if _pools(model, options)
        else _text_engine(settings, model, tokenizer, options, gpu=gpu)
    )
    settings.report_progress("ready", 1.0)
    return engine


def _pools(model: Model, options: LlamaCppOptions) -> bool:
    if options.embeddings is not None:
        return options.embeddings
    return bool(options.pooling or model.pooling or not model.shape.causal)


def _pooling_engine(
    name: str, model: Model, tokenizer: Tokenizer, options: LlamaCppOptions, *, gpu: bool
) -> PoolingEngine:
    if meant_for_text := [key for key in _FOR_TEXT if getattr(options, key)]:
        raise unavailable(
            model.path,
            f"{meant_for_text[0]} is for text generation, which this model does not do; "
            "remove it, or set embeddings: false",
        )
    pooling = options.pooling or model.pooling or "mean"
    if pooling == "rank":
        model.check_reranks()
    pairs = PairTokenizer(model, tokenizer) if pooling == "rank" else None
    context = EmbeddingContext(model, options, pooling, gpu=gpu)
    most = 0 if pairs else context.vector_size
    if options.matryoshka and (pairs or max(options.shorter_embeddings or (0,)) > most):
        context.close()
        raise unavailable(model.path, f"matryoshka does not fit embeddings of {most} numbers")
    logger.info(
        "%s: %d dimensions, pooling %s; up to %d tokens per text, %d texts per batch",
        name,
        context.vector_size,
        pooling,
        context.context_length,
        options.max_batch_size,
    )
    info = model_info(model, tokenizer, context.context_length, ())
    engine = pooling_engine(context, tokenizer, info, options, pairs)
    if problem := engine.problem():
        engine.close()
        raise unavailable(model.path, problem)
    return engine


def _text_engine(
    settings: BackendSettings,
    model: Model,
    tokenizer: Tokenizer,
    options: LlamaCppOptions,
    *,
    gpu: bool,
) -> LlamaCppEngine:
    model.check_generates_text()
    if options.matryoshka:
        raise unavailable(
            model.path,
            "matryoshka is for embeddings, but this model generates text; remove it, or set "
            "embeddings: true",
        )
    adapters = configured_adapters(model, options.adapters, Path(settings.base))
    loaded = load_projector(settings, model, options, gpu=gpu)
    if loaded:
        settings.report_progress("allocating the KV cache", 0.94)
    plan = cache_plan(model.shape, options, model.layout, model.free_memory(options), gpu=gpu)
    _log(settings.name, options, model, plan)
    at_once = loaded.at_once if loaded else 0
    cache = GrowingCache(model, options, plan, gpu=gpu, at_once=at_once)
    context = cache.context
    if not context.has_memory:
        raise unavailable(
            model.path, "it does not generate text; set embeddings: true to use it for embeddings"
        )
    settings.report_progress("checking the model", 0.95)
    keeps_all = options.swa_full or not llama.llama_model_n_swa(model.pointer)
    media = loaded.store(tokenizer, options, context) if loaded else None
    runner = LlamaRunner(model, cache, tokenizer, adapters, media, keeps_all=keeps_all)
    info = replace(
        model_info(model, tokenizer, plan.context_length, adapters.names),
        limits=f"concurrent completions: {options.max_batch_size} (max_batch_size)",
    )
    default_prefill = _PREFILL_TOKENS_GPU if gpu else _PREFILL_TOKENS
    return LlamaCppEngine(
        runner,
        tokenizer,
        loaded.add_to(info, tokenizer) if loaded else info,
        BatchLimits(
            max_batch_size=options.max_batch_size,
            batch_tokens=context.batch_tokens,
            prefill_tokens=options.prefill_tokens
            or (context.batch_tokens if options.prefill_slowdown else default_prefill),
            prefill_slowdown=options.prefill_slowdown,
            deterministic=options.deterministic,
            draft_tokens=DRAFT_TOKENS,
        ),
        _drafter(settings, model.path, options, tokenizer, runner, plan.context_length, gpu=gpu),
        _grammar_compiler(settings.name, tokenizer),
        adapters,
        media,
        open_kv_store(
            settings,
            runner.state_layout,
            cuts=runner.memory.cuts,
            kind=_kind_of_state(model, options, plan),
        ),
    )


def _kind_of_state(model: Model, options: LlamaCppOptions, plan: CachePlan) -> Mapping[str, Any]:
    """What a saved sequence depends on."""
    return {
        "range of context lengths": model.shape.length_range(plan.largest().each),
        "model file": fingerprint(parts_of(model.path)),
        "version of llama-cpp-python": bindings_version,
        **options.model_dump(include=_OF_STATE, mode="json"),
    }


def _grammar_compiler(name: str, tokenizer: Tokenizer) -> GrammarCompiler | None:
    try:
        return GrammarCompiler(tokenizer.vocabulary)
    except ValueError as error:
        logger.warning("%s: structured output is not available: %s", name, error)
        return None


def _drafter(
    settings: BackendSettings,
    path: Path,
    options: LlamaCppOptions,
    tokenizer: Tokenizer,
    runner: LlamaRunner,
    context_length: int,
    *,
    gpu: bool,
) -> Drafter | None:
    if not options.guessed_tokens:
        return None
    if not runner.memory.cuts:
        logger.warning(
            "%s: speculative decoding disabled: this model's cache cannot be rolled back", path
        )
        return None
    if options.draft_model is None:
        return PromptLookup(options.prompt_lookup)
    draft = Path(settings.base) / Path(options.draft_model).expanduser()
    return load_drafter(draft, path, options, tokenizer, context_length, gpu=gpu)


def _check_gpu(path: Path, options: LlamaCppOptions, *, gpu: bool) -> None:
    if options.gpu_layers not in ("auto", 0) and not gpu:
        raise unavailable(
            path,
            f"gpu_layers is {options.gpu_layers}, but this llama-cpp-python was built for the CPU "
            "only; build it for your GPU (docs/guides/llamacpp.md) or set gpu_layers: auto",
        )


def _log(name: str, options: LlamaCppOptions, model: Model, plan: CachePlan) -> None:
    layout = model.layout
    if layout.gpu_layers:
        logger.info(
            "%s: %d of %d layers on the GPU (gpu_layers: %s), about %.2f GiB; %.2f GiB in RAM",
            name,
            layout.gpu_layers,
            model.shape.layers + 1,
            options.gpu_layers,
            layout.gpu / 2**30,
            layout.ram / 2**30,
        )
    logger.info("%s: %s", name, plan.describe())
