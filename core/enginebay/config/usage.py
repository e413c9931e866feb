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
        if file != "off" and file == found.data.get("keys_file"):
            raise ValueError("must be another file than `server.keys_file`")
        return file
