"""An engine made of a folder."""

import logging
from typing import TYPE_CHECKING

from enginebay import (
    BatchingEngine,
    BatchLimits,
    GrammarCompiler,
    ModelInfo,
    NumpyRunner,
    ReportProgress,
    Rows,
    RowSampler,
    Vocabulary,
)
from enginebay_onnx.folder import Folder
from enginebay_onnx.model import Model
from enginebay_onnx.runner import OnnxRunner

if TYPE_CHECKING:
    from enginebay_onnx import Options

_CONTEXT = 8192  # if not asked: the memory of a model made for 131072 tokens has to be paid for
_CHUNK = 256  # tokens of prompts in one step: as long as running streams have to wait

logger = logging.getLogger(__name__)


def load_engine(
    path: str, options: "Options", report_progress: ReportProgress
) -> BatchingEngine[Rows, RowSampler]:
    """`BackendUnavailableError` for a folder that cannot be served."""
    folder = Folder(path)
    length = options.context_length or min(folder.context_length, _CONTEXT)
    if length > folder.context_length:
        raise folder.unavailable(
            f"context_length {length} is more than the {folder.context_length} tokens the model "
            "was made for"
        )
    report_progress("reading the model", 0.1)
    rows = options.max_batch_size + 1  # one more, to remember a prompt while all others run
    model = Model(folder, rows, length, options.threads)
    report_progress("preparing grammars", 0.8)
    compiler = _grammar_compiler(folder, model.vocab_size)
    templates = folder.chat_templates
    info = ModelInfo(
        context_length=length,
        vocab_size=model.vocab_size,
        chat_template=templates.pop("default", None),
        chat_templates=templates,
        special_tokens=folder.special_tokens,
        defaults=folder.defaults,
        unsupported=NumpyRunner.unsupported,
    )
    return BatchingEngine(
        OnnxRunner(model, folder, rows, length),
        folder,
        info,
        BatchLimits(max_batch_size=options.max_batch_size, batch_tokens=_CHUNK),
        eos_token_ids=folder.end_token_ids,
        compiler=compiler,
    )


def _grammar_compiler(folder: Folder, vocab_size: int) -> GrammarCompiler | None:
    try:
        vocabulary = Vocabulary.from_tokenizer_json(
            folder.tokenizer.to_str(),
            vocab_size=vocab_size,
            end_token_ids=folder.end_token_ids,
            special_token_ids=folder.special_token_ids,
        )
        return GrammarCompiler(vocabulary)
    except ValueError as error:
        logger.warning("answers cannot be held to schemas with this tokenizer: %s", error)
        return None
