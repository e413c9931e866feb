"""Pictures that `enginebay chat` sends: files, as parts of a message."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from enginebay.cli.client import ApiError, body_of
from enginebay.contract.errors import InvalidRequestError
from enginebay.media.kinds import HEAD, format_of

if TYPE_CHECKING:
    import httpx2


def picture_part(path: Path) -> dict[str, Any]:
    """A file as a content part with a data URL.

    `InvalidRequestError` if it cannot be read, or is no picture by its first bytes.
    """
    try:
        with path.open("rb") as file:
            head = file.read(HEAD)
            found = format_of(head, "image")
            data = base64.b64encode(head + file.read()).decode()
    except OSError as error:
        raise InvalidRequestError(f"{path} cannot be read: {error.strerror}") from error
    except InvalidRequestError as error:
        raise InvalidRequestError(f"{path}: {error.message}") from error
    return {"type": "image_url", "image_url": {"url": f"data:{found.type};base64,{data}"}}


def require_sight(client: httpx2.Client, model: str) -> None:
    """`InvalidRequestError` if the server says that the model takes no pictures.

    Servers that do not say what a model takes, as for one that is not loaded, find out by being
    asked.
    """
    try:
        card = body_of(client.get(f"/v1/models/{quote(model, safe='')}"))
    except ApiError as error:
        if error.status == 404:
            return
        raise
    architecture = card.get("architecture") or {}
    takes = architecture.get("input_modalities", ["image"])
    if "image" not in takes:
        raise InvalidRequestError(
            f"the model {model!r} takes no pictures; what it takes: {', '.join(takes)}"
        )
