"""How the weights of a model folder are quantized, by its `config.json`."""

import json
from pathlib import Path
from typing import Any


def quant_method(folder: Path) -> str | None:
    """`quantization_config.quant_method` in lower case; None if there is none, or no such file."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return config_quant_method(config)


def config_quant_method(config: Any) -> str | None:
    """The same of what `config.json` holds."""
    quantization = config.get("quantization_config") if isinstance(config, dict) else None
    method = quantization.get("quant_method") if isinstance(quantization, dict) else None
    return method.lower() if isinstance(method, str) else None
