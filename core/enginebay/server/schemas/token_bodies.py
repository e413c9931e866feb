"""Bodies of the routes that turn text into tokens and back, TabbyAPI's, vLLM's, llama-server's."""

from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, model_validator

from enginebay.chat.schemas.chat_request import ChatCompletionRequest
from enginebay.chat.schemas.messages import Message, Tool
from enginebay.chat.schemas.read_body import read_body
from enginebay.config.field_types import Many, ModelName, NullIsUnset, Scalars, aliased
from enginebay.contract.errors import InvalidRequestError

Tokens = Scalars[Annotated[int, Field(ge=0)]]


class TokenBody(NullIsUnset):
    """Shared fields of these requests."""

    model_config = ConfigDict(extra="allow")

    model: ModelName | None = None

    def unknown_fields(self) -> list[str]:
        """Names of fields sent that this server does not know."""
        return sorted(self.model_extra or ())


TextOrMessages = Annotated[
    Annotated[str, Tag("str")] | Annotated[Many[Message], Field(min_length=1), Tag("list")],
    Discriminator(
        lambda value: type(value).__name__,
        custom_error_type="text",
        custom_error_message="must be a string or a list of messages",
    ),
]


class TabbyTokenBody(TokenBody):
    """TabbyAPI has these in requests of both ways, each for one of them."""

    add_bos_token: bool = True
    encode_special_tokens: bool = True
    decode_special_tokens: bool = True


class TokenEncodeRequest(TabbyTokenBody):
    """A text, or messages that are rendered without a generation prompt.

    `encode_special_tokens`: whether what looks like a special token is one.
    """

    text: TextOrMessages
    template_vars: dict[str, Any] | None = aliased("template_vars", "chat_template_kwargs")

    def chat(self) -> ChatCompletionRequest:
        """The messages as a chat request."""
        fields = {
            "messages": self.text,
            "add_generation_prompt": False,
            "chat_template_kwargs": self.template_vars,
        }
        return read_body(ChatCompletionRequest, fields)


class TokenEncodeResponse(BaseModel):
    """The tokens and how many they are."""

    tokens: list[int]
    length: int


class TokenDecodeRequest(TabbyTokenBody):
    """Tokens. `decode_special_tokens`: whether special tokens are written out."""

    tokens: Tokens


class TokenDecodeResponse(BaseModel):
    """Their text."""

    text: str


class TokenizeRequest(TokenBody):
    """A prompt, or messages that are rendered as chat completions render them, as in vLLM.

    Or `content`, which llama-server calls a text: without a BOS unless `add_special`, with
    `parse_special` false as if nothing in it were a special token.
    """

    prompt: str | None = None
    content: str | None = None
    add_special: bool = False
    parse_special: bool = True
    with_pieces: bool = False
    messages: Annotated[Many[Message], Field(min_length=1)] | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool = False
    add_generation_prompt: bool | None = None
    continue_final_message: bool | str = False
    chat_template: Annotated[str, Field(min_length=1)] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: Many[Tool] | None = None

    @model_validator(mode="after")
    def _one_of_two(self) -> Self:
        if [self.prompt, self.messages, self.content].count(None) != 2:
            raise InvalidRequestError(
                "send a prompt, messages or content, one of the three", param="prompt"
            )
        return self

    def chat(self) -> ChatCompletionRequest:
        """The messages as a chat request."""
        names = self.model_fields_set & ChatCompletionRequest.model_fields.keys()
        return read_body(ChatCompletionRequest, {name: getattr(self, name) for name in names})


class TokenizeResponse(BaseModel):
    """`max_model_len`: the length of the context. `token_strs`: the text of each token."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class TokenPiece(BaseModel):
    """A token and its text."""

    id: int
    piece: str


class ContentTokens(BaseModel):
    """The tokens of `content`, each with its text if that is asked for."""

    tokens: list[int] | list[TokenPiece]


class DetokenizeRequest(TokenBody):
    """Tokens, whose special tokens are written out."""

    tokens: Tokens


class DetokenizeResponse(BaseModel):
    """Their text, which is the `prompt` to vLLM and the `content` to llama-server."""

    prompt: str
    content: str
