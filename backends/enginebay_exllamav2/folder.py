"""A model's folder as exllamav2 reads it."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from enginebay_checkpoint.folder import Checkpoint
from enginebay_checkpoint.quantization import config_quant_method

Weights = Literal["exl2", "gptq", "plain"]


@dataclass(frozen=True)
class ExLlamaV2Checkpoint(Checkpoint):
    """A transformers folder whose safetensors may have any names, as those of EXL2 have.

    exllamav2 reads every `*.safetensors` there is. An index, if any, lists the files of the model
    before it was quantized, so an EXL2 folder's is not looked at.
    """

    def check(self) -> None:
        super().check()
        if not (self.path / "tokenizer.json").is_file():
            raise self.unavailable(
                "the folder has no tokenizer.json, which exllamav2 needs; copy it from the model's "
                "source, or make it: AutoTokenizer.from_pretrained(PATH).save_pretrained(PATH)"
            )
        if any(file.suffix != ".safetensors" for file in self.weight_files):
            raise self.unavailable(
                "its weights are not safetensors, which exllamav2 needs; download those, or "
                "use the backend hf"
            )
        _ = self.weights

    @cached_property
    def weight_files(self) -> list[Path]:
        named = [] if self._method == "exl2" else super().weight_files
        return named or sorted(self.path.glob("*.safetensors"))

    @property
    def weights(self) -> Weights:
        """How the weights are stored; an error for what exllamav2 does not read."""
        quantization = self.quantization
        if self._method == "exl2":
            return "exl2"
        if not quantization:
            return "plain"
        if self._method != "gptq":
            hf = "" if self._method == "exl3" else ", or use the backend hf"
            raise self.unavailable(
                f"its weights are quantized by {self._method or 'an unnamed method'}, and "
                "exllamav2 reads EXL2, 4-bit GPTQ and plain float16 or bfloat16; download it in "
                f"one of these{hf}"
            )
        if (bits := quantization.get("bits")) != 4:
            raise self.unavailable(
                f"its GPTQ weights have {bits} bits, and exllamav2 reads 4; use the backend hf"
            )
        return "gptq"

    @property
    def quantization(self) -> dict[str, Any]:
        """`quantization_config`, empty if there is none."""
        config = self.config.get("quantization_config")
        return config if isinstance(config, dict) else {}

    @property
    def _method(self) -> str | None:
        return config_quant_method(self.config)
