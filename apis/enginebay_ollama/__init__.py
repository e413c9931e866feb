"""Ollama's API: https://github.com/ollama/ollama/blob/main/docs/api.md."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from enginebay import ErrorForm, Register, ServingError, Wing, hookimpl

if TYPE_CHECKING:
    from fastapi import APIRouter

    from enginebay.kernel import Kernel


class Ollama(Wing):
    """`/api`."""

    name = "ollama"
    moved: Mapping[str, str] = {"server.ollama_port": "server.second_port"}
    is_api = True
    greeting = "Ollama is running"

    def routers(self, kernel: "Kernel") -> "Iterable[APIRouter]":
        from enginebay.models.files.model_paths import ModelPaths
        from enginebay_ollama.model_cards import ModelCards
        from enginebay_ollama.routes import router

        kernel.keep(ModelCards(kernel.plugins, ModelPaths(kernel.config, kernel.plugins)))
        return [router]

    def error_forms(self) -> Mapping[str, ErrorForm]:
        return {"/api/": ErrorForm(_error)}


def _error(error: ServingError, status: int, request_id: str) -> Mapping[str, Any]:
    return {"error": error.shown_message}


@hookimpl
def register_wings(register: Register[Wing]) -> None:
    """Register the API."""
    register("ollama", Ollama())
