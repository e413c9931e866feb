"""A model as one request sees it."""

from dataclasses import dataclass
from pathlib import Path

from enginebay.config.schema import ModelConfig
from enginebay.contract.backend import Backend
from enginebay.contract.formats import ReasoningFormat, ToolFormat
from enginebay.contract.types import ModelInfo
from enginebay.models.admission_queue import Gate
from enginebay.models.loras import Loras
from enginebay.models.overrides import Overrides
from enginebay.models.template.chat_formats import ChatFormats
from enginebay.models.template.template_set import DEFAULT, ModelTemplates

_LONGEST_OF_BASE_MODELS = 1024  # tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """A request's view of a model, unchanged to its end whatever is switched meanwhile.

    `name`: the model's, or that of the requested `adapter`, for answers. `asked`: the name by which
    the request asks for it, for errors. `gate`: the backend's admission queue,
    shared by all models that share it. `loras`: those loaded at run time, which may change until
    the request starts to run. `template`: the chat template that was chosen, as `load_templates`
    reads its name.
    """

    name: str
    asked: str
    adapter: str | None
    config: ModelConfig
    info: ModelInfo
    backend: Backend
    gate: Gate
    loras: Loras
    formats: ChatFormats
    template: str | None
    overrides: Overrides

    @property
    def applied_adapter(self) -> str | None:
        """The adapter that applies now: the requested one, else the model's LoRAs."""
        return self.adapter or self.loras.applied

    @property
    def templates(self) -> ModelTemplates:
        """The chat templates: the config's, else the model's own; there may be none."""
        return self.formats.templates

    @property
    def continues_text(self) -> bool:
        """Whether it has no chat template, like a base model: it serves completions only."""
        info = self.info
        return info.generates and not info.chats and not self.templates.names

    @property
    def usual_limit(self) -> int | None:
        """The tokens of an answer for which nobody sets a limit; None: all that the context has.

        A model whose files have no chat template is hardly trained to end its answers.
        """
        info = self.info
        ends = info.chats or info.chat_template is not None or info.chat_templates
        if ends or "max_tokens" in self.config.sampling.model_fields_set:
            return None
        return max(1, min(_LONGEST_OF_BASE_MODELS, info.context_length // 4))

    @property
    def template_name(self) -> str | None:
        """The name of the usual template, as `load_templates` reads it; None without one."""
        usual = self.templates.choose(with_tools=False)
        return (Path(self.template).stem if self.template else DEFAULT) if usual else None

    @property
    def reasoning(self) -> ReasoningFormat | None:
        """The format of its reasoning."""
        return self.formats.reasoning.format

    @property
    def reasoning_name(self) -> str | None:
        """The name of that format."""
        return self.formats.reasoning.name

    @property
    def tools(self) -> ToolFormat | None:
        """The format of its tool calls."""
        return self.formats.tools.format

    @property
    def tools_name(self) -> str | None:
        """The name of that format."""
        return self.formats.tools.name


def can_rerank(info: ModelInfo) -> bool:
    """Whether a model scores documents: it is a reranker, or makes embeddings to compare."""
    return info.reranks or info.embedding_size is not None


def routes(info: ModelInfo) -> list[str]:
    """The routes that a model is for."""
    which = {
        "/v1/chat/completions": info.generates,
        "/v1/completions": info.generates and not info.chats,
        "/v1/embeddings": info.embedding_size is not None,
        "/v1/rerank": can_rerank(info),
        "/v1/score": can_rerank(info),
        "/v1/classify": bool(info.labels),
        "/v1/score/evaluation": len(info.labels) == 1,
    }
    return [route for route, known in which.items() if known]
