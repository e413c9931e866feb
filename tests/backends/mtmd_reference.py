"""What a model says to pictures and sounds through mtmd's own helper, one prompt at a time."""

import ctypes
import io
import wave
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from enginebay import Media, decode_picture, decode_sound
from enginebay_llamacpp.cache import CacheSize
from enginebay_llamacpp.context import Context
from enginebay_llamacpp.library import llama, mtmd
from enginebay_llamacpp.model import Model
from enginebay_llamacpp.options import LlamaCppOptions
from enginebay_llamacpp.projector import Projector, _bitmap

CONTEXT = 2048
EXACT: dict[str, Any] = {
    "cache_type_k": "f32",
    "cache_type_v": "f32",
    "flash_attention": "off",
}
"""So that nothing is rounded, and sums differ in their order only."""


def picture(seed: int, width: int = 96, height: int = 64, **options: int) -> Media:
    pixels = np.random.default_rng(seed).integers(0, 255, (height, width, 3))
    buffer = io.BytesIO()
    Image.fromarray(pixels.astype(np.uint8)).save(buffer, "PNG")
    return Media(kind="image", data=buffer.getvalue(), type="image/png", options=options)


def sound(seed: int, seconds: float = 1.0) -> Media:
    tone = np.random.default_rng(seed).uniform(0.01, 0.3)
    samples = np.sin(np.arange(int(16000 * seconds)) * tone) * 20000
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16000)
        file.writeframes(samples.astype("<i2").tobytes())
    return Media(kind="audio", data=buffer.getvalue(), type="audio/wav")


class Reference:
    """A model and its mmproj, with a context of one sequence."""

    def __init__(self, path: Path, mmproj: Path) -> None:
        options = LlamaCppOptions(threads=1, **EXACT)
        self._model = Model(path, options, lambda stage, fraction: None, gpu=False)
        size = CacheSize.separate(1, CONTEXT)
        self._context = Context(self._model, options, size, gpu=False, at_once=1024)
        self._projector = Projector(self._model, mmproj, options, lambda *_: None, gpu=False)

    def answer(self, pieces: Sequence[str | Media], tokens: int) -> tuple[list[int], list[float]]:
        """Greedy tokens and their logprobs."""
        self._context.clear()
        position = self._read(pieces)
        pointer = llama.llama_get_logits_ith(self._context._pointer, -1)
        logits = np.ctypeslib.as_array(pointer, (self._model.vocab_size,)).copy()
        answer: list[int] = []
        logprobs: list[float] = []
        for place in range(tokens):
            answer.append(int(logits.argmax()))
            logprobs.append(_logprob(logits, answer[-1]))
            logits = self._context.run([answer[-1]], [position + place], [0], [True])[0].copy()
        return answer, logprobs

    def _read(self, pieces: Sequence[str | Media]) -> int:
        """Run a prompt; returns the position behind it."""
        parts = [self._part(piece) for piece in pieces]
        pointers = (ctypes.POINTER(mtmd.mtmd_input_part) * len(parts))(*map(ctypes.pointer, parts))
        chunks = mtmd.mtmd_input_chunks_init()
        projector, end = self._projector._pointer, ctypes.c_int32()
        assert not mtmd.mtmd_tokenize_from_parts(projector, chunks, pointers, len(parts), True)
        assert not mtmd.mtmd_helper_eval_chunks(
            projector, self._context._pointer, chunks, 0, 0, 512, True, ctypes.byref(end)
        )
        mtmd.mtmd_input_chunks_free(chunks)
        return end.value

    def _part(self, piece: str | Media) -> Any:
        if isinstance(piece, str):
            text = piece.encode()
            read = mtmd.mtmd_input_text(text, len(text), False, True)
            return mtmd.mtmd_input_part(text=ctypes.pointer(read))
        if piece.kind == "image":
            return mtmd.mtmd_input_part(bitmap=_bitmap(np.asarray(decode_picture(piece))))
        return mtmd.mtmd_input_part(bitmap=_bitmap(decode_sound(piece, self._projector.rate)))


def _logprob(logits: NDArray[np.float32], token: int) -> float:
    high = float(logits.max())
    return float(logits[token]) - high - float(np.log(np.exp(logits - high).sum()))
