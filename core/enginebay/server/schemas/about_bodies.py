"""Bodies of the routes about the server."""

from typing import Literal

from pydantic import BaseModel


class Version(BaseModel):
    """vLLM's answer."""

    version: str


class Permission(BaseModel):
    """The permission of the request's key, in TabbyAPI's form."""

    permission: Literal["admin", "api"]


class GenerationSettings(BaseModel):
    """`n_ctx`: the length of the context."""

    n_ctx: int


class Modalities(BaseModel):
    """Input modalities of a model besides text, by llama-server's names."""

    vision: bool
    audio: bool
    video: bool


class Props(BaseModel):
    """What llama.cpp and TabbyAPI report about a model.

    `chat_template` is its source, which SillyTavern hashes to find out what model it is for.
    `total_slots`: how many choices are decoded at once, at most.
    """

    chat_template: str | None = None
    bos_token: str | None = None
    eos_token: str | None = None
    default_generation_settings: GenerationSettings
    total_slots: int | None = None
    model_alias: str
    modalities: Modalities


class Software(BaseModel):
    """A server."""

    name: str
    version: str
    repository: str
    homepage: str


class Api(BaseModel):
    """An API and where it is served; TabbyAPI calls that `relative_url`."""

    name: str
    version: str
    rel_url: str
    relative_url: str
    documentation: str


class ServiceInfo(BaseModel):
    """The software and its APIs: https://github.com/Haidra-Org/AI-Horde/wiki/serviceinfo."""

    version: Literal["0.2"] = "0.2"
    software: Software
    api: dict[str, Api]


class ConfigReload(BaseModel):
    """`POST /v1/config/reload`: names of models, and keys whose new values need a restart."""

    object: Literal["config.reload"] = "config.reload"
    added: list[str]
    removed: list[str]
    changed: list[str]
    needs_restart: list[str]
