"""The section `responses` of the config."""

from pydantic import Field

from enginebay.config.section import Section, Text


class ResponsesSettings(Section):
    """OpenAI's Responses API, and the answers that it keeps."""

    store: Text = Field(
        "memory",
        description="Where answers of /v1/responses are kept: memory, off, or a SQLite file.",
    )
    store_entries: int = Field(
        1000, gt=0, description="Maximum number of kept answers; the least recently used go first."
    )
    store_bytes: int = Field(
        64_000_000, gt=0, description="Maximum size of all kept answers, in bytes."
    )
    store_days: float = Field(
        30, gt=0, description="Days after which an answer that was not used is no longer kept."
    )
