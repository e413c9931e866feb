"""Anthropic's API: https://docs.claude.com/en/api/messages."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from enginebay import ErrorForm, Register, Wing, hookimpl

if TYPE_CHECKING:
    from fastapi import APIRouter

    from enginebay.kernel import Kernel


class Messages(Wing):
    """`/v1/messages` and `/v1/messages/count_tokens`."""

    name = "messages"
    is_api = True

    def routers(self, kernel: "Kernel") -> "Iterable[APIRouter]":
        from enginebay.kernel import under_v1
        from enginebay_messages.routes import router

        return under_v1(router)

    def error_forms(self) -> Mapping[str, ErrorForm]:
        from enginebay_messages.errors import error_body

        form = ErrorForm(error_body, id_header="request-id")
        return dict.fromkeys(("/v1/messages", "/messages"), form)


@hookimpl
def register_wings(register: Register[Wing]) -> None:
    """Register the API."""
    register("messages", Messages())
