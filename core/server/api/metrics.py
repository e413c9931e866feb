"""`GET /metrics`."""

from fastapi import APIRouter, Request, Response

from core.config.schema import ServerConfig
from core.models.registry import Models
from core.server.access.auth import require_key
from core.server.access.hosts import is_loopback
from core.server.observe.prometheus import CONTENT_TYPE, Metrics

router = APIRouter(tags=["health"])


@router.get("/metrics", response_class=Response)
async def metrics(http: Request) -> Response:
    """Counts and times in Prometheus' form; whether it needs a key is in the config."""
    server: ServerConfig = http.app.state.config.server
    if server.metrics == "keyed" or not is_loopback(server.host):
        await require_key(http)
    models: Models = http.app.state.models
    await models.measure()
    counted: Metrics = http.app.state.metrics
    return Response(counted.text(), headers={"Content-Type": CONTENT_TYPE})
