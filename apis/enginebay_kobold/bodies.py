"""Bodies of KoboldAI's and KoboldCpp's API: https://lite.koboldai.net/koboldcpp_api."""

from collections.abc import Sequence
from typing import Annotated, Literal, Self

from pydantic import BaseModel, BeforeValidator, Field, model_validator

from enginebay.apis.open_object import OpenObject
from enginebay.config.field_types import ModelName, NullIsUnset, Scalars, aliased, one_as_list
from enginebay.contract.errors import InvalidRequestError

Texts = Annotated[Scalars[str], BeforeValidator(one_as_list)]


class KoboldBody(OpenObject, NullIsUnset):
    """There is no `model` in what these clients send, but there may be."""

    model: ModelName | None = None


class GenerateRequest(KoboldBody):
    """A text to continue. Fields that are not here are those of `/v1/completions`.

    `memory`: what is in front of the prompt, and stays when that is cut to fit into
    `max_context_length`. `stop_sequence`: what ends the text, of which it is a part unless
    `trim_stop`. `singleline`: a line break ends it, too. `rep_pen_range`: 0 is all.
    `use_default_badwordsids`, `ban_eos_token`, `bypass_eos`: each has the text go on behind an end
    of sequence. `genkey`: by which it can be seen and aborted while it is generated.
    """

    prompt: str
    memory: str | None = None
    max_length: Annotated[int, Field(ge=1)] = 180
    max_context_length: Annotated[int, Field(ge=2)] | None = None
    stop_sequence: Texts | None = aliased("stop_sequence", "stop")
    trim_stop: bool = False
    singleline: bool = False
    rep_pen_range: int | None = None
    use_default_badwordsids: bool | None = None
    ban_eos_token: bool | None = None
    bypass_eos: bool | None = None
    banned_tokens: Texts | None = None
    banned_strings: Texts | None = None
    genkey: Annotated[str, Field(max_length=1000)] = ""

    @model_validator(mode="after")
    def _room_for_a_prompt(self) -> Self:
        if self.max_context_length and self.max_length >= self.max_context_length:
            raise InvalidRequestError(
                f"max_length is {self.max_length}, which leaves no room for a prompt in a "
                f"max_context_length of {self.max_context_length}",
                param="max_length",
            )
        return self


class TokenCountRequest(KoboldBody):
    """A text to count. `special`: with what the tokenizer puts in front of a text."""

    prompt: str
    special: bool = True


class TokenCount(BaseModel):
    """The number of tokens, and which they are."""

    value: int
    ids: list[int]


class GeneratedText(BaseModel):
    """What was generated; `finish_reason` is left out of a text that is not complete."""

    text: str
    finish_reason: Literal["stop", "length"] | None = None


class Generated(BaseModel):
    """One result, always."""

    results: Sequence[GeneratedText]


class Aborted(BaseModel):
    """The answer to every abort, whether there was something to abort or not."""

    success: Literal[True] = True
    done: Literal[True] = True


class Result(BaseModel):
    """A text."""

    result: str


class Value(BaseModel):
    """A number, or a text."""

    value: int | str


class Values(BaseModel):
    """A list, which is empty: there are no soft prompts."""

    values: Sequence[str] = ()


class KoboldVersion(BaseModel):
    """The KoboldCpp whose API this is, and which of its features there are.

    From 1.88 on, clients leave the tags of the chat template to the server: `{{[INPUT]}}`.
    """

    result: Literal["KoboldCpp"] = "KoboldCpp"
    version: Literal["1.87"] = "1.87"
    protected: bool
    txt2img: Literal[False] = False
    vision: bool
    transcribe: Literal[False] = False
    tts: Literal[False] = False
    embeddings: bool
    websearch: Literal[False] = False
    multiplayer: Literal[False] = False
    admin: Literal[0] = 0


class Performance(BaseModel):
    """Times in seconds, and counts. What is `last_…` is of the last text that was generated here.

    `stop_reason`: 0 is length, 1 the end of sequence, 2 a stop sequence; -1: there was none yet.
    `queue`: requests that wait; `idle`: 1 when nothing runs. `idletime`: since a text has ended.
    """

    last_process: float = 0
    last_eval: float = 0
    last_token_count: int = 0
    last_seed: int = -1
    total_gens: int = 0
    stop_reason: Literal[-1, 0, 1, 2] = -1
    total_img_gens: Literal[0] = 0
    queue: int = 0
    idle: Literal[0, 1] = 1
    hordeexitcounter: Literal[0] = 0
    uptime: float
    idletime: float
    quiet: Literal[False] = False
