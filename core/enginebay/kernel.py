"""What a wing gets of the server. It may change at any time, with the wings of Enginebay itself."""

from fastapi import APIRouter

from enginebay.server.peers import Answers, Peers
from enginebay.server.services import Services as Kernel
from enginebay.serving.parts import Parts

__all__ = ["Answers", "Kernel", "Parts", "Peers", "under_v1"]


def under_v1(router: APIRouter) -> list[APIRouter]:
    """Return the router below `/v1`, and below nothing, where `/docs` does not show it."""
    below, above = APIRouter(), APIRouter()
    below.include_router(router, prefix="/v1")
    above.include_router(router, include_in_schema=False)
    return [below, above]
