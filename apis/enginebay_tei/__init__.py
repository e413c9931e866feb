"""The API of TEI, Hugging Face's Text Embeddings Inference."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from enginebay import Register, Wing, hookimpl

if TYPE_CHECKING:
    from fastapi import APIRouter

    from enginebay.kernel import Kernel


class Tei(Wing):
    """`/embed` and `/info`."""

    name = "tei"

    def routers(self, kernel: "Kernel") -> "Iterable[APIRouter]":
        from enginebay.kernel import under_v1
        from enginebay_tei.routes import router

        return under_v1(router)


@hookimpl
def register_wings(register: Register[Wing]) -> None:
    """Register the API."""
    register("tei", Tei())
