"""The keys of `server` about what API keys use."""

from pydantic import Field

from core.config.section import Section, Text


class UsageConfig(Section):
    """Where usage is kept, and who sees it."""

    usage_file: Text = Field(
        "usage.db",
        description="SQLite file of tokens by key, model and day; off: only until a restart.",
    )
    metrics_by_key: bool = Field(
        False, description="Also have metrics with the label key in /metrics, for admins."
    )
