"""LoRA adapters from PEFT folders, checked before the library reads them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from enginebay import Lora
from enginebay_checkpoint.adapter import AdapterFolder
from enginebay_exllamav2.library import exllamav2
from enginebay_exllamav2.options import AdapterOptions

# The library scales all of an adapter alike, and takes its matrices as PEFT stores them.
_UNSUPPORTED = ("alpha_pattern", "rank_pattern", "fan_in_fan_out")


class Adapters:
    """The adapters of one model, on its engine thread; each is the sum of some LoRAs."""

    def __init__(self, model: Any, *, tensor_parallel: bool = False) -> None:
        self._model = model
        self._tensor_parallel = tensor_parallel
        self._loaded: dict[str, list[Any]] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """The adapters that are loaded, oldest first."""
        return tuple(self._loaded)

    def __getitem__(self, name: str) -> list[Any]:
        """The `ExLlamaV2Lora`s of an adapter, as a generator applies them."""
        return self._loaded[name]

    def load(self, name: str, loras: Sequence[Lora]) -> None:
        """Add the sum of these PEFT folders as `name`, which is new.

        `BackendUnavailableError`, and no change, if one cannot be read or does not fit the model.
        """
        loaded: list[Any] = []
        try:
            for lora in loras:
                loaded.append(self._read(AdapterFolder(name, Path(lora.path)), lora.scaling))
        except Exception:
            _unload(loaded)
            raise
        self._loaded[name] = loaded

    def unload(self, name: str) -> None:
        """Free an adapter; an unknown one is not an error."""
        _unload(self._loaded.pop(name, ()))

    def _read(self, folder: AdapterFolder, scaling: float) -> Any:
        folder.config(also_unsupported=_UNSUPPORTED)
        if not folder.weights_file.is_file():
            raise folder.error(f"it has no {folder.weights_file.name}")
        if self._tensor_parallel:
            raise folder.error("tensor_parallel does not support adapters; set it to false")
        if self._model.config.arch.lm.residual_stream_fp32:
            raise folder.error("exllamav2 does not support adapters for this model's architecture")
        # Made in two steps: one that fails half way has put tensors into the model's layers.
        lora = exllamav2.ExLlamaV2Lora.__new__(exllamav2.ExLlamaV2Lora)
        try:
            lora.__init__(self._model, str(folder.config_file), str(folder.weights_file), scaling)
            _check_pairs(folder)
        except Exception as error:
            _unload([lora])
            if isinstance(error, KeyError):
                raise folder.error(
                    f"the model has no {error.args[0]} of its own; the adapter was made for "
                    "another model, or adapts layers that exllamav2 fuses"
                ) from error
            raise folder.error(
                f"exllamav2 cannot use it: {str(error).removeprefix(' ## Error: ') or repr(error)}"
            ) from error
        return lora


def configured_adapters(
    model: Any,
    options: Mapping[str, AdapterOptions | str],
    folder: Path,
    *,
    tensor_parallel: bool,
) -> Adapters:
    """The adapters of the options, whose relative paths start at `folder`."""
    adapters = Adapters(model, tensor_parallel=tensor_parallel)
    for name, given in options.items():
        wanted = AdapterOptions(path=given) if isinstance(given, str) else given
        adapters.load(name, [Lora(str(folder / Path(wanted.path).expanduser()), wanted.scale)])
    return adapters


def _check_pairs(folder: AdapterFolder) -> None:
    """Raise `ValueError` unless every layer has both matrices, of one rank."""
    try:
        with safe_open(folder.weights_file, framework="pt") as file:
            keys = file.keys()
            shapes = {key: file.get_slice(key).get_shape() for key in keys}
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{folder.weights_file.name} cannot be read: {error}") from error
    for key, shape in shapes.items():
        other = shapes.get(key.replace(".lora_A.", ".lora_B."))
        if ".lora_A." in key and (other is None or other[-1] != shape[0]):
            raise ValueError(f"{key} has no lora_B of rank {shape[0]}")
        if ".lora_B." in key and key.replace(".lora_B.", ".lora_A.") not in shapes:
            raise ValueError(f"{key} has no lora_A")


def _unload(loras: Sequence[Any]) -> None:
    for lora in loras:
        lora.unload()
