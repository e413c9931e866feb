"""A LoRA adapter as PEFT saves it: `adapter_config.json` and `adapter_model.safetensors`."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from enginebay import BackendUnavailableError

_UNSUPPORTED = (
    "use_dora",
    "lora_bias",
    "use_qalora",
    "modules_to_save",
    "trainable_token_indices",
    "target_parameters",
    "layer_replication",
    "alora_invocation_tokens",
)
# These start from other base weights than the model's own.
_CHANGES_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")


@dataclass(frozen=True)
class AdapterFolder:
    """The files of one adapter. Every error is a `BackendUnavailableError` that names it."""

    name: str
    path: Path

    @property
    def config_file(self) -> Path:
        """What PEFT writes about an adapter."""
        return self.path / "adapter_config.json"

    @property
    def weights_file(self) -> Path:
        """Where PEFT writes its matrices."""
        return self.path / "adapter_model.safetensors"

    def config(self, also_unsupported: Sequence[str] = ()) -> dict[str, Any]:
        """`adapter_config.json`, of a plain LoRA; `also_unsupported` are further keys to refuse."""
        try:
            config = json.loads(self.config_file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise self.error(f"adapter_config.json cannot be read: {error}") from error
        if not isinstance(config, dict):
            raise self.error("adapter_config.json is not a JSON object")
        if config.get("peft_type") != "LORA":
            raise self.error(f"its peft_type is {config.get('peft_type')!r}, not LORA")
        unsupported = [key for key in (*_UNSUPPORTED, *also_unsupported) if config.get(key)]
        if config.get("bias", "none") != "none":
            unsupported.append(f"bias: {config['bias']}")
        start = config.get("init_lora_weights")
        if isinstance(start, str) and start.lower().startswith(_CHANGES_BASE):
            unsupported.append(f"init_lora_weights: {start}")
        if unsupported:
            raise self.error(
                f"{', '.join(unsupported)} is not supported; merge the adapter into its model "
                "and serve that"
            )
        return config

    def error(self, reason: str) -> BackendUnavailableError:
        """An error about this adapter."""
        return BackendUnavailableError(f"adapter {self.name!r} ({self.path}): {reason}")
