"""Small routes of llama-server that frontends use."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from enginebay import Register, Wing, hookimpl

if TYPE_CHECKING:
    from fastapi import APIRouter

    from enginebay.kernel import Kernel


class LlamaServer(Wing):
    """`/infill`, `/apply-template` and `/chat/completions/input_tokens`."""

    name = "llama_server"

    def routers(self, kernel: "Kernel") -> "Iterable[APIRouter]":
        from enginebay.kernel import under_v1
        from enginebay_llama_server.routes import router

        return under_v1(router)


@hookimpl
def register_wings(register: Register[Wing]) -> None:
    """Register the API."""
    register("llama_server", LlamaServer())
