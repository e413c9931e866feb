"""The chat formats of a model: its templates, and reasoning and tool formats."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from core.contract.backend import Backend
from core.contract.formats import ReasoningFormat, ToolFormat
from core.contract.types import ModelInfo
from core.models.template.detect_formats import Detected, choose_reasoning, choose_tools
from core.models.template.template_set import ModelTemplates, load_templates
from core.models.template.turn_end import TurnEnd, find_turn_end


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatFormats:
    """The chat templates and the formats detected in them."""

    templates: ModelTemplates
    reasoning: Detected[ReasoningFormat]
    tools: Detected[ToolFormat]
    turn_end: TurnEnd


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatChoice:
    """The config's choice of formats, and the available ones.

    `reasoning` and `tools`: `auto`, `none` or a name. `base`: the folder of the config file.
    """

    reasoning: str
    tools: str
    reasoning_formats: Mapping[str, ReasoningFormat]
    tool_formats: Mapping[str, ToolFormat]
    base: Path

    async def find(self, info: ModelInfo, backend: Backend, template: str | None) -> ChatFormats:
        """The formats of a model with this template, named as for `load_templates`."""
        templates = await asyncio.to_thread(load_templates, info, template, self.base)
        usual = templates.choose(with_tools=False)
        with_tools = templates.choose(with_tools=True)
        both = [each for each in dict.fromkeys([usual, with_tools]) if each]
        return ChatFormats(
            templates=templates,
            reasoning=await asyncio.to_thread(
                choose_reasoning, self.reasoning, self.reasoning_formats, usual or with_tools
            ),
            tools=await asyncio.to_thread(choose_tools, self.tools, self.tool_formats, with_tools),
            turn_end=await find_turn_end(both, info, backend),
        )
