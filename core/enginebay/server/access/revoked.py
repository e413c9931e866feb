"""Answers end when their API key is revoked."""

import asyncio

from enginebay.chat.answer.running import RunningRequests
from enginebay.config.keys import Key
from enginebay.contract.errors import KeyRevokedError, ServingError
from enginebay.models.permissions import may_use
from enginebay.models.registry import Models
from enginebay.server.access.key_store import LOOK_EVERY, KeyStore


async def end_revoked(keys: KeyStore, requests: RunningRequests, models: Models) -> None:
    """Look for changes of the keys every second until cancelled, and end what may not go on.

    These are the requests with keys that were removed or rotated, or may not use their model.
    """
    seen = keys.known()
    while True:
        await asyncio.sleep(LOOK_EVERY)
        await keys.look()
        known = keys.known()
        if known is not seen:
            cancel_revoked(known, requests, models)
            seen = known


def cancel_revoked(known: tuple[Key, ...], requests: RunningRequests, models: Models) -> None:
    """Cancel requests that these keys do not allow."""
    by_digest = {key.digest: key for key in known}
    for request in requests:
        if request.key is None:
            continue
        key = by_digest.get(request.key.digest)
        if key is None:
            message = f"the API key of {request.key.name} is not valid any more"
        elif request.model and _lost(request.model, request.key, key, models):
            message = f"the API key of {key.name} may not use {request.model} any more"
        else:
            continue
        request.cancel(KeyRevokedError(message))


def _lost(model: str, before: Key, now: Key, models: Models) -> bool:
    """Whether a key could use a model by its name, and cannot any more."""
    try:
        found = models.look_up(model)
    except ServingError:  # it has gone, which is another matter
        return False
    return may_use(before, found.entry, found.adapter) and not may_use(
        now, found.entry, found.adapter
    )
