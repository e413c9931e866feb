"""OpenAI's Responses API: https://platform.openai.com/docs/api-reference/responses."""

from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from enginebay import Register, Wing, hookimpl
from enginebay_responses.settings import ResponsesSettings

if TYPE_CHECKING:
    from fastapi import APIRouter

    from enginebay.config.schema import Config
    from enginebay.kernel import Kernel

_STORE = ("store", "store_entries", "store_bytes", "store_days")


class Responses(Wing):
    """`/v1/responses`, with a store of answers."""

    name = "responses"
    settings = ResponsesSettings
    moved: Mapping[str, str] = {f"server.response_{key}": f"responses.{key}" for key in _STORE}
    is_api = True

    def routers(self, kernel: "Kernel") -> "Iterable[APIRouter]":
        from enginebay.kernel import under_v1
        from enginebay_responses.responses import Responses
        from enginebay_responses.routes import router
        from enginebay_responses.store.open_store import open_store
        from enginebay_responses.store.store import ResponseStore

        settings = kernel.config.section(ResponsesSettings) or ResponsesSettings()
        store: ResponseStore | None = None
        if settings.store != "off":  # a wing that shares answers between servers keeps one
            store = kernel.find(ResponseStore) or open_store(settings, kernel.config.base)
        kernel.keep(Responses(kernel.serving, store))
        return under_v1(router)

    def problems(self, config: "Config") -> Iterable[tuple[tuple[str, ...], str]]:
        settings = config.section(ResponsesSettings)
        if settings and settings.store not in ("off", "memory"):
            for other in ("usage_file", "keys_file"):
                if settings.store == getattr(config.server, other):
                    yield ("responses", "store"), f"must be another file than `server.{other}`"

    @asynccontextmanager
    async def running(self, kernel: "Kernel") -> AsyncGenerator[None, None]:
        from enginebay_responses.responses import Responses

        yield
        if store := kernel.kept(Responses).store:
            await store.close()


@hookimpl
def register_wings(register: Register[Wing]) -> None:
    """Register the API."""
    register("responses", Responses())
