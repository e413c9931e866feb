"""`GET /metrics`."""

from fastapi import APIRouter, Request, Response

from enginebay.contract.errors import PermissionDeniedError
from enginebay.server.access.auth import is_admin, require_key
from enginebay.server.http.track import running_request
from enginebay.server.observe.key_metrics import KeyMetrics
from enginebay.server.observe.prometheus import CONTENT_TYPE
from enginebay.server.services import services

router = APIRouter(tags=["health"])


@router.get("/metrics", response_class=Response)
async def metrics(http: Request) -> Response:
    """Metrics in Prometheus format; the config says whether they need a key where others do not.

    A key that may use some of the models only is refused: all are named. Metrics by key, if the
    config asks for them, are for admins.
    """
    server = services(http).config.server
    if server.metrics == "keyed":
        await require_key(http)
    key = running_request(http).key
    if key and key.models is not None and not is_admin(http):
        raise PermissionDeniedError(
            f"the metrics name all models, and the key of {key.name} may use some of them only; "
            "use the key of an admin, or one without `models`"
        )
    models = services(http).models
    await models.measure()
    text = services(http).metrics.text()
    if server.key_metrics and is_admin(http):
        text += KeyMetrics(services(http).key_uses).text()
    return Response(text, headers={"Content-Type": CONTENT_TYPE})
