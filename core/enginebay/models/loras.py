"""A model's LoRAs that are loaded and unloaded at run time."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from enginebay.contract.backend import Backend
from enginebay.contract.errors import InvalidRequestError, ServingError, UnsupportedParameterError
from enginebay.contract.types import Lora


@dataclass(frozen=True, slots=True)
class LoadedLora:
    """A LoRA of a model; `created` is when it was loaded, in seconds of Unix time."""

    name: str
    lora: Lora
    created: int


class Loras:
    """The LoRAs of one model, in addition to the adapters of its config.

    All of them together apply to requests for the model. Each can also be requested alone, as
    `model`, and so can their sum, by their names joined with `+`.
    """

    def __init__(self) -> None:
        self.loaded: tuple[LoadedLora, ...] = ()
        self._lock = asyncio.Lock()

    @property
    def applied(self) -> str | None:
        """The adapter that applies to requests for the model itself."""
        return "+".join(each.name for each in self.loaded) or None

    @property
    def adapters(self) -> tuple[str, ...]:
        """The adapters that requests may name."""
        names = [each.name for each in self.loaded]
        return tuple(dict.fromkeys([*names, *filter(None, [self.applied])]))

    async def load(self, backend: Backend, wanted: Mapping[str, Lora]) -> dict[str, ServingError]:
        """Replace the loaded LoRAs with these, by name.

        Returns why some of them could not be loaded; the others are. If none can, the previous ones
        stay loaded. An error that is not a LoRA's fault is raised; if it occurs after the first one
        was loaded, none stays loaded.
        """
        async with self._lock:
            before, after = self.adapters, Loras()
            try:
                refused = await after._load_each(backend, wanted)
                if after.loaded:
                    await after._load_sum(backend)
                    self.loaded = after.loaded
                    await _unload(backend, set(before).difference(self.adapters))
            except BaseException:
                if after.loaded:
                    self.loaded = ()
                    await _unload(backend, {*before, *after.adapters})
                raise
            return refused

    async def unload(self, backend: Backend) -> Sequence[str]:
        """Unload all LoRAs; returns their names."""
        async with self._lock:
            names, adapters = [each.name for each in self.loaded], self.adapters
            self.loaded = ()
            await _unload(backend, adapters)
            return names

    async def _load_each(
        self, backend: Backend, wanted: Mapping[str, Lora]
    ) -> dict[str, ServingError]:
        refused: dict[str, ServingError] = {}
        for name, lora in wanted.items():
            try:
                await backend.load_adapter(name, [lora])
            except UnsupportedParameterError:
                raise
            except InvalidRequestError as error:
                refused[name] = error
            else:
                self.loaded = (*self.loaded, LoadedLora(name, lora, int(time.time())))
        return refused

    async def _load_sum(self, backend: Backend) -> None:
        if len(self.loaded) > 1 and self.applied:
            await backend.load_adapter(self.applied, [each.lora for each in self.loaded])


async def _unload(backend: Backend, adapters: Sequence[str] | set[str]) -> None:
    for name in adapters:
        with suppress(UnsupportedParameterError):
            await backend.unload_adapter(name)
