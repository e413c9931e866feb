"""`GET /v1/usage`: what API keys have used."""

from dataclasses import asdict
from datetime import timedelta
from typing import Annotated

from fastapi import APIRouter, Query, Request

from enginebay.contract.errors import PermissionDeniedError
from enginebay.server.access.auth import is_admin
from enginebay.server.http.track import running_request
from enginebay.server.schemas.usage_answers import LimitEntry, UsageEntry, UsageLimits, UsageList
from enginebay.server.services import services
from enginebay.server.usage.limit_use import LimitUse

router = APIRouter(tags=["usage"])


@router.get("/usage")
async def get_usage(
    http: Request, days: Annotated[int, Query(ge=1, le=36_500)] = 30, key: str | None = None
) -> UsageList:
    """Requests and tokens by day (UTC), key and model, of the last days with today.

    Of the key that asks. Admins get all, or those of one `key`; an empty one stands for requests
    without a key.
    """
    own, everybody = running_request(http).key, is_admin(http)
    name = own.name if own else ""
    if not everybody and key not in (None, name):
        raise PermissionDeniedError("only admins see what other keys have used")
    uses = services(http).key_uses
    uses.record()
    since = uses.records.now().date() - timedelta(days=days - 1)
    found = await uses.records.usage(since, key if everybody else name)
    limits = uses.of(own).limits(own) if own else {}
    return UsageList(
        data=[
            UsageEntry(key=slot.key or None, model=slot.model, day=slot.day, **asdict(used))
            for slot, used in found.items()
        ],
        limits=UsageLimits(**{name: _entry(limit) for name, limit in limits.items()}),
    )


def _entry(limit: LimitUse) -> LimitEntry:
    return LimitEntry(
        limit=limit.limit, used=limit.used, remaining=limit.remaining, reset_s=limit.reset_s
    )
