"""KoboldAI's and KoboldCpp's API: https://lite.koboldai.net/koboldcpp_api."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from enginebay import ErrorForm, Register, ServingError, Wing, hookimpl

if TYPE_CHECKING:
    from fastapi import APIRouter

    from enginebay.kernel import Kernel

API_VERSION = "1.2.5"
"""KoboldAI's, as KoboldCpp has it."""


class Kobold(Wing):
    """`/api/v1`, `/api/latest` and `/api/extra`."""

    name = "kobold"
    is_api = True

    def routers(self, kernel: "Kernel") -> "Iterable[APIRouter]":
        from enginebay_kobold.genkeys import RunningTexts
        from enginebay_kobold.routes import router

        kernel.keep(RunningTexts())
        return [router]

    def error_forms(self) -> Mapping[str, ErrorForm]:
        return dict.fromkeys(("/api/v1", "/api/latest", "/api/extra"), ErrorForm(_error))

    def service_info(self) -> Mapping[str, Mapping[str, str]]:
        return {
            "koboldai": {
                "name": "KoboldAI API",
                "version": API_VERSION,
                "rel_url": "/api",
                "relative_url": "/api",
                "documentation": "https://lite.koboldai.net/koboldcpp_api",
            }
        }


def _error(error: ServingError, status: int, request_id: str) -> Mapping[str, Any]:
    return {"detail": {"msg": error.shown_message, "type": error.type}}


@hookimpl
def register_wings(register: Register[Wing]) -> None:
    """Register the API."""
    register("kobold", Kobold())
