"""LoRA adapters: files whose weights are added to a model's while it runs some sequences."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from backends.llamacpp.files import find_gguf, unavailable
from backends.llamacpp.library import llama, logged_errors
from backends.llamacpp.model import Model
from backends.llamacpp.options import AdapterOptions


class Adapter(NamedTuple):
    """An adapter in memory, freed with its model."""

    pointer: Any
    scale: float


def load_adapters(
    model: Model, options: Mapping[str, AdapterOptions | str], folder: Path
) -> dict[str, Adapter]:
    """All adapters by name; relative paths start at `folder`.

    A `BackendUnavailableError` for one that does not fit the model.
    """
    adapters = {}
    for name, wanted in options.items():
        if isinstance(wanted, str):
            wanted = AdapterOptions(path=wanted)
        path = find_gguf(folder / Path(wanted.path).expanduser())
        with logged_errors() as errors:
            pointer = llama.llama_adapter_lora_init(model.pointer, str(path).encode())
        if not pointer:
            raise unavailable(
                path,
                f"llama.cpp cannot use it as LoRA adapter {name} of {model.path.name}: "
                f"{'; '.join(errors) or 'no reason given'}; it must be made for this model",
            )
        adapters[name] = Adapter(pointer, wanted.scale)
    return adapters
