"""The demo model in llama.cpp, with pictures through mtmd: what the evaluation compares."""

import ctypes
from pathlib import Path

import llama_cpp
import numpy as np
from llama_cpp import mtmd_cpp as mtmd
from PIL import Image

from demo.sights import IMAGE

_CONTEXT_LENGTH = 1024
_QUIET = llama_cpp.llama_log_callback(lambda level, text, data: None)


class SeeingLlama:
    """A GGUF file and its mmproj, on one thread of the CPU."""

    def __init__(self, file: Path, mmproj: Path) -> None:
        mtmd.mtmd_log_set(_QUIET, None)
        mtmd.mtmd_helper_log_set(_QUIET, None)
        self._llama = llama_cpp.Llama(
            str(file), n_ctx=_CONTEXT_LENGTH, n_gpu_layers=0, n_threads=1, verbose=False
        )
        params = mtmd.mtmd_context_params_default()
        params.use_gpu, params.n_threads, params.print_timings = False, 1, False
        self._mtmd = mtmd.mtmd_init_from_file(str(mmproj).encode(), self._llama.model, params)
        if not self._mtmd:
            raise ValueError(f"llama.cpp cannot load {mmproj}")

    def answer(self, prompt: str, image: Image.Image, most: int = 64) -> str:
        """The greedy answer to a rendered prompt with one `<image>` in it."""
        context = self._llama.ctx
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(context), True)
        self._read(prompt, image)
        ends = {self._llama.token_eos(), self._llama.token_bos()}
        made: list[int] = []
        while len(made) < most:
            logits = np.ctypeslib.as_array(
                llama_cpp.llama_get_logits_ith(context, -1), (self._llama.n_vocab(),)
            )
            if (token := int(logits.argmax())) in ends:
                break
            made.append(token)
            batch = llama_cpp.llama_batch_get_one((ctypes.c_int32 * 1)(token), 1)
            if llama_cpp.llama_decode(context, batch):
                raise RuntimeError("llama_decode failed")
        return self._llama.detokenize(made).decode()

    def _read(self, prompt: str, image: Image.Image) -> None:
        pixels = np.ascontiguousarray(image.convert("RGB"))
        pointer = pixels.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
        bitmap = mtmd.mtmd_bitmap_init(image.width, image.height, pointer)
        chunks = mtmd.mtmd_input_chunks_init()
        try:
            text = prompt.encode().replace(IMAGE.encode(), mtmd.mtmd_default_marker())
            given = mtmd.mtmd_input_text(text, len(text), False, True)
            bitmaps = (mtmd.mtmd_bitmap_p_ctypes * 1)(bitmap)
            if mtmd.mtmd_tokenize(self._mtmd, chunks, ctypes.byref(given), bitmaps, 1):
                raise RuntimeError("mtmd_tokenize failed")
            past = ctypes.c_int32(0)
            if mtmd.mtmd_helper_eval_chunks(
                self._mtmd, self._llama.ctx, chunks, 0, 0, 512, True, ctypes.byref(past)
            ):
                raise RuntimeError("mtmd_helper_eval_chunks failed")
        finally:
            mtmd.mtmd_input_chunks_free(chunks)
            mtmd.mtmd_bitmap_free(bitmap)
