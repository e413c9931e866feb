"""The LoRAs that apply to a model's requests: loaded and unloaded while it runs."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from core.contract.backend import Backend
from core.contract.errors import InvalidRequestError, ServingError, UnsupportedParameterError
from core.contract.types import Lora


@dataclass(frozen=True, slots=True)
class LoadedLora:
    """A LoRA of a model; `created` is when it was loaded, in seconds of Unix time."""

    name: str
    lora: Lora
    created: int


class Loras:
    """The LoRAs of one model beside the adapters of its config.

    All of them together apply to requests for the model. Each can also be asked for alone, as
    `model`, and so can their sum, by their names joined with `+`.
    """

    def __init__(self) -> None:
        self.loaded: tuple[LoadedLora, ...] = ()
        self._lock = asyncio.Lock()

    @property
    def applied(self) -> str | None:
        """The adapter of requests that ask for the model itself."""
        return "+".join(each.name for each in self.loaded) or None

    @property
    def adapters(self) -> tuple[str, ...]:
        """The adapters that requests may ask for."""
        names = [each.name for each in self.loaded]
        return tuple(dict.fromkeys([*names, *filter(None, [self.applied])]))

    async def load(self, backend: Backend, wanted: Mapping[str, Lora]) -> dict[str, ServingError]:
        """Let these LoRAs, by their names, take the place of those that are loaded.

        Returns why some of them could not be loaded; the others are. When none can, those that were
        loaded before still are. An error that is no LoRA's fault is raised; when it comes behind
        the first one that was loaded, none is any more.
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
        """Let none apply any more; the names of those that did."""
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
