"""What Ollama's clients are told about models, loaded or not."""

import asyncio
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite
from typing import Any

from enginebay.models.files.model_paths import ModelPaths
from enginebay.models.index import FoundModel
from enginebay.plugins import Plugins
from enginebay_ollama.answer_bodies import Details, LoadedModel, ModelBrief, ModelShown
from enginebay_ollama.composer import timestamp
from enginebay_ollama.model_abilities import Abilities
from enginebay_ollama.model_files import FileFacts, Stamp, file_facts, stamp

_FOR_EVER = 10413792000.0
"""When a model is unloaded that stays, the year 2300: Ollama, too, names a day far away."""

_PARAMETERS = {
    "max_tokens": "num_predict",
    "repetition_penalty": "repeat_penalty",
    "penalty_last_n": "repeat_last_n",
    "tfs": "tfs_z",
}
"""Ollama's names of params that have another one here."""


@dataclass(frozen=True, slots=True)
class _Files:
    """The files of a model at this path, and what they say."""

    path: str
    stamp: Stamp
    facts: FileFacts


class ModelCards:
    """Cards of models. What files say is read again only when they have changed."""

    def __init__(self, plugins: Plugins, paths: ModelPaths) -> None:
        self._paths = paths
        self._known: dict[str, _Files] = {}
        self._abilities = Abilities(plugins, paths.base)

    async def brief(self, found: FoundModel) -> ModelBrief:
        """A model of `/api/tags`."""
        files = await self._files(found)
        return ModelBrief(
            name=found.name,
            model=found.name,
            modified_at=_modified(found, files),
            size=files.stamp.size,
            digest=self._digest(found, files),
            details=_details(files.facts),
            capabilities=await self._abilities.of(found.entry, files.facts),
        )

    async def loaded(self, found: FoundModel) -> LoadedModel:
        """A model of `/api/ps`."""
        files, memory = await self._files(found), found.entry.memory
        return LoadedModel(
            name=found.name,
            model=found.name,
            size=memory.ram + memory.gpu if memory else files.stamp.size,
            digest=self._digest(found, files),
            details=_details(files.facts),
            expires_at=_expires(found),
            size_vram=memory.gpu if memory else 0,
            context_length=found.entry.context_length or 0,
        )

    async def shown(self, found: FoundModel) -> ModelShown:
        """What `/api/show` says."""
        files = await self._files(found)
        parameters = list(_parameters(found))
        file = [f"FROM {found.name}", *(f"PARAMETER {line}" for line in parameters)]
        return ModelShown(
            license=files.facts.license,
            modelfile="\n".join(file),
            parameters="\n".join(parameters),
            template=await self._abilities.template(found.entry, files.facts),
            details=_details(files.facts),
            facts=_model_info(found, files.facts),
            capabilities=await self._abilities.of(found.entry, files.facts),
            modified_at=_modified(found, files),
        )

    async def _files(self, found: FoundModel) -> _Files:
        config = found.entry.config
        path = await asyncio.to_thread(self._paths.local, config.path, config.backend)
        known = self._known.get(path)
        now = await asyncio.to_thread(stamp, path)
        if known is None or known.stamp != now:
            known = _Files(path, now, await asyncio.to_thread(file_facts, path, now))
            self._known[path] = known
        return known

    def _digest(self, found: FoundModel, files: _Files) -> str:
        return files.stamp.digest(found.entry.config.backend, files.path, found.adapter or "")


def _details(facts: FileFacts) -> Details:
    return Details(
        format=facts.format,
        family=facts.family,
        families=[facts.family] if facts.family else [],
        parameter_size=_size(facts.parameters) if facts.parameters else "",
        quantization_level=facts.quantization,
    )


def _size(parameters: int) -> str:
    for unit, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K")):
        if parameters >= unit:
            return f"{parameters / unit:.2f}{letter}"
    return str(parameters)


def _modified(found: FoundModel, files: _Files) -> str:
    return timestamp(files.stamp.modified or found.entry.created)


def _expires(found: FoundModel) -> str:
    model = found.entry
    if not isfinite(model.idle_timeout):
        return timestamp(_FOR_EVER)
    last = time.time() if model.use.count else model.last_used or model.loaded_at or time.time()
    return timestamp(min(last + model.idle_timeout, _FOR_EVER))


def _model_info(found: FoundModel, facts: FileFacts) -> dict[str, Any]:
    """Facts with GGUF's names. The length is that which is served, if it is known already.

    Clients look for it under the name of the architecture, so there always is one, and show the
    `basename` as the model's name.
    """
    family = facts.family or "unknown"
    lengths = {
        "context_length": found.entry.context_length or facts.context_length,
        "embedding_length": facts.embedding_length,
    }
    return {
        **facts.values,
        "general.architecture": family,
        "general.basename": found.name,
        **({"general.parameter_count": facts.parameters} if facts.parameters else {}),
        **{f"{family}.{name}": value for name, value in lengths.items() if value},
    }


def _parameters(found: FoundModel) -> Iterator[str]:
    """The params that apply when a request names none, a line each, as in a Modelfile."""
    model = found.entry
    defaults = dict(model.info.defaults) if model.info else {}
    length = {"num_ctx": model.context_length} if model.context_length else {}
    for name, value in {**length, **defaults, **model.config.sampling.params}.items():
        for each in value if isinstance(value, list | tuple) else (value,):
            yield f"{_PARAMETERS.get(name, name)} {json.dumps(each, ensure_ascii=False)}"
