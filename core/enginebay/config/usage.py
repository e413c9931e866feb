"""The keys of `server` about what API keys use."""

from pydantic import Field, ValidationInfo, field_validator

from enginebay.config.section import Section, Text


class UsageConfig(Section):
    """Where usage is kept, and who sees it."""

    usage_file: Text = Field(
        "usage.db",
        description="SQLite file of tokens by key, model and day; off: only until a restart.",
    )
    key_metrics: bool = Field(
        False, description="Also have metrics with the label key in /metrics, for admins."
    )

    @field_validator("usage_file")
    @classmethod
    def _is_a_file_of_its_own(cls, file: str, found: ValidationInfo) -> str:
        for other in ("response_store", "keys_file"):
            if file != "off" and file == found.data.get(other):
                raise ValueError(f"must be another file than `server.{other}`")
        return file
