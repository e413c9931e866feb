"""What a model's towers make of pictures, sound and video: a row for each placeholder token."""

import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from enginebay import Modality

Tensors = Mapping[str, Tensor]
"""An item as a processor prepared it: arguments of the model."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Stands in place of the embeddings of an item's placeholders.

    `hidden` is `[tokens, size]`. `deep` has as many rows for each of the first layers of models
    that add them to its output (deepstack).
    """

    hidden: Tensor
    deep: tuple[Tensor, ...] = ()

    def __len__(self) -> int:
        return len(self.hidden)

    @property
    def nbytes(self) -> int:
        """Memory that they take."""
        return self.hidden.nbytes + sum(rows.nbytes for rows in self.deep)

    def part(self, start: int, end: int) -> "Rows":
        """The rows from `start` to `end` (exclusive), without a copy."""
        return Rows(self.hidden[start:end], tuple(rows[start:end] for rows in self.deep))

    def kept(self) -> "Rows":
        """The same in the computer's memory, apart from rows of other items."""
        return Rows(_own(self.hidden), tuple(map(_own, self.deep)))


def joined(parts: Sequence[Rows]) -> Rows:
    """The rows of all parts, in order."""
    deep = zip(*(part.deep for part in parts), strict=True)
    return Rows(torch.cat([part.hidden for part in parts]), tuple(map(torch.cat, deep)))


class _StopError(Exception):
    """Ends a forward pass where the language model begins."""


class Towers:
    """The parts of a model in front of its language model.

    `row_ids` has, for each kind, the token that a row stands for.
    """

    def __init__(self, model: PreTrainedModel, row_ids: Mapping[Modality, int]) -> None:
        self._model: Any = model
        self.row_ids = dict(row_ids)
        self.device = torch.device("cpu") if model.device.type == "meta" else model.device
        self._takes_rows = "mm_encoder_outputs" in inspect.signature(model.forward).parameters
        self._forms: dict[Modality, tuple[type, bool]] = {}

    @torch.inference_mode()
    def encode(self, kind: Modality, items: Sequence[Tensors], tokens: int) -> list[Rows]:
        """The rows of items whose tensors have the same shapes, `tokens` of them each.

        Raises whatever the model raises, and a `ValueError` for another number of rows.
        """
        function = self._function(kind)
        if function is None:
            return [self._recorded(kind, item, tokens) for item in items]
        known = inspect.signature(function).parameters
        arguments = {
            name: self._moved(torch.cat([item[name] for item in items]))
            for name in items[0]
            if name in known
        }
        output = function(**arguments, return_dict=True)
        pooled = output.pooler_output
        self._forms[kind] = type(output), not isinstance(pooled, Tensor)
        deep = getattr(output, "deepstack_features", None) or ()
        rows = Rows(_flat(pooled), tuple(_flat(layer) for layer in deep))
        if len(rows) != tokens * len(items):
            raise ValueError(f"{len(rows)} rows of {kind} for {tokens * len(items)} placeholders")
        return [rows.part(start, start + tokens) for start in range(0, len(rows), tokens)]

    def arguments(self, ids: Tensor, rows: Mapping[Modality, Rows]) -> dict[str, Any]:
        """How a model is given the tokens `ids` (`[tokens]`), and rows for its placeholders.

        As many rows of each kind as `ids` has placeholders of it, in their order.
        """
        if not rows:
            return {"input_ids": ids[None]}
        if self._takes_rows and rows.keys() <= self._forms.keys():
            outputs = {kind: self._output(kind, found) for kind, found in rows.items()}
            return {"input_ids": ids[None], "mm_encoder_outputs": outputs}
        embeddings = self._model.get_input_embeddings()(ids)
        for kind, found in rows.items():
            embeddings[ids == self.row_ids[kind]] = self._moved(found.hidden).to(embeddings.dtype)
        return {"inputs_embeds": embeddings[None]}

    def rope_positions(self, ids: Sequence[int], kinds: Tensor, grids: Iterable[Tensors]) -> Tensor:
        """Positions `[axes, tokens]` of a prompt, of a model whose items have several (M-RoPE).

        `kinds`: 0 for text, 1, 2, 3 for a placeholder of a picture, a video, a sound. `grids`: the
        tensors of each item that `grid_names` names, in order.
        """
        parts: dict[str, list[Tensor]] = {}
        for tensors in grids:
            for name, tensor in tensors.items():
                parts.setdefault(name, []).append(tensor)
        positions: Tensor = self._model.base_model.get_rope_index(
            torch.tensor([ids]),
            mm_token_type_ids=kinds[None],
            **{name: torch.cat(several) for name, several in parts.items()},
        )[0]
        return positions[:, 0]

    @property
    def ropes_items(self) -> bool:
        """Whether a token has several positions, those of an item by its place in it (M-RoPE)."""
        return hasattr(self._model.base_model, "get_rope_index")

    @property
    def grid_names(self) -> frozenset[str]:
        """The tensors of an item that its positions depend on."""
        if not self.ropes_items:
            return frozenset()
        names = inspect.signature(self._model.base_model.get_rope_index).parameters
        return frozenset(names) - {"input_ids", "mm_token_type_ids"}

    def _function(self, kind: Modality) -> Any:
        name = f"get_{kind}_features"
        return getattr(self._model.base_model, name, None) or getattr(self._model, name, None)

    def _recorded(self, kind: Modality, item: Tensors, tokens: int) -> Rows:
        """Rows of a model without a function for them: what it gives its language model."""

        def stop(_: Any, __: Any, arguments: dict[str, Any]) -> None:
            raise _StopError(arguments["inputs_embeds"])

        decoder = getattr(self._model.base_model, "language_model", None)
        decoder = decoder if decoder is not None else self._model.get_decoder()
        ids = torch.full((1, tokens), self.row_ids[kind], device=self.device)
        known = inspect.signature(self._model.forward).parameters
        arguments = {name: self._moved(item[name]) for name in item if name in known}
        hook = decoder.register_forward_pre_hook(stop, with_kwargs=True)
        try:
            self._model(
                input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False, **arguments
            )
        except _StopError as stopped:
            hidden: Tensor = stopped.args[0][0]
        finally:
            hook.remove()
        return Rows(hidden)

    def _output(self, kind: Modality, rows: Rows) -> Any:
        """The rows in the form that the model's own function returns them."""
        form, is_list = self._forms[kind]

        def wrapped(tensor: Tensor) -> Any:
            tensor = tensor.to(self.device)
            return [tensor] if is_list else tensor[None]

        if not rows.deep:
            return form(pooler_output=wrapped(rows.hidden))
        deep = [wrapped(layer) for layer in rows.deep]
        return form(pooler_output=wrapped(rows.hidden), deepstack_features=deep)

    def _moved(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.device, self._model.dtype if tensor.is_floating_point() else None)


def _flat(features: Any) -> Tensor:
    several = [features] if isinstance(features, Tensor) else features
    return torch.cat([part.reshape(-1, part.shape[-1]) for part in several])


def _own(tensor: Tensor) -> Tensor:
    return tensor.clone() if tensor.device.type == "cpu" else tensor.cpu()
