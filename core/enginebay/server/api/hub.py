"""`GET /v1/hub`: what a Hugging Face hub has to download."""

import asyncio
from typing import Annotated

from fastapi import APIRouter, Query, Request

from enginebay.models.downloads import models_of, search
from enginebay.models.files.recognise import backend_of
from enginebay.server.access.auth import needs
from enginebay.server.schemas.hub_bodies import HubModel, HubModels, HubRepositories
from enginebay.server.services import services

router = APIRouter(prefix="/hub", tags=["downloads"], dependencies=[needs("download_model")])


@router.get("/search")
async def search_hub(
    query: Annotated[str, Query(max_length=200)] = "",
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
) -> HubRepositories:
    """Repositories of models with these words in their names, most downloaded first."""
    found = await asyncio.to_thread(search, query, limit)
    return HubRepositories(data=found)


@router.get("/files")
async def hub_files(
    http: Request,
    repo_id: Annotated[str, Query(max_length=200)],
    revision: Annotated[str | None, Query(max_length=200)] = None,
) -> HubModels:
    """The models of a repository, with what they take on the disk, the recommended one first."""
    plugins = services(http).plugins

    def read() -> list[HubModel]:
        offered = models_of(repo_id, revision)
        return [
            HubModel.of(
                choice,
                backend_of(choice, plugins, offered.config_json),
                recommended=choice == offered.recommended,
            )
            for choice in offered.models
        ]

    return HubModels(repo_id=repo_id, data=await asyncio.to_thread(read))
