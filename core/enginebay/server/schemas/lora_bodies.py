"""Bodies of `/v1/lora*`, those of TabbyAPI."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from enginebay.config.field_types import Many, ModelName


class LoraCard(BaseModel):
    """A LoRA; `scaling` is its strength where it is loaded."""

    id: str
    object: Literal["lora"] = "lora"
    created: int
    owned_by: str = "enginebay"
    scaling: float | None = None


class LoraList(BaseModel):
    """Some LoRAs."""

    object: Literal["list"] = "list"
    data: list[LoraCard]


class LoraToLoad(BaseModel):
    """A file or folder of `lora_dir`; `scaling` not set is 1."""

    model_config = ConfigDict(extra="allow")

    name: Annotated[str, Field(min_length=1)]
    scaling: Annotated[float, Field(allow_inf_nan=False)] | None = None


class LoraLoadRequest(BaseModel):
    """LoRAs to load. `skip_queue`: nothing waits here, so there is nothing to skip."""

    model_config = ConfigDict(extra="allow")

    loras: Annotated[Many[LoraToLoad], Field(min_length=1, max_length=64)]
    model: ModelName | None = None
    skip_queue: bool | None = None

    @property
    def unknown_fields(self) -> list[str]:
        """Names of fields that mean nothing here."""
        extras = [self.model_extra, *(lora.model_extra for lora in self.loras)]
        return sorted({name for extra in extras for name in extra or ()})

    @field_validator("loras")
    @classmethod
    def _unique(cls, loras: list[LoraToLoad]) -> list[LoraToLoad]:
        names = [lora.name for lora in loras]
        if repeated := [name for name in names if names.count(name) > 1]:
            raise ValueError(f"{repeated[0]!r} appears twice")
        return loras


class LoraUnloadRequest(BaseModel):
    """The model to unload all LoRAs from; not set, the default one."""

    model_config = ConfigDict(extra="allow")

    model: ModelName | None = None


class LoraLoadResponse(BaseModel):
    """What was loaded and what was not; `errors` says why, by name."""

    success: list[str]
    failure: list[str] = []
    errors: dict[str, str] = {}


class LoraUnloadResponse(BaseModel):
    """What was unloaded."""

    success: list[str]
