"""`GET /metrics`."""

from fastapi import APIRouter, Request, Response

from core.server.access.auth import is_admin, require_key
from core.server.access.forwarded import came_through_proxy
from core.server.access.hosts import others_can_connect
from core.server.observe.key_metrics import KeyMetrics
from core.server.observe.prometheus import CONTENT_TYPE
from core.server.services import services

router = APIRouter(tags=["health"])


@router.get("/metrics", response_class=Response)
async def metrics(http: Request) -> Response:
    """Metrics in Prometheus format; the config says whether it needs a key.

    Those by key, if the config asks for them, are for admins.
    """
    server = services(http).config.server
    others = others_can_connect(server) or came_through_proxy(http.scope)
    if server.metrics == "keyed" or others:
        await require_key(http)
    models = services(http).models
    await models.measure()
    text = services(http).metrics.text()
    if server.key_metrics and is_admin(http):
        text += KeyMetrics(services(http).key_uses).text()
    return Response(text, headers={"Content-Type": CONTENT_TYPE})
