"""What is set while servers run, at one front for all."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

from enginebay.config.paths import inside
from enginebay.config.schema import Config, resolved_path
from enginebay.contract.errors import ServingError
from enginebay.contract.types import Lora
from enginebay.models.loading.entry import ModelEntry
from enginebay.models.overrides import Overrides
from enginebay.models.presets import Preset
from enginebay.models.registry import Models
from enginebay.plugins import Plugins
from enginebay.server.peers import Answers, SettingKind
from enginebay_cluster.fronts.front import Front
from enginebay_cluster.fronts.said import Setting, SettingKey, Settings

logger = logging.getLogger(__name__)

T = TypeVar("T")

_OTHERS = 10.0
"""Seconds for which a request that sets something waits until other fronts have done the same."""


class SharedSettings:
    """Loaded LoRAs, templates and presets: what was told to any front holds at all of them.

    It is kept in the ledger and by each front, and applied to a model when that is loaded here. Of
    two things said about the same the later one holds, wherever it was said.
    """

    def __init__(
        self,
        front: Front,
        models: Models,
        plugins: Plugins,
        config: Config,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._front = front
        self._models = models
        self._plugins = plugins
        self._config = config
        self._now = now
        self._turn = asyncio.Lock()
        self._applied: dict[SettingKey, tuple[Setting, object]] = {}
        self._watched: set[ModelEntry] = set()
        front.handlers["settings"] = self._learn
        front.ledger.when_heard.append(self._apply_soon)

    async def change(
        self,
        kind: SettingKind,
        model: str | None,
        apply: Callable[[], Awaitable[T]],
        value: Callable[[], Any],
    ) -> T:
        """Set something here by `apply`, then at all other fronts; what `apply` returns.

        `value`: what is set then, as data: pairs of names and scalings of LoRAs; the name of a
        template; the name and the overrides of a preset. Nothing is said to others if `apply`
        raises. Returns when they have done it, or after 10 s; those that cannot be reached do it
        when they can.
        """
        key = SettingKey(kind, model)
        async with self._turn:
            done = await apply()
            version = max(int(self._now() * 1000), self._front.known.newest() + 1)
            setting = Setting((version, self._front.id), value())
            self._front.known.merge({key: setting})
            self._applied[key] = setting, self._target(key)
        try:
            answers: Answers = await self._front.ledger.call("tell", {key: setting}, _OTHERS)
        except ServingError as error:
            logger.warning("%s of %s is set at this server only: %s", kind, model, error.message)
            return done
        for name, problem in answers.given:
            if problem:
                logger.warning("the server %s could not follow: %s", name, problem)
        for name in answers.silent:
            logger.warning("the server %s has not said yet that it has set %s, too", name, kind)
        return done

    async def _learn(self, settings: Settings) -> str | None:
        """Do what was said to another front; what went wrong, if something did."""
        self._front.known.merge(settings)
        return await self._apply_due()

    def _apply_soon(self) -> None:
        if any(True for _ in self._front.known):
            self._front.ledger.spawn(self._apply_due())

    async def _apply_due(self) -> str | None:
        """Apply what is not in effect here, the earliest first, as far as models are loaded."""
        problems: list[str] = []
        again: set[SettingKind] = set()  # a later one may have had its effect before an earlier one
        async with self._turn:
            for key, setting in self._front.known:
                target = self._target(key)
                if target is None:
                    self._watch(key)
                elif key.kind in again or self._applied.get(key) != (setting, target):
                    again.add(key.kind)
                    self._applied[key] = setting, target
                    try:
                        await self._apply(key, setting.value)
                    except ServingError as error:
                        problems.append(f"{key.kind} of {key.model}: {error.message}")
                    except Exception as error:
                        logger.exception("%s of %s could not be set", key.kind, key.model)
                        problems.append(f"{key.kind} of {key.model}: {error}")
        for problem in problems:
            logger.warning("what another server was told cannot be done here: %s", problem)
        return "; ".join(problems) or None

    def _target(self, key: SettingKey) -> object | None:
        """What a setting has its effect on: when that is another one, it has to be set again."""
        if key.model is None:
            return self._models
        entry = self._entry(key.model)
        if entry is None or key.kind == "preset":
            return entry
        return entry.started

    def _entry(self, name: str) -> ModelEntry | None:
        return next((each for each in self._models.listed() if each.name == name), None)

    def _watch(self, key: SettingKey) -> None:
        """Apply it as soon as its model is loaded."""
        entry = self._entry(key.model) if key.model else None
        if entry and entry not in self._watched:
            self._watched.add(entry)
            self._front.ledger.spawn(self._when_there(entry))

    async def _when_there(self, entry: ModelEntry) -> None:
        await entry.there.wait()
        self._watched.discard(entry)
        await self._apply_due()

    async def _apply(self, key: SettingKey, value: Any) -> None:
        preset = None
        if key.kind == "preset":
            name, written = value
            preset = Preset(name, Overrides(written))
        if key.model is None:
            assert preset
            return self._models.use_preset(preset)
        entry = self._entry(key.model)
        assert entry
        if preset:
            entry.use_preset(preset)
        elif key.kind == "template":
            await entry.use_template(value, self._plugins, self._config.base)
        else:
            await self._use_loras(entry, dict(value))

    async def _use_loras(self, entry: ModelEntry, wanted: dict[str, float]) -> None:
        assert entry.started
        backend = entry.started.backend
        if not wanted:
            await entry.loras.unload(backend)
            return
        folder = Path(resolved_path(self._config.server.lora_dir, self._config.base))
        loras = {
            name: Lora(str(inside(folder, name, "loras")), scaling)
            for name, scaling in wanted.items()
        }
        for name, error in (await entry.loras.load(backend, loras)).items():
            raise ServingError(f"{name}: {error.message}")
