"""The web UI at `/`, and the API's documentation at `/docs`."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from enginebay import Register, Wing, hookimpl
from enginebay.plugins import is_there

if TYPE_CHECKING:
    from fastapi import APIRouter

    from enginebay.kernel import Kernel


SWAGGER_UI = "fastapi_offline"
"""The package with the files of Swagger UI."""


class Page(Wing):
    """Files, none of them from the network. They hold no secrets, so they need no key."""

    name = "page"
    public = ("/docs", "/docs/assets/", "/page/")

    def routers(self, kernel: "Kernel") -> "Iterable[APIRouter]":
        from enginebay_page.routes import router

        return [router]

    def links(self) -> Mapping[str, str]:
        docs = {"API docs": "/docs"} if is_there(SWAGGER_UI) else {}
        return {"Page": "", **docs}


@hookimpl
def register_wings(register: Register[Wing]) -> None:
    """Register the page."""
    register("page", Page())
