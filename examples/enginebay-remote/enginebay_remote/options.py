"""What `options` of a model may say; its `path` is the server's URL."""

import os
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    field_validator,
    model_validator,
)

from enginebay import Modality

Server = Literal[
    "enginebay",
    "vllm",
    "sglang",
    "llama-server",
    "openai",
    "openrouter",
    "deepseek",
    "mistral",
    "other",
]


def is_url(text: str) -> bool:
    """Whether it is the address of a server."""
    if not is_plain(text) or {*"?# "} & {*text}:
        return False
    try:
        url = urlsplit(text)
        host = (url.hostname or "").encode("idna")  # which finds labels that are none
        return url.scheme in ("http", "https") and bool(host) and url.port != 0
    except ValueError:  # of a port that is no number, or half an IPv6 address
        return False


def is_plain(text: str) -> bool:
    """Whether a header can have it."""
    return text.isascii() and text.isprintable()


def _plain_key(key: SecretStr) -> SecretStr:
    if not is_plain(key.get_secret_value()):
        raise ValueError("a key is printable ASCII; this one may be shortened, or have a line end")
    return key


Key = Annotated[SecretStr, Field(min_length=1), AfterValidator(_plain_key)]
"""A key that a server asks for."""


def same_address(url: str) -> str:
    """What is equal for addresses of one server, with `/v1` or without."""
    return url.rstrip("/").removesuffix("/v1").lower()


class ServerOptions(BaseModel):
    """One of several servers."""

    model_config = ConfigDict(extra="forbid")

    url: str = Field(description="The server's address, such as http://host:5000/v1.")
    weight: float = Field(
        1,
        ge=0.01,
        allow_inf_nan=False,
        description="How many requests it gets, compared with the others.",
    )
    drain: bool = Field(
        False, description="Give it no new requests; those that run there go on to their end."
    )
    api_key: Key | None = Field(None, description="Its key, if not that of the others.")
    api_key_env: str | None = Field(
        None, description="The environment variable that its key is in, if not here."
    )

    @field_validator("url")
    @classmethod
    def _is_address(cls, url: str) -> str:
        if not is_url(url):
            raise ValueError(
                "must be a server's URL, such as http://host:8000/v1: ASCII without ?, # and spaces"
            )
        return url


def _from_address(value: Any) -> Any:
    return {"url": value} if isinstance(value, str) else value


AnyServer = Annotated[
    ServerOptions,
    BeforeValidator(_from_address, json_schema_input_type=str | ServerOptions),
]
"""A server's options, or its address alone."""


class Options(BaseModel):
    """Settings of one remote model."""

    model_config = ConfigDict(extra="forbid")

    api: Literal["auto", "chat", "completions"] = Field(
        "auto",
        description="Send messages to the chat API, or tokens to completions; auto: completions "
        "with a tokenizer, else chat.",
    )
    model: str | None = Field(
        None,
        description="Name of the model on the servers. If unset, the name or an alias of the model "
        "here, or the only model that a server lists.",
    )
    servers: list[AnyServer] = Field(
        default=[],
        description="Further servers of the same model, beside the one at `path`: addresses, or "
        "mappings of `url`, `weight`, `drain` and a key. `path` may be among them, to say more "
        "of it.",
    )
    server: Server | None = Field(
        None, description="What the server is, if its address or list of models does not say."
    )
    api_key: Key | None = Field(None, description="The key that the server asks for.")
    api_key_env: str = Field(
        "ENGINEBAY_REMOTE_API_KEY", description="The environment variable it is in, if not here."
    )
    tokenizer: str | None = Field(
        None,
        description="The model's folder, or its tokenizer.json, for completions.",
    )
    context_length: int | None = Field(
        None, gt=0, description="Tokens of prompt and answer, if the server does not say."
    )
    modalities: list[Modality] | None = Field(
        None,
        description="Kinds of media that messages may have; not set, those that the server's list "
        "of models names, else all.",
    )
    timeout: float = Field(
        600, gt=0, description="Seconds to wait for the next byte; a long prompt is silent."
    )
    connect_timeout: float = Field(5, gt=0, description="Seconds to wait for a connection.")
    retries: int = Field(2, ge=0, description="How often to try again before the first token.")
    extra_body: dict[str, Any] = Field(
        default={},
        description="Further fields of every request to the server; null takes a field out.",
    )

    @model_validator(mode="after")
    def _media_need_messages(self) -> Self:
        if self.modalities and not self.chats:
            raise ValueError("modalities need `api: chat`: completions take no media")
        return self

    @field_validator("servers")
    @classmethod
    def _each_once(cls, servers: list[ServerOptions]) -> list[ServerOptions]:
        seen = set[str]()
        for server in servers:
            if (address := same_address(server.url)) in seen:
                raise ValueError(f"{server.url} is there twice")
            seen.add(address)
        return servers

    @property
    def chats(self) -> bool:
        """Whether messages go to the chat API."""
        return self.api == "chat" or (self.api == "auto" and self.tokenizer is None)

    def key(self, server: ServerOptions | None = None) -> str | None:
        """The key, wherever it is; that of one server, if it has its own."""
        for keeper in (server, self):
            if keeper and keeper.api_key is not None:
                return keeper.api_key.get_secret_value()
            if keeper and keeper.api_key_env:
                return os.environ.get(keeper.api_key_env)
        return None

    def path_of_tokenizer(self, base: str) -> Path:
        """Where `tokenizer` is; relative paths start at the config's folder, `base`."""
        return Path(base) / Path(self.tokenizer or ".").expanduser()
