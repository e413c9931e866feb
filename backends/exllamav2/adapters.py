"""LoRA adapters from PEFT folders, checked before the library reads them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from backends.checkpoint.adapter import AdapterFolder
from backends.exllamav2.library import exllamav2
from backends.exllamav2.options import AdapterOptions

# The library scales all of an adapter alike, and takes its matrices as PEFT stores them.
_UNSUPPORTED = ("alpha_pattern", "rank_pattern", "fan_in_fan_out")


def load_adapters(
    model: Any, adapters: Mapping[str, AdapterOptions | str], folder: Path
) -> dict[str, Any]:
    """An `ExLlamaV2Lora` for each name; relative paths start at `folder`.

    `BackendUnavailableError` for one that cannot be read or does not fit the model.
    """
    return {name: _load(model, name, given, folder) for name, given in adapters.items()}


def _load(model: Any, name: str, given: AdapterOptions | str, folder: Path) -> Any:
    options = AdapterOptions(path=given) if isinstance(given, str) else given
    adapter = AdapterFolder(name, folder / Path(options.path).expanduser())
    adapter.config(also_unsupported=_UNSUPPORTED)
    if not adapter.weights_file.is_file():
        raise adapter.error(f"it has no {adapter.weights_file.name}")
    if model.config.arch.lm.residual_stream_fp32:
        raise adapter.error("exllamav2 has no adapters for this model's architecture")
    try:
        return exllamav2.ExLlamaV2Lora(
            model, str(adapter.config_file), str(adapter.weights_file), options.scale
        )
    except KeyError as error:
        raise adapter.error(
            f"the model has no {error.args[0]} of its own; it was made for another, or adapts "
            "layers that exllamav2 keeps together"
        ) from error
    except Exception as error:
        raise adapter.error(
            f"exllamav2 cannot use it: {str(error).removeprefix(' ## Error: ') or repr(error)}"
        ) from error
