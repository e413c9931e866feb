"""`GET /metrics`."""

from ipaddress import ip_address

from fastapi import APIRouter, Request, Response

from core.access.auth import require_key
from core.config.schema import ServerConfig
from core.models import Models
from core.observe.metrics import CONTENT_TYPE, Metrics

router = APIRouter(tags=["health"])


@router.get("/metrics", response_class=Response)
async def metrics(http: Request) -> Response:
    """Counts and times in Prometheus' form; whether it needs a key is in the config."""
    server: ServerConfig = http.app.state.config.server
    if server.metrics == "keyed" or not _is_loopback(server.host):
        await require_key(http)
    models: Models = http.app.state.models
    await models.measure()
    counted: Metrics = http.app.state.metrics
    return Response(counted.text(), headers={"Content-Type": CONTENT_TYPE})


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
