"""What a model can do, in Ollama's words."""

from contextlib import suppress
from pathlib import Path

from enginebay.chat.plan.infill import fills_in
from enginebay.contract.errors import ServingError
from enginebay.contract.types import ModelInfo
from enginebay.models.loading.entry import ModelEntry
from enginebay.models.loading.formats import format_choice
from enginebay.models.served import ServedModel
from enginebay.models.template.beginning import Beginning
from enginebay.models.template.detect_formats import choose_reasoning, choose_tools
from enginebay.models.template.features import TemplateFeatures
from enginebay.models.template.foreign_templates import ForeignTemplates
from enginebay.models.template.template_set import ModelTemplates, load_templates
from enginebay.plugins import Plugins
from enginebay_ollama.model_files import FileFacts

_WRITTEN = dict.fromkeys(("bos_token", "eos_token", "pad_token", "unk_token"), "")
"""What templates write beside messages; which text it is makes no difference here."""

_Asked = tuple[object, ...]


class Abilities:
    """What models can do, asked once each time they are loaded.

    Before that only what their files and the config say is known, and nothing that depends on the
    engine.
    """

    def __init__(self, plugins: Plugins, base: Path) -> None:
        self._plugins = plugins
        self._base = base
        self._foreign = ForeignTemplates()
        self._loaded: dict[str, tuple[_Asked, list[str]]] = {}
        self._of_files: dict[str, tuple[_Asked, list[str]]] = {}

    async def of(self, model: ModelEntry, facts: FileFacts) -> list[str]:
        """`completion`, `tools` and others."""
        if served := _served(model):
            known = self._loaded.get(model.name)
            asked: _Asked = (model.loaded_at, served.template)
            if known is None or known[0] != asked:
                with suppress(ServingError):  # it is no longer there
                    self._loaded[model.name] = (asked, await _of_served(served))
        known = self._loaded.get(model.name)
        if known is None:
            known = self._of_files.get(model.name)
            asked = (facts, model.config)
            if known is None or known[0] != asked:
                found = await self._foreign.run(self._by_files, model, facts)
                known = self._of_files[model.name] = (asked, found)
        return known[1]

    async def template(self, model: ModelEntry, facts: FileFacts) -> str:
        """The source of its chat template; empty without one."""
        if served := _served(model):
            templates: ModelTemplates | None = served.templates
        else:
            templates = await self._foreign.run(self._templates, model, facts)
        usual = templates.choose(with_tools=False) if templates else None
        return usual.template.source if usual else ""

    def _by_files(self, model: ModelEntry, facts: FileFacts) -> list[str]:
        able = {"completion": facts.generates, "embedding": facts.embeds}
        if facts.generates and (templates := self._templates(model, facts)):
            choice = format_choice(model.config, self._plugins, self._base)
            usual = templates.choose(with_tools=False)
            with_tools = templates.choose(with_tools=True)
            with suppress(ServingError):  # a format that there is not
                tools = choose_tools(choice.tools, choice.tool_formats, with_tools)
                able["tools"] = _calls(with_tools) and tools.format is not None
                thought = choose_reasoning(choice.reasoning, choice.reasoning_formats, usual)
                able["thinking"] = thought.format is not None
        return [name for name, known in able.items() if known]

    def _templates(self, model: ModelEntry, facts: FileFacts) -> ModelTemplates | None:
        """The chat templates it is going to have; None if they cannot be used."""
        info = ModelInfo(
            context_length=0,
            vocab_size=0,
            chat_template=facts.templates.get("default"),
            chat_templates=facts.templates,
            special_tokens=_WRITTEN,
        )
        try:
            template = model.config.chat_template
            return load_templates(info, template, self._base, self._foreign, Beginning())
        except (ServingError, OSError):
            return None


def _served(model: ModelEntry) -> ServedModel | None:
    try:
        return model.served()
    except ServingError:
        return None


def _calls(template: TemplateFeatures | None) -> bool:
    return template is not None and template.knows_tools


async def _of_served(model: ServedModel) -> list[str]:
    info = model.info
    if info.chats:
        tools = "tools" not in info.unsupported
    else:
        template = model.templates.choose(with_tools=True)
        tools = model.tools is not None and await model.templates.run(_calls, template)
    able = {
        "completion": info.generates,
        "tools": info.generates and tools,
        "thinking": model.reasoning is not None,
        "vision": "image" in info.modalities,
        "embedding": info.embedding_size is not None,
        "insert": info.generates and not info.chats and await fills_in(model),
    }
    return [name for name, known in able.items() if known]
