"""Bodies of llama-server's `/infill`."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from enginebay.chat.schemas.usage_bodies import LlamaTimings, PromptProgress
from enginebay.config.field_types import Many, ModelName, NullIsUnset, Scalars


class ExtraFile(NullIsUnset):
    """A file that the model should know of, or a part of one."""

    text: str
    filename: str = "tmp"


class InfillRequest(NullIsUnset):
    """What is around a gap in a file. All fields of completions have their effect, too.

    `prompt`: what of the gap is written. `input_extra`: other files. `response_fields`: all that
    the last event, or the whole answer, has; parts of objects by paths such as `timings/prompt_n`.
    `return_tokens`: whether a whole answer has its tokens.
    """

    model_config = ConfigDict(extra="allow")

    input_prefix: str
    input_suffix: str
    prompt: str = ""
    input_extra: Many[ExtraFile] = Field([])
    model: ModelName | None = None
    stream: bool = False
    response_fields: Scalars[str] = Field([])
    return_tokens: bool = False
    timings_per_token: bool = False
    return_progress: bool = False


class InfillEvent(BaseModel):
    """What a stream says of a piece of text, or of how far the prompt is read."""

    index: Literal[0]
    content: str
    tokens: list[int]
    stop: Literal[False]
    tokens_predicted: int
    tokens_evaluated: int
    timings: LlamaTimings | None = None
    prompt_progress: PromptProgress | None = None


class InfillAnswer(BaseModel):
    """A whole answer; or the last event of a stream, without the text.

    `truncated`: whether something of the prompt was left out, as it was too long.
    `tokens_cached`: how many of the prompt's tokens were.
    """

    index: Literal[0]
    content: str
    tokens: list[int]
    stop: Literal[True]
    model: str
    tokens_predicted: int
    tokens_evaluated: int
    tokens_cached: int
    has_new_line: bool
    truncated: bool
    stop_type: Literal["none", "eos", "limit", "word"]
    stopping_word: str
    timings: LlamaTimings


class AppliedTemplate(BaseModel):
    """A chat's prompt, as the template renders it."""

    prompt: str


class InputTokens(BaseModel):
    """How many tokens the prompt of a chat has."""

    object: Literal["response.input_tokens"] = "response.input_tokens"
    input_tokens: int
