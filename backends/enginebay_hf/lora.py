"""LoRA adapters (Hu et al., 2021) from PEFT folders, chosen for each token of a forward pass.

A pass may mix tokens of several adapters and of none: each adapter's product is added to its own
tokens only. An adapter costs what its two thin matrices cost, and loads while others are in use.
"""

import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from enginebay import Lora, lora_fingerprint
from enginebay_checkpoint.adapter import AdapterFolder

_PREFIX = "base_model.model."

_Pair = tuple[Tensor, Tensor]
"""The matrices of a layer, `[in, r]` and `[r, out]`, scaled."""


class _Plan:
    """The adapters of the running pass: by name, the tokens they apply to (None: all)."""

    def __init__(self) -> None:
        self.tokens: dict[str, Tensor | None] = {}
        self.length = 0


class LoraLinear(nn.Module):
    """A linear layer that adds the adapters' products to its own."""

    def __init__(self, base: nn.Module, plan: _Plan) -> None:
        super().__init__()
        self.base = base
        self.pairs: dict[str, _Pair] = {}
        self._plan = plan

    @property
    def weight(self) -> Any:
        """The weight of the layer beneath."""
        return self.base.weight

    def forward(self, hidden: Tensor) -> Tensor:
        """The layer's product and, on the tokens of an adapter, the adapter's."""
        output: Tensor = self.base(hidden)
        for name, tokens in self._plan.tokens.items():
            if (pair := self.pairs.get(name)) is None:
                continue
            down, up = pair
            if tokens is None:
                output = output + hidden.to(down.dtype) @ down @ up
                continue
            flat = hidden.reshape(-1, hidden.shape[-1])
            if len(flat) != self._plan.length:
                raise RuntimeError("an adapted layer does not see every token of the pass")
            tokens = tokens.to(flat.device)
            added = flat[tokens].to(down.dtype) @ down @ up
            output = output.reshape(len(flat), -1).index_add(0, tokens, added.to(output.dtype))
            output = output.view(*hidden.shape[:-1], -1)
        return output


class Adapters:
    """The adapters of one model, on its engine thread."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        self._plan = _Plan()
        self._fingerprints: dict[str, str] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """The adapters that are loaded, oldest first."""
        return tuple(self._fingerprints)

    def fingerprint(self, name: str) -> str | None:
        """What tells the adapter's weights from all others; None if it is not loaded any more."""
        return self._fingerprints.get(name)

    def load(self, name: str, loras: Sequence[Lora]) -> None:
        """Add the sum of these LoRAs as `name`, in place of an older adapter of that name.

        `BackendUnavailableError`, and no change, if one cannot be read or does not fit the model.
        """
        pairs: dict[str, list[_Pair]] = {}
        for lora in loras:
            for path, (down, up) in _Folder(name, Path(lora.path)).pairs(self._model).items():
                pairs.setdefault(path, []).append((down, up * lora.scaling))
        sums = {path: _sum(parts) for path, parts in pairs.items()}
        fingerprint = lora_fingerprint(loras)
        self.unload(name)
        for path, pair in sums.items():
            self._layer(path).pairs[name] = pair
        self._fingerprints[name] = fingerprint

    def unload(self, name: str) -> None:
        """Unload an adapter; an unknown one is not an error."""
        for path, module in list(self._model.named_modules()):
            if isinstance(module, LoraLinear):
                module.pairs.pop(name, None)
                if not module.pairs:
                    self._replace(path, module.base)
        self._fingerprints.pop(name, None)

    @property
    def are_applied(self) -> bool:
        """Whether the running pass has tokens of an adapter."""
        return bool(self._plan.tokens)

    @contextmanager
    def applied(self, adapters: Sequence[str | None]) -> Iterator[None]:
        """Apply adapters in the forward passes within.

        One entry a token, in the order of the pass's input flattened; a single entry stands for
        all tokens. `KeyError` for an adapter that is not loaded.
        """
        chosen = sorted({name for name in adapters if name is not None})
        if unknown := [name for name in chosen if name not in self._fingerprints]:
            raise KeyError(unknown[0])
        self._plan.length = len(adapters)
        if len(set(adapters)) == 1:
            self._plan.tokens = dict.fromkeys(chosen)
        else:
            # Weights offloaded to disk are on "meta"; nothing can be computed there.
            device = self._model.device if self._model.device.type != "meta" else None
            self._plan.tokens = {
                name: torch.tensor(
                    [i for i, other in enumerate(adapters) if other == name], device=device
                )
                for name in chosen
            }
        try:
            yield
        finally:
            self._plan.tokens = {}

    def _layer(self, path: str) -> LoraLinear:
        layer = self._model.get_submodule(path)
        if isinstance(layer, LoraLinear):
            return layer
        wrapped = LoraLinear(layer, self._plan)
        self._replace(path, wrapped)
        return wrapped

    def _replace(self, path: str, layer: nn.Module) -> None:
        parent, _, leaf = path.rpartition(".")
        setattr(self._model.get_submodule(parent), leaf, layer)


class _Folder:
    """The matrices of an adapter's folder, for the layers of a model."""

    def __init__(self, name: str, folder: Path) -> None:
        self._folder = AdapterFolder(name, folder)
        self._error = self._folder.error

    def pairs(self, model: PreTrainedModel) -> dict[str, _Pair]:
        """For each adapted layer, by its path, its matrices."""
        config = self._folder.config()
        tensors = self._tensors()
        pairs: dict[str, _Pair] = {}
        for key in sorted(tensors):
            stem, dot, kind = key.removeprefix(_PREFIX).rpartition(".lora_")
            if not dot or kind not in ("A.weight", "B.weight"):
                raise self._error(f"it has {key}, which is not a LoRA of a linear layer")
            if kind == "B.weight":
                continue
            down, up = tensors[key], tensors.get(key.replace(".lora_A.", ".lora_B."))
            if up is None:
                raise self._error(f"{stem} has no lora_B")
            layer = self._layer(model, stem)
            expected = _sizes(layer)
            if (down.shape[-1], up.shape[0]) != expected or up.shape[-1] != down.shape[0]:
                raise self._error(
                    f"{stem} is {expected[0]} to {expected[1]} in the model and "
                    f"{down.shape[-1]} to {up.shape[0]} in the adapter; it was made for "
                    "another model"
                )
            scale = _scale(config, stem, rank=down.shape[0])
            device = layer.weight.device
            pairs[stem] = (
                down.T.to(device, model.dtype, copy=True).contiguous(),
                (up.T.float() * scale).to(device, model.dtype).contiguous(),
            )
        if not pairs:
            raise self._error("it has no weights")
        return pairs

    def _tensors(self) -> dict[str, Tensor]:
        try:
            return load_file(self._folder.weights_file)
        except (OSError, SafetensorError) as error:
            raise self._error(f"adapter_model.safetensors cannot be read: {error}") from error

    def _layer(self, model: PreTrainedModel, path: str) -> Any:
        try:
            layer = model.get_submodule(path)
        except AttributeError:
            raise self._error(
                f"the model has no {path}; the adapter was made for another model"
            ) from None
        if isinstance(layer, LoraLinear):
            layer = layer.base
        head = cast(Any, model).get_output_embeddings()
        if layer is head or (isinstance(head, LoraLinear) and layer is head.base):
            raise self._error(f"it adapts {path}, the output layer, which is not supported")
        language = getattr(model.base_model, "language_model", None)
        if language is not None and all(layer is not other for other in _bases(language)):
            raise self._error(
                f"it adapts {path}, which is not in the language model: that is not supported, as "
                "what is made of a picture or a sound is shared by all requests"
            )
        if ".experts." in path:
            raise self._error(f"it adapts {path}, a single expert, which is not supported")
        return layer


def _bases(model: nn.Module) -> Iterator[nn.Module]:
    """The layers of a model, those below adapters' too."""
    for module in model.modules():
        yield module.base if isinstance(module, LoraLinear) else module


def _sum(pairs: Sequence[_Pair]) -> _Pair:
    """One pair whose product is the sum of these pairs' products; its rank is the sum of theirs."""
    downs, ups = zip(*pairs, strict=True)
    return torch.cat(downs, dim=1), torch.cat(ups)


def _sizes(layer: Any) -> tuple[int | None, int | None]:
    if isinstance(layer, Conv1D):
        return layer.nx, layer.nf
    return getattr(layer, "in_features", None), getattr(layer, "out_features", None)


def _scale(config: dict[str, Any], path: str, *, rank: int) -> float:
    alpha = config.get("lora_alpha", 8)
    for pattern, value in (config.get("alpha_pattern") or {}).items():
        if re.match(rf"(.*\.)?({pattern})$", path):
            alpha = value
            break
    return float(alpha) / (math.sqrt(rank) if config.get("use_rslora") else rank)
