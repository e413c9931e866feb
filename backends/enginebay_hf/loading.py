"""From a model folder to an engine, or to an error that says what to do."""

import logging
from dataclasses import replace
from pathlib import Path

import torch
import transformers
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_MULTIMODAL_LM_MAPPING,
    AutoModelForCausalLM,
    AutoModelForMultimodalLM,
    PretrainedConfig,
    PreTrainedModel,
)

from enginebay import (
    BackendSettings,
    BatchLimits,
    Drafter,
    Lora,
    ModelDrafter,
    PoolingEngine,
    PromptLookup,
    ReportProgress,
    RunnerMemory,
    fingerprint,
    open_kv_store,
)
from enginebay_checkpoint.defaults import eos_token_ids
from enginebay_checkpoint.folder import Checkpoint
from enginebay_checkpoint.tokenizer import Tokenizer, load_tokenizer
from enginebay_checkpoint.vocabulary import grammar_compiler
from enginebay_hf import placement
from enginebay_hf.choose import choose_runner
from enginebay_hf.draft import Drafts, check_vocabulary
from enginebay_hf.engine import HFEngine
from enginebay_hf.info import model_info
from enginebay_hf.lora import Adapters
from enginebay_hf.media.loading import load_media
from enginebay_hf.media.runner import MediaRunner
from enginebay_hf.number_format import NumberFormat, choose_format
from enginebay_hf.options import HFOptions
from enginebay_hf.packed.decoder import is_known
from enginebay_hf.packed.fused import fuse
from enginebay_hf.packed.int8 import quantize
from enginebay_hf.packed.narrow import narrow, widen_for_many
from enginebay_hf.packed.prepack import prepack
from enginebay_hf.packed.products import cpu_costs
from enginebay_hf.pooling.folder import pooling_folder
from enginebay_hf.pooling.loading import load_pooling_engine
from enginebay_hf.sampling_runner import Vocabulary
from enginebay_hf.sizing import context_length as model_length
from enginebay_hf.sizing import draft_options
from enginebay_hf.weights import check_files, load_model, read_config, trust

logger = logging.getLogger(__name__)

# On a CPU a pass of 1,024 tokens takes a quarter longer than four of 256 (AMX and AVX-512 alike).
_BATCH_TOKENS, _BATCH_TOKENS_GPU = 256, 2048
_PREFILL_TOKENS = 256

_PROBE_TEXT = "The quick brown fox jumps over the lazy dog, and then it sleeps until noon. "


def load_engine(settings: BackendSettings) -> HFEngine | PoolingEngine:
    """The engine of one model, on the thread that will run it.

    Every problem with the model is a `BackendUnavailableError`.
    """
    options = HFOptions.of(settings.options)
    path, base = Path(settings.path), Path(settings.base)
    if options.threads:
        torch.set_num_threads(options.threads)
    if folder := pooling_folder(path, base, options):
        return load_pooling_engine(settings, options, folder)
    checkpoint = Checkpoint(path)
    check_files(checkpoint)
    config = _check_architecture(checkpoint, options)
    settings.report_progress("reading tokenizer", 0.0)
    tokenizer = load_tokenizer(checkpoint, **trust(options))
    formats = _formats(checkpoint, options)
    model = _load_model(checkpoint, config, options, formats, settings.report_progress)
    settings.report_progress("checking the model", 0.95)
    text_config = model.config.get_text_config(decoder=True)
    ends = eos_token_ids(
        (getattr(model, "generation_config", None), model.config, text_config), tokenizer
    )
    if options.fuse_projections and is_known(model):
        fuse(model)
    if options.quantize:
        _quantize(model, checkpoint)
    _arrange(model, formats, options)
    adapters = _load_adapters(model, options, base)
    info = model_info(checkpoint, options, text_config, tokenizer)
    media = load_media(checkpoint, options, model, tokenizer)
    token_ids = tokenizer.encode(_PROBE_TEXT * 8, add_special_tokens=True)
    runner = choose_runner(
        model,
        checkpoint,
        options,
        Vocabulary(tokenizer.token_bytes, info.vocab_size, ends),
        token_ids,
        context_length=info.context_length,
        adapters=adapters,
        media=media,
    )
    together = min(options.max_batch_size, runner.memory.slots)
    info = replace(media.told(info) if media else info, limits=_limits(together, runner, formats))
    engine = HFEngine(
        runner,
        tokenizer,
        info,
        BatchLimits(
            max_batch_size=together,
            batch_tokens=(batch := _batch_tokens(options, model)),
            prefill_tokens=options.prefill_tokens
            or (batch if options.prefill_slowdown else _PREFILL_TOKENS),
            prefill_slowdown=options.prefill_slowdown,
            deterministic=options.deterministic,
        ),
        eos_token_ids=ends,
        drafter=_drafter(options, base, tokenizer, runner.memory, info.context_length),
        compiler=grammar_compiler(tokenizer, info.vocab_size, ends),
        adapters=adapters,
        media_tokenizer=media.tokenizer() if media and media.kinds else None,
        kv_store=open_kv_store(
            settings,
            runner.state_layout,
            cuts=runner.memory.cuts,
            kind={
                "model folder": fingerprint(_model_files(path)),
                "version of transformers": transformers.__version__,
                "version of torch": torch.__version__,
                "device": model.device.type,
                "quantize": options.quantize,
            },
        ),
    )
    settings.report_progress("ready", 1.0)
    return engine


def _limits(together: int, runner: MediaRunner, formats: NumberFormat | None) -> str:
    found = [
        f"concurrent completions: {together} (max_batch_size)",
        f"KV cache: {runner.memory.tokens} tokens (cache_tokens)",
    ]
    if formats:
        narrow = f"{formats.weights}, computed in {formats.others}"
        found.append(f"weights: {narrow if formats.is_narrow else formats.weights}")
    return "; ".join(found)


def _model_files(folder: Path) -> list[Path]:
    """The files that the keys and values of a text depend on."""
    ends = ("config.json", ".safetensors", ".bin", ".pt", ".py")
    return [file for file in folder.iterdir() if file.is_file() and file.name.endswith(ends)]


def _check_architecture(checkpoint: Checkpoint, options: HFOptions) -> PretrainedConfig:
    config = read_config(checkpoint, options)
    own_code = checkpoint.config.get("auto_map", {})
    kinds = {type(config), type(config.get_text_config(decoder=True))}
    known = any(kind in MODEL_FOR_CAUSAL_LM_MAPPING for kind in kinds) or (
        type(config) in MODEL_FOR_MULTIMODAL_LM_MAPPING
    )
    if getattr(config, "is_encoder_decoder", False) or not (
        known or "AutoModelForCausalLM" in own_code
    ):
        raise checkpoint.unavailable(
            f"{checkpoint.architecture} is not a causal language model; choose a model made for "
            "text generation"
        )
    return config


def _formats(checkpoint: Checkpoint, options: HFOptions) -> NumberFormat | None:
    device = placement.choose_device(checkpoint, options)
    return choose_format(checkpoint, options, device.type, cpu_costs)


def _load_model(
    checkpoint: Checkpoint,
    config: PretrainedConfig,
    options: HFOptions,
    formats: NumberFormat | None,
    report_progress: ReportProgress,
) -> PreTrainedModel:
    sees = type(config) in MODEL_FOR_MULTIMODAL_LM_MAPPING
    text_only = any(name.endswith("ForCausalLM") for name in config.architectures or ())
    auto = AutoModelForMultimodalLM if sees and not text_only else AutoModelForCausalLM
    dtype = getattr(torch, formats.weights) if formats else None
    model, missing = load_model(checkpoint, options, dtype, report_progress, auto.from_pretrained)
    if missing:
        raise checkpoint.unavailable(
            f"its weights lack {len(missing)} tensors of a language model, such as {missing[0]}; "
            "download it again, or choose a model made for text generation"
        )
    return model


def _drafter(
    options: HFOptions,
    base: Path,
    tokenizer: Tokenizer,
    memory: RunnerMemory,
    context_length: int,
) -> Drafter | None:
    if not (options.draft_model or options.prompt_lookup):
        return None
    if not memory.cuts:
        logger.warning("speculative decoding disabled: this model's cache cannot be rolled back")
        return None
    if options.draft_model is None:
        return PromptLookup(options.prompt_lookup)
    path = base / Path(options.draft_model).expanduser()
    return ModelDrafter(
        _draft_model(path, options, tokenizer, context_length), options.draft_tokens
    )


def _draft_model(
    path: Path, options: HFOptions, tokenizer: Tokenizer, context_length: int
) -> Drafts:
    """The draft model in a folder; a `BackendUnavailableError` for an incompatible one."""
    draft = Checkpoint(path)
    check_files(draft)
    config = _check_architecture(draft, options)
    vocab_size = check_vocabulary(draft, tokenizer, options)
    length = model_length(draft, HFOptions(), config.get_text_config(decoder=True))
    own = draft_options(options, length, context_length)
    formats = _formats(draft, own)
    model = _load_model(draft, config, own, formats, lambda stage, fraction: None)
    _arrange(model, formats, own)
    runner = choose_runner(
        model,
        draft,
        own,
        Vocabulary(tokenizer.token_bytes, vocab_size),
        tokenizer.encode(_PROBE_TEXT * 8, add_special_tokens=True),
        context_length=own.context_length or length,
        adapters=None,
    )
    batch = _batch_tokens(own, model)
    return Drafts(draft, runner, own.context_length or length, vocab_size, batch)


def _batch_tokens(options: HFOptions, model: PreTrainedModel) -> int:
    default = _BATCH_TOKENS if model.device.type == "cpu" else _BATCH_TOKENS_GPU
    return options.batch_tokens or default


def _quantize(model: PreTrainedModel, checkpoint: Checkpoint) -> None:
    try:
        count = quantize(model)
    except ValueError as error:
        raise checkpoint.unavailable(
            f"quantize: int8 does not work: {error}. Remove the option quantize"
        ) from error
    logger.debug("%d layers multiply in 8 bits", count)


def _arrange(model: PreTrainedModel, formats: NumberFormat | None, options: HFOptions) -> None:
    """Store the weights once, the way that this processor multiplies them fastest."""
    if formats and formats.is_narrow:
        logger.debug("%d layers are stored in 16 bits", narrow(model))
    elif options.prepack and model.device.type == "cpu":
        if layers := prepack(model):
            logger.debug("%d layers are prepacked for this processor", layers)
            # The other weights would keep all pages of the file in memory.
            for tensor in (*model.parameters(), *model.buffers()):
                tensor.data = tensor.data.clone()
        elif model.dtype != torch.float32:
            logger.debug("%d layers are widened for many rows", widen_for_many(model))


def _load_adapters(model: PreTrainedModel, options: HFOptions, folder: Path) -> Adapters:
    """The adapters of the options, whose relative paths start at `folder`."""
    adapters = Adapters(model)
    for name, path in options.adapters.items():
        adapters.load(name, [Lora(str(folder / Path(path).expanduser()))])
    return adapters
