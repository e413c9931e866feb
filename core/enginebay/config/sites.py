"""Host names and web origins, in the form in which browsers send them.

Any other form would silently never match.
"""

import re
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator

from enginebay.config.section import Text

_HOST = re.compile(r"\*|(\*\.)?[a-z0-9_-]+(\.[a-z0-9_-]+)*", re.IGNORECASE)
_WEB_ORIGIN = re.compile(r"https?://([a-z0-9_.-]+|\[[0-9a-f:.]+\])(:\d+)?")
_OTHER_ORIGIN = re.compile(r"(?!https?:)[a-z][a-z0-9+.-]*://.*")


def _host(text: str) -> str:
    if _HOST.fullmatch(text):
        return text
    meant = _hostname(text)
    such_as = f", such as {meant!r}" if _HOST.fullmatch(meant) else ""
    raise ValueError(f"must be a host name without scheme and port{such_as}")


def _origin(text: str) -> str:
    """https://www.rfc-editor.org/rfc/rfc6454#section-6.2; apps have their own schemes."""
    if text in ("*", "null") or _WEB_ORIGIN.fullmatch(text) or _OTHER_ORIGIN.fullmatch(text):
        return text
    scheme, _, place = text.lower().rpartition("://")
    meant = f"{scheme or 'https'}://{place.partition('/')[0]}"
    example = meant if _WEB_ORIGIN.fullmatch(meant) else "https://chat.example"
    raise ValueError(f"must be scheme, host and port as browsers send them, such as {example!r}")


def _hostname(text: str) -> str:
    try:
        return urlsplit(text if "://" in text else f"//{text}").hostname or ""
    except ValueError:
        return ""


Host = Annotated[Text, AfterValidator(_host)]
"""A host name of the server, or `*.` and a suffix."""

Origin = Annotated[Text, AfterValidator(_origin)]
"""A web page's origin: `https://chat.example`, `null`, `*` for any."""
