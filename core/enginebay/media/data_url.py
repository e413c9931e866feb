"""Items that are in the request itself.

`data:` URLs (https://www.rfc-editor.org/rfc/rfc2397), or only the base64 that would be in one.
"""

import binascii
import re
from urllib.parse import unquote_to_bytes

from enginebay.contract.errors import InvalidRequestError
from enginebay.media.policy import ByteLimit

_LONGEST_HEAD = 200  # characters up to the comma
_MOST_ESCAPES = 100_000  # decoding each takes time of the event loop
_IN_BASE64 = {"%2B": "+", "%2b": "+", "%2F": "/", "%2f": "/", "%3D": "=", "%3d": "="}


def is_data(url: str) -> bool:
    """Whether it is a `data:` URL, or no URL at all, as it has no scheme."""
    head = url[:_LONGEST_HEAD]
    return ":" not in head or head.lower().startswith("data:")


def data_of(url: str, limit: ByteLimit) -> bytes:
    """The bytes in a `data:` URL, or of base64; `InvalidRequestError` if it is not well formed."""
    if ":" not in url[:_LONGEST_HEAD]:
        return _base64(url, limit)
    head, comma, _ = url[:_LONGEST_HEAD].partition(",")
    if not comma:
        raise InvalidRequestError(
            "the data URL is not valid: write data:image/png;base64, and then the data"
        )
    body = url[len(head) + 1 :]
    return _base64(body, limit) if head.lower().endswith(";base64") else _percent(body, limit)


def _base64(text: str, limit: ByteLimit) -> bytes:
    encoded = text
    if "%" in text:
        for escape, character in _IN_BASE64.items():
            encoded = encoded.replace(escape, character)
    try:
        limit.expect(len(encoded) // 4 * 3 - 2)  # before there is a copy of it
        data = binascii.a2b_base64(encoded, strict_mode=True)
    except ValueError as error:  # which binascii.Error and UnicodeError are
        space = re.search(r"\s|%0[adAD]|%20", text)
        wrong = f": a line break or space at its character {space.start() + 1}" if space else ""
        raise InvalidRequestError(
            f"it is not valid base64{wrong}; give that, or an http, https, data or file URL"
        ) from error
    limit.take(len(data))
    return data


def _percent(text: str, limit: ByteLimit) -> bytes:
    if text.count("%") > _MOST_ESCAPES:
        raise InvalidRequestError(
            f"the data URL has more than {_MOST_ESCAPES} characters written as %XX; send base64: "
            "data:image/png;base64, and then the data"
        )
    try:
        data = unquote_to_bytes(text)
    except UnicodeError as error:  # half of a character
        raise InvalidRequestError("the data URL is not valid: it is no Unicode text") from error
    limit.take(len(data))
    return data
