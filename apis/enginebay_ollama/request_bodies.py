"""Requests of Ollama's API: https://github.com/ollama/ollama/blob/main/docs/api.md.

Fields that are not known here are kept aside, to be passed on or named.
"""

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from enginebay.apis.open_object import OpenObject
from enginebay.config.durations import Duration, seconds
from enginebay.config.field_types import Many, ModelName, NullIsUnset, Scalars, aliased
from enginebay.contract.errors import InvalidRequestError


def _format(value: Any) -> Any:
    if value not in ("", "json") and not isinstance(value, dict):
        raise ValueError('should be "json" or a JSON Schema')
    return value


class OllamaBody(OpenObject, NullIsUnset):
    """What all of them have."""

    model_config = ConfigDict(allow_inf_nan=False)

    model: ModelName | None = None

    @property
    def asked_model(self) -> str:
        """The name of the model. `InvalidRequestError` without one."""
        if not self.model:
            raise InvalidRequestError("model is required", param="model")
        return self.model


class OllamaModel(OllamaBody):
    """A request about a model, which older clients send as `name`."""

    model: ModelName | None = aliased("model", "name")


class OllamaPull(OllamaModel):
    """A model that is to be there."""

    stream: bool = True


class OllamaOptions(OllamaBody):
    """What requests that compute something have.

    `keep_alive`: how long the model stays loaded without requests.
    """

    options: dict[str, Any] | None = None
    keep_alive: Duration = None

    @property
    def unloads(self) -> bool:
        """Whether the model need not stay."""
        return self.keep_alive is not None and seconds(self.keep_alive) == 0


class OllamaGeneration(OllamaOptions):
    """What requests that generate text have.

    `truncate`: cut a prompt that is too long; unset, that is an error.
    `context`: the tokens of an earlier answer, which are not taken.
    """

    stream: bool = True
    format: Annotated[dict[str, Any] | str, BeforeValidator(_format)] = ""
    think: bool | Literal["low", "medium", "high", "max"] | None = None
    truncate: bool | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    template: str | None = None
    context: Any = None

    def ignored(self) -> Iterator[str]:
        """Fields of Ollama's that have no effect here."""
        if self.template:
            yield "template"
        if self.context:
            yield "context"


class OllamaFunction(BaseModel):
    """A called function; `index` is left over from a stream."""

    model_config = ConfigDict(extra="allow")

    name: str
    arguments: dict[str, Any] | str | None = None
    index: Any = Field(None, exclude=True)


Images = Annotated[list[Any], Field(max_length=1000)]


class OllamaCall(BaseModel):
    """A call of an earlier answer."""

    model_config = ConfigDict(extra="allow")

    id: str | None = None
    function: OllamaFunction


class OllamaMessage(BaseModel):
    """A message of the conversation so far; `tool_name` says whose result it is."""

    model_config = ConfigDict(extra="allow")

    role: str
    content: str | None = None
    thinking: str | None = None
    images: Images | None = None
    tool_calls: Many[OllamaCall] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None


class OllamaChat(OllamaGeneration):
    """A conversation to be gone on with; without messages the model is loaded."""

    messages: Many[OllamaMessage] = Field([])
    tools: Many[dict[str, Any]] | None = None


class OllamaGenerate(OllamaGeneration):
    """A prompt to be answered; without one the model is loaded.

    `raw`: it is gone on with as it is. `suffix`: what is to come behind the answer.
    """

    prompt: str = ""
    system: str | None = None
    suffix: str | None = None
    raw: bool = False
    images: Images | None = None

    @property
    def only_loads(self) -> bool:
        """Whether there is nothing to answer."""
        return not (self.prompt or self.suffix or self.images)


class OllamaEmbed(OllamaOptions):
    """Texts to embed; those that are too long are cut unless `truncate` is false."""

    input: str | Scalars[str] = Field([])
    truncate: bool = True
    dimensions: int | None = None


class OllamaEmbedding(OllamaOptions):
    """The same for one text, as it was before."""

    prompt: str = ""
