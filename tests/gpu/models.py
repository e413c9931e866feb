"""The demo model in every form that engines load, made of the checkout's in a few seconds."""

from dataclasses import dataclass
from pathlib import Path

from tests.gpu.targets import Target
from tests.support import DEMO_MODEL


@dataclass(frozen=True, slots=True)
class Models:
    """The demo model for each engine.

    `gptq` is a 4-bit copy, `dequantized` the same weights in float32. `peft` and `gguf_adapter` are
    one LoRA adapter, `merged` the model with it.
    """

    folder: Path
    gguf: Path
    gptq: Path
    dequantized: Path
    peft: Path
    gguf_adapter: Path
    merged: Path

    def of(self, target: Target) -> Path:
        """What a target loads."""
        path: Path = getattr(self, target.model)
        return path

    def reference(self, target: Target) -> Path:
        """What transformers loads to compare with."""
        return self.dequantized if target.model == "gptq" else self.folder


def make_models(made: Path) -> Models:
    """Write all but the first, which the checkout has, to the folder `made`."""
    from benchmarks.gpu import gptq
    from demo import to_gguf
    from tests.gpu.adapters import make_adapter

    models = Models(
        DEMO_MODEL,
        *(made / name for name in ("demo.gguf", "gptq", "dequantized")),
        *(made / name for name in ("peft", "adapter.gguf", "merged")),
    )
    to_gguf.convert(DEMO_MODEL, models.gguf, "f16")
    gptq.convert(DEMO_MODEL, models.gptq, models.dequantized)
    make_adapter(models.peft, models.gguf_adapter, models.merged)
    return models
