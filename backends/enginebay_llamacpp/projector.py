"""The mmproj file beside a model: pictures and sounds to rows that stand for tokens (mtmd)."""

import ctypes
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from enginebay import Modality, ReportProgress
from enginebay_llamacpp.cpu import physical_cores
from enginebay_llamacpp.files import unavailable
from enginebay_llamacpp.library import LoadProgress, llama, logged_errors, mtmd
from enginebay_llamacpp.model import Model
from enginebay_llamacpp.options import LlamaCppOptions

Pixels = NDArray[np.uint8]
"""`[height, width, 3]`."""

Samples = NDArray[np.float32]
"""Mono, at the projector's rate."""

Rows = NDArray[np.float32]
"""`[tokens, size]`: what the model takes in place of the embeddings of tokens."""


@dataclass(frozen=True, slots=True, eq=False)
class Tile:
    """A stretch of placeholders: a picture or a part of one, at most 30 s of sound.

    It takes `positions` in the sequence, with M-RoPE fewer than `tokens`. `causal`: its tokens see
    only those before them. `shares_position`: llama.cpp files all of them under the first one's.
    """

    tokens: int
    positions: int
    causal: bool
    shares_position: bool
    chunk: Any = field(repr=False)
    owner: object = field(repr=False)


class Projector:
    """Only `encode` is bound to one thread."""

    def __init__(
        self,
        model: Model,
        path: Path,
        options: LlamaCppOptions,
        report_progress: ReportProgress,
        *,
        gpu: bool,
    ) -> None:
        """A `BackendUnavailableError` for a file that cannot be read or is another model's."""
        if mtmd is None:
            raise unavailable(
                path,
                "this llama-cpp-python was compiled without pictures and sound; compile it with "
                '`CMAKE_ARGS="-DLLAVA_BUILD=ON"`, or set `mmproj: false` for text only',
            )
        self.path = path
        loading = LoadProgress(
            report_progress, "loading the mmproj file", path.stat().st_size, 0.9, 0.93
        )
        params = mtmd.mtmd_context_params_default()
        params.use_gpu = gpu
        params.n_threads = options.threads_batch or options.threads or physical_cores()
        params.print_timings = False
        params.progress_callback = callback = mtmd.mtmd_progress_callback(loading)
        with logged_errors() as errors:
            pointer = mtmd.mtmd_init_from_file(str(path).encode(), model.pointer, params)
        del callback
        if loading.error:
            raise loading.error
        if not pointer:
            reason = "; ".join("\n".join(errors).splitlines())
            raise unavailable(
                path,
                f"llama.cpp cannot use it as mmproj of {model.path.name}: "
                f"{reason or 'no reason given'}; name the file that was made for this "
                "model as `mmproj`, or set `mmproj: false` for text only",
            )
        self._pointer = pointer
        self._model = model  # whose vocabulary and weights it uses
        weakref.finalize(self, mtmd.mtmd_free, pointer).atexit = False
        self.sees: bool = mtmd.mtmd_support_vision(pointer)
        self.hears: bool = mtmd.mtmd_support_audio(pointer)
        self.rate: int = mtmd.mtmd_get_audio_sample_rate(pointer)
        self.sections: int = 4 if mtmd.mtmd_decode_use_mrope(pointer) else 1
        self._size: int = llama.llama_model_n_embd_inp(model.pointer)

    def examples(self) -> dict[Modality, list[list[int] | Tile]]:
        """A grey picture and a second of silence, as far as the model takes them."""
        made: dict[Modality, list[list[int] | Tile]] = {}
        try:
            if self.sees:
                made["image"] = self.split(np.full((256, 256, 3), 128, np.uint8))
            if self.hears:
                made["audio"] = self.split(np.zeros(self.rate, np.float32))
        except ValueError as error:
            raise unavailable(self.path, f"it cannot read anything: {error}") from error
        return made

    def check(self, pieces: Sequence[list[int] | Tile]) -> None:
        """Encode an item, and raise a `BackendUnavailableError` if that gives no rows.

        A file whose graph makes something else than it says ends the process.
        """
        try:
            whole = all(np.isfinite(self.encode(tile)).all() for tile in tiles(pieces))
        except RuntimeError as error:
            raise unavailable(self.path, f"llama.cpp cannot run it: {error}") from error
        if not whole:
            raise unavailable(self.path, "its rows are no numbers; it may be damaged")

    def split(self, item: Pixels | Samples) -> list[list[int] | Tile]:
        """The tiles of a picture or sound, and the tokens that the model wants around them.

        `ValueError` for what the model cannot read. Sound has at least 10 ms, a picture pixels.
        """
        bitmap = _bitmap(item)
        try:
            part = mtmd.mtmd_input_part(bitmap=bitmap)
            parts = (ctypes.POINTER(mtmd.mtmd_input_part) * 1)(ctypes.pointer(part))
            chunks = _Chunks()
            with logged_errors() as errors:
                code = mtmd.mtmd_tokenize_from_parts(self._pointer, chunks.pointer, parts, 1, False)
        finally:
            mtmd.mtmd_bitmap_free(bitmap)
        if code:
            raise ValueError("; ".join(errors) or f"mtmd_tokenize_from_parts returned {code}")
        count = mtmd.mtmd_input_chunks_size(chunks.pointer)
        return [
            self._piece(mtmd.mtmd_input_chunks_get(chunks.pointer, i), chunks) for i in range(count)
        ]

    def _piece(self, chunk: Any, owner: object) -> list[int] | Tile:
        kind = mtmd.mtmd_input_chunk_get_type(chunk)
        if kind == mtmd.MTMD_INPUT_CHUNK_TYPE_TEXT:
            count = ctypes.c_size_t()
            tokens = mtmd.mtmd_input_chunk_get_tokens_text(chunk, ctypes.byref(count))
            return list(tokens[: count.value])
        picture = kind == mtmd.MTMD_INPUT_CHUNK_TYPE_IMAGE
        return Tile(
            tokens=mtmd.mtmd_input_chunk_get_n_tokens(chunk),
            positions=mtmd.mtmd_input_chunk_get_n_pos(chunk),
            causal=not mtmd.mtmd_decode_use_non_causal(self._pointer, chunk),
            shares_position=picture and self.sections > 1,
            chunk=chunk,
            owner=owner,
        )

    def encode(self, tile: Tile) -> Rows:
        """The rows of a tile, on the engine thread; `RuntimeError` if the library fails."""
        with logged_errors() as errors:
            code = mtmd.mtmd_encode_chunk(self._pointer, tile.chunk)
        if code:
            raise RuntimeError(f"mtmd_encode_chunk returned {code}: {'; '.join(errors)}")
        rows = mtmd.mtmd_get_output_embd(self._pointer)
        return np.ctypeslib.as_array(rows, (tile.tokens, self._size)).copy()

    def positions(self, tile: Tile, start: int) -> NDArray[np.int32]:
        """Of each token from position `start` on, `[sections, tokens]`.

        The sections of M-RoPE are time, row, column and one that is unused (Qwen2-VL, 2024).
        """
        line = np.arange(start, start + tile.tokens, dtype=np.int32)
        if not tile.shares_position:
            return np.tile(line, (self.sections, 1))
        places = (mtmd.mtmd_decoder_pos * tile.tokens)()
        image = mtmd.mtmd_input_chunk_get_tokens_image(tile.chunk)
        mtmd.mtmd_helper_image_get_decoder_pos(image, start, places)
        grid = np.frombuffer(places, np.uint32).reshape(-1, 4).astype(np.int32)
        time, column, row, unused = grid.T
        return np.stack([time, row, column, unused])


def without_content(tile: Tile) -> Tile:
    """The same tile, which cannot be encoded but has its positions; takes little memory."""
    chunk = mtmd.mtmd_input_chunk_get_placeholder(tile.chunk)
    return Tile(
        tokens=tile.tokens,
        positions=tile.positions,
        causal=tile.causal,
        shares_position=tile.shares_position,
        chunk=chunk,
        owner=_Chunk(chunk),
    )


class _Chunks:
    """What mtmd makes of an item, freed when nothing refers to it any more."""

    def __init__(self) -> None:
        self.pointer = mtmd.mtmd_input_chunks_init()
        weakref.finalize(self, mtmd.mtmd_input_chunks_free, self.pointer).atexit = False


class _Chunk:
    """A copy of one of them."""

    def __init__(self, pointer: Any) -> None:
        weakref.finalize(self, mtmd.mtmd_input_chunk_free, pointer).atexit = False


def _bitmap(item: Pixels | Samples) -> Any:
    """mtmd's own copy of it, to be freed."""
    if item.ndim == 3:
        pixels = np.ascontiguousarray(item, np.uint8)
        bytes_of_it = pixels.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
        return mtmd.mtmd_bitmap_init(pixels.shape[1], pixels.shape[0], bytes_of_it)
    samples = np.ascontiguousarray(item, np.float32)
    floats = samples.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
    return mtmd.mtmd_bitmap_init_from_audio(samples.size, floats)


def tiles(pieces: Sequence[list[int] | Tile]) -> list[Tile]:
    """Those among the pieces of an item."""
    return [piece for piece in pieces if isinstance(piece, Tile)]
