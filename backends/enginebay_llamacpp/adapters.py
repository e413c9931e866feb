"""LoRA adapters: files whose weights are added to a model's while it runs some sequences."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from enginebay import Lora, lora_fingerprint
from enginebay_llamacpp.files import find_gguf, unavailable
from enginebay_llamacpp.library import llama, logged_errors
from enginebay_llamacpp.model import Model
from enginebay_llamacpp.options import AdapterOptions


class LoadedLora(NamedTuple):
    """The weights of a file in memory, freed with its model at the latest."""

    pointer: Any
    scale: float


class Context(Protocol):
    """What adapters are applied to."""

    def set_loras(self, loras: Sequence[LoadedLora]) -> None: ...


class Adapters:
    """The adapters of one model, on its engine thread; each is the sum of some LoRAs."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._loaded: dict[str, list[LoadedLora]] = {}
        self._fingerprints: dict[str, str] = {}
        self._applied: tuple[str, Context] | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The adapters that are loaded, oldest first."""
        return tuple(self._loaded)

    def load(self, name: str, loras: Sequence[Lora]) -> None:
        """Add the sum of these GGUF files as `name`, which is new.

        `BackendUnavailableError`, and no change, if one cannot be read or does not fit the model.
        """
        loaded: list[LoadedLora] = []
        try:
            for lora in loras:
                loaded.append(self._read(name, lora))
        except Exception:
            _free(loaded)
            raise
        self._loaded[name] = loaded
        self._fingerprints[name] = lora_fingerprint(loras)

    def unload(self, name: str) -> None:
        """Free an adapter; an unknown one is not an error."""
        if self._applied and self._applied[0] == name:
            self.apply(None, self._applied[1])
        _free(self._loaded.pop(name, ()))
        self._fingerprints.pop(name, None)

    def fingerprint(self, name: str) -> str | None:
        """What tells the adapter's weights from all others; None if it is not loaded any more."""
        return self._fingerprints.get(name)

    def apply(self, name: str | None, context: Context) -> None:
        """Add the weights of this adapter, or of none, to the model's from now on."""
        applied = self._applied and self._applied[0]
        if name != applied:
            context.set_loras(self._loaded[name] if name else ())
            self._applied = (name, context) if name else None

    def _read(self, name: str, lora: Lora) -> LoadedLora:
        path = find_gguf(Path(lora.path))
        with logged_errors() as errors:
            pointer = llama.llama_adapter_lora_init(self._model.pointer, str(path).encode())
        if not pointer:
            raise unavailable(
                path,
                f"llama.cpp cannot use it as LoRA adapter {name} of {self._model.path.name}: "
                f"{'; '.join(errors) or 'no reason given'}; it must be made for this model",
            )
        return LoadedLora(pointer, lora.scaling)


def configured_adapters(
    model: Model, options: Mapping[str, AdapterOptions | str], folder: Path
) -> Adapters:
    """The adapters of the options, whose relative paths start at `folder`."""
    adapters = Adapters(model)
    for name, wanted in options.items():
        if isinstance(wanted, str):
            wanted = AdapterOptions(path=wanted)
        adapters.load(name, [Lora(str(folder / Path(wanted.path).expanduser()), wanted.scale)])
    return adapters


def _free(loras: Sequence[LoadedLora]) -> None:
    for lora in loras:
        llama.llama_adapter_lora_free(lora.pointer)
