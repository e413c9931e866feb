"""The keys of `loading` about sequences that leave a model's memory."""

from pathlib import Path

from pydantic import Field, ValidationInfo, field_validator

from enginebay.config.section import Section, Text
from enginebay.contract.backend_settings import KvStoreSettings

_LARGEST = 100_000


class SavedKvConfig(Section):
    """Where the KV of conversations goes, so that they need not be read again."""

    cache_ram: float = Field(
        0,
        ge=0,
        le=_LARGEST,
        description="GiB of RAM in which each model keeps conversations beside its KV cache.",
    )
    cache_dir: Text | None = Field(
        None,
        description="Folder in which models keep them over unloads and restarts; off if unset.",
    )
    cache_disk: float = Field(
        20,
        gt=0,
        le=_LARGEST,
        description="Maximum GiB of that folder; the least recently used go first.",
    )
    cache_key_file: Text | None = Field(
        None, description="File with a secret that encrypts what is in that folder."
    )

    @field_validator("cache_key_file")
    @classmethod
    def _is_for_a_folder(cls, file: str | None, found: ValidationInfo) -> str | None:
        if file and found.data.get("cache_dir") is None:
            raise ValueError("encrypts nothing without `loading.cache_dir`; set that, too")
        return file

    def kv_store(self, base: Path) -> KvStoreSettings | None:
        """The settings of an engine's store, None if there is to be none; `base`: of paths."""
        if not (self.cache_ram or self.cache_dir):
            return None

        def absolute(path: str | None) -> str | None:
            return str(base / Path(path).expanduser()) if path else None

        return KvStoreSettings(
            ram=int(self.cache_ram * 2**30),
            folder=absolute(self.cache_dir),
            disk=int(self.cache_disk * 2**30),
            key_file=absolute(self.cache_key_file),
        )
