"""What `options` of a model may say; its `path` is the server's URL."""

import os
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr, model_validator

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


class Options(BaseModel):
    """Settings of one remote model."""

    model_config = ConfigDict(extra="forbid")

    api: Literal["auto", "chat", "completions"] = Field(
        "auto",
        description="Send messages to the chat API, or tokens to completions; auto: completions "
        "with a tokenizer, else chat.",
    )
    model: str | None = Field(
        None, description="What the server calls the model; not set, the first one it lists."
    )
    server: Server | None = Field(
        None, description="What the server is, if its address or list of models does not say."
    )
    api_key: SecretStr | None = Field(None, description="The key that the server asks for.")
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

    @property
    def chats(self) -> bool:
        """Whether messages go to the chat API."""
        return self.api == "chat" or (self.api == "auto" and self.tokenizer is None)

    def key(self) -> str | None:
        """The key, wherever it is."""
        if self.api_key is not None:
            return self.api_key.get_secret_value()
        return os.environ.get(self.api_key_env)

    def path_of_tokenizer(self, base: str) -> Path:
        """Where `tokenizer` is; relative paths start at the config's folder, `base`."""
        return Path(base) / Path(self.tokenizer or ".").expanduser()
