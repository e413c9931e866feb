"""A decoder in ONNX Runtime, and the keys and values of all that it has in memory."""

from collections.abc import Sequence

import numpy as np
import onnxruntime as ort  # type: ignore[import-untyped]
from numpy.typing import NDArray

from enginebay_onnx.folder import Folder, Json

_TYPES = {"tensor(float)": np.float32, "tensor(float16)": np.float16}


class Model:
    """Runs tokens through the network.

    The memory has `rows` rows of `context_length` tokens each. The network's GroupQueryAttention
    reads and extends it in place: what it writes are the same buffers as what it reads
    (https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md).
    """

    def __init__(self, folder: Folder, rows: int, context_length: int, threads: int | None) -> None:
        """`BackendUnavailableError` for a model that is not made for such a memory."""
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads or 0
        options.log_severity_level = 3
        file = folder.path / folder.decoder["filename"]
        try:
            self._session = ort.InferenceSession(file, options, ["CPUExecutionProvider"])
        except Exception as error:  # ONNX Runtime has no common base of its errors in public
            raise folder.unavailable(f"ONNX Runtime says: {error}") from error
        try:
            self._prepare(folder.decoder, rows, context_length)
            self.run(0, np.zeros((1, 1), np.int64), [0])
        except Exception as error:
            raise folder.unavailable(
                "it is no plain decoder with grouped-query attention as onnxruntime-genai's "
                f"builder writes them for CPUs: {error!r}"
            ) from error

    def _prepare(self, decoder: Json, rows: int, context_length: int) -> None:
        names, made = decoder["inputs"], decoder["outputs"]
        self._presents: dict[str, str] = {
            names[f"past_{kind}_names"] % layer: made[f"present_{kind}_names"] % layer
            for layer in range(decoder["num_hidden_layers"])
            for kind in ("key", "value")
        }
        self._tokens, self._mask = names["input_ids"], names["attention_mask"]
        inputs = {node.name: node for node in self._session.get_inputs()}
        if others := set(inputs) - {self._tokens, self._mask, *self._presents}:
            raise ValueError(f"it has the inputs {sorted(others)}")
        shape = (rows, decoder["num_key_value_heads"], context_length, decoder["head_size"])
        self._cache = {n: np.zeros(shape, _TYPES[inputs[n].type]) for n in self._presents}
        self._logits = made["logits"]
        logits = next(node for node in self._session.get_outputs() if node.name == self._logits)
        self._logits_type = _TYPES[logits.type]
        self.vocab_size: int = logits.shape[-1]

    def run(
        self, row: int, tokens: NDArray[np.int64], starts: Sequence[int]
    ) -> NDArray[np.float32]:
        """Run `tokens` `[rows, n]`, which come to stand at `starts` in the rows from `row` on.

        Several rows only with one token each. The result is logits, `[rows, n, vocabulary]`.
        """
        rows, count = tokens.shape
        ends = np.array(starts)[:, None] + count
        mask = (np.arange(ends.max()) < ends).astype(np.int64)
        binding = self._session.io_binding()
        binding.bind_cpu_input(self._tokens, tokens)
        binding.bind_cpu_input(self._mask, mask)
        for past, present in self._presents.items():
            value = ort.OrtValue.ortvalue_from_numpy(self._cache[past][row : row + rows])
            binding.bind_ortvalue_input(past, value)
            binding.bind_ortvalue_output(present, value)
        logits = np.empty((rows, count, self.vocab_size), self._logits_type)
        binding.bind_ortvalue_output(self._logits, ort.OrtValue.ortvalue_from_numpy(logits))
        self._session.run_with_iobinding(binding)
        return logits.astype(np.float32, copy=False)

    def copy(self, source: int, target: int, tokens: int) -> None:
        """Have the first `tokens` of row `source` in row `target`, too."""
        for cache in self._cache.values():
            cache[target, :, :tokens] = cache[source, :, :tokens]
