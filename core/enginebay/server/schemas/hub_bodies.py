"""Bodies of `/v1/hub`: what a hub has."""

from typing import Literal

from pydantic import BaseModel

from enginebay.models.downloads import Choice, FoundRepository


class HubRepositories(BaseModel):
    """What a search found, most downloaded first."""

    object: Literal["list"] = "list"
    data: list[FoundRepository]


class HubModel(BaseModel):
    """A model of a repository: `name` is its `quant` for `/v1/download`, `size` in bytes.

    `backend`: the installed one that its files fit; null if none does.
    """

    name: str
    files: list[str]
    size: int
    recommended: bool
    backend: str | None

    @classmethod
    def of(cls, choice: Choice, backend: str | None, *, recommended: bool) -> "HubModel":
        """One of the choices."""
        return cls(
            name=choice.name,
            files=[file.name for file in choice.files],
            size=choice.size,
            recommended=recommended,
            backend=backend,
        )


class HubModels(BaseModel):
    """The models of a repository, the recommended one first."""

    object: Literal["list"] = "list"
    repo_id: str
    data: list[HubModel]
