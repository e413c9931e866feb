"""The keys of `server` about the APIs beside OpenAI's chats and completions."""

from pydantic import Field, ValidationInfo, field_validator

from enginebay.config.section import Section, Text


class ApisConfig(Section):
    """Which APIs there are, and what they keep."""

    apis: list[Text] | None = Field(
        None,
        description="APIs to serve beside chats and completions; all of them if unset.",
    )
    ollama_port: int | None = Field(
        None,
        ge=0,
        le=65535,
        description="A second port, for clients that look for an Ollama at 11434; none if unset.",
    )
    response_store: Text = Field(
        "memory",
        description="Where answers of /v1/responses are kept: memory, off, or a SQLite file.",
    )
    response_store_entries: int = Field(
        1000, gt=0, description="Maximum number of kept answers; the least recently used go first."
    )
    response_store_bytes: int = Field(
        64_000_000, gt=0, description="Maximum size of all kept answers, in bytes."
    )
    response_store_days: float = Field(
        30, gt=0, description="Days after which an answer that was not used is no longer kept."
    )

    @field_validator("ollama_port")
    @classmethod
    def _is_for_an_api_that_there_is(cls, port: int | None, found: ValidationInfo) -> int | None:
        if port is not None and "ollama" not in (found.data.get("apis") or ("ollama",)):
            raise ValueError("needs `ollama` among `server.apis`")
        return port
