"""The chat formats of a model: its templates, and reasoning and tool formats."""

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from enginebay.contract.backend import Backend
from enginebay.contract.formats import ReasoningFormat, ToolFormat
from enginebay.contract.types import ModelInfo
from enginebay.models.template.beginning import Beginning, find_beginning
from enginebay.models.template.detect_formats import Detected, choose_reasoning, choose_tools
from enginebay.models.template.features import TemplateFeatures
from enginebay.models.template.foreign_templates import ForeignTemplates
from enginebay.models.template.template import TemplateLateError
from enginebay.models.template.template_set import ModelTemplates, load_templates
from enginebay.models.template.turn_end import TurnEnd, find_turn_end, turn_end_marker

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatFormats:
    """The chat templates and the formats detected in them.

    `beginning`: what the tokenizer puts in front of texts. `bos`: where the BOS of prompts comes
    from; None without a template.
    """

    templates: ModelTemplates
    beginning: Beginning
    bos: str | None
    reasoning: Detected[ReasoningFormat]
    tools: Detected[ToolFormat]
    turn_end: TurnEnd


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatChoice:
    """The config's choice of formats, and the available ones.

    `reasoning` and `tools`: `auto`, `none` or a name. `variables`: names that have values in all
    templates. `base`: the folder of the config file.
    """

    reasoning: str
    tools: str
    reasoning_formats: Mapping[str, ReasoningFormat]
    tool_formats: Mapping[str, ToolFormat]
    variables: Collection[str]
    base: Path

    async def find(self, info: ModelInfo, backend: Backend, template: str | None) -> ChatFormats:
        """The formats of a model with this template, named as for `load_templates`."""
        beginning = await find_beginning(info, backend)
        foreign = ForeignTemplates()
        templates = await foreign.run(load_templates, info, template, self.base, foreign, beginning)
        usual = templates.choose(with_tools=False)
        with_tools = templates.choose(with_tools=True)
        both = [each for each in dict.fromkeys([usual, with_tools]) if each]
        for each in both:
            for name, mistake in each.template.mistakes.items():
                if name not in self.variables:
                    logger.warning("chat template (%s): %s", each.template.name, mistake)
        reasoning, tools, markers, bos = await templates.run(self._probe, usual, with_tools)
        strings = [text for each in both for text in each.template.stop_strings]
        return ChatFormats(
            templates=templates,
            beginning=beginning,
            reasoning=reasoning,
            tools=tools,
            turn_end=await find_turn_end(strings, markers, info, backend),
            bos=bos,
        )

    def _probe(
        self, usual: TemplateFeatures | None, with_tools: TemplateFeatures | None
    ) -> tuple[Detected[ReasoningFormat], Detected[ToolFormat], list[str | None], str | None]:
        """The formats, the markers that end a turn, and where a BOS comes from."""
        both = [each for each in dict.fromkeys([usual, with_tools]) if each]
        try:
            return (
                choose_reasoning(self.reasoning, self.reasoning_formats, usual or with_tools),
                choose_tools(self.tools, self.tool_formats, with_tools),
                [turn_end_marker(each) for each in both],
                usual.bos if usual else None,
            )
        except TemplateLateError as error:
            logger.warning("%s; no format was detected in it", error)
            reasoning = choose_reasoning(self.reasoning, self.reasoning_formats, None)
            tools = choose_tools(self.tools, self.tool_formats, None)
            return reasoning, tools, [], None
