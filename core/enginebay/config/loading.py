"""The section `loading`: how many models are in memory, and how requests wait for them."""

import re
from typing import Annotated

from pydantic import AfterValidator, Field

from enginebay.config.saved_kv import SavedKvConfig
from enginebay.config.section import Section

_SHARE = r"^\d{1,3}(\.\d+)?\s*%$"


def _share(text: str) -> str:
    if re.match(_SHARE, text) and 0 < float(text.rstrip(" %")) <= 100:
        return text
    raise ValueError("must be a percentage such as 80%")


Share = Annotated[str, AfterValidator(_share), Field(json_schema_extra={"pattern": _SHARE})]
Size = Annotated[float, Field(gt=0)] | Share
"""GiB, or a share of the total such as `80%`."""


class _ModelsInMemory(Section):
    """The keys about models that come and go."""

    max_loaded_models: int | None = Field(
        None, ge=1, description="Maximum models in memory; others are unloaded. Unlimited if unset."
    )
    max_ram: Size | None = Field(
        None, description="Maximum RAM of all models together: GiB, or a share such as 80%."
    )
    max_gpu: Size | None = Field(
        None, description="Maximum GPU memory of all models together: GiB, or a share such as 80%."
    )
    check_memory: bool = Field(
        True,
        description="Unload idle models for one that does not fit free memory, or refuse that.",
    )
    timeout: float = Field(
        600, ge=0, description="Seconds a request waits for its model to load before it gets 503."
    )
    drain_timeout: float = Field(
        60,
        ge=0,
        description="Seconds that running requests get to finish before their model is unloaded.",
    )
    retry_after: float = Field(
        30,
        gt=0,
        description="Seconds before a request retries a failed model; doubled each time.",
    )
    from_model_dir: bool = Field(
        True, description="List what lies in server.model_dir; the first request for it loads it."
    )
    model_dir_idle_timeout: float = Field(
        600,
        ge=0,
        description="Seconds without a request after which such a model is unloaded; 0 is never.",
    )


class LoadingConfig(SavedKvConfig, _ModelsInMemory):
    """How many models are in memory at once, and how requests wait for them."""


def bytes_of(size: float | str | None, total: int) -> int | None:
    """A `Size` in bytes, given the `total`; None if unset."""
    if size is None:
        return None
    if isinstance(size, str):
        return int(total * float(size.rstrip(" %")) / 100)
    return int(size * 2**30)
