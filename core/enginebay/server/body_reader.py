"""JSON bodies of requests, read without holding up the event loop."""

import asyncio
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar, TypeVarTuple

from enginebay.chat.schemas.half_characters import ESCAPED_HALF, whole
from enginebay.contract.errors import InvalidRequestError

SMALL = 8192
"""Bytes of a body that is read on the event loop: its 2,700 empty messages take 25 ms."""

_Given = TypeVarTuple("_Given")
_Result = TypeVar("_Result")


class BodyReader:
    """Parses and validates the bodies of one server; used on its event loop.

    A large body is read on a thread, one body at a time. The thread gives the event loop its turn
    between two items of a list (`Many`), so however large a body is, streams go on.
    """

    def __init__(self, most_items: int) -> None:
        """`most_items`: objects in a body, and fields in one object."""
        self._most_items = most_items
        self._thread = ThreadPoolExecutor(1, "enginebay-bodies")

    async def read(
        self, body: bytes, validate: Callable[[Any], _Result]
    ) -> tuple[_Result, list[str]]:
        """Return the validated body, and the paths of texts that had half characters.

        Raises `InvalidRequestError`, `UnicodeDecodeError`, and what `json.loads` raises.
        """
        if len(body) <= SMALL:
            return self._read(body, validate)
        return await self.run(self._read, body, validate)

    async def run(self, work: Callable[[*_Given], _Result], *args: *_Given) -> _Result:
        """Return what `work` returns or raises, which is called on the thread."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, work, *args)

    def close(self) -> None:
        """Stop the thread."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _read(self, body: bytes, validate: Callable[[Any], _Result]) -> tuple[_Result, list[str]]:
        text = body.decode("utf-8-sig")
        value = json.loads(text)
        self._count(value)
        places: list[str] = []
        if ESCAPED_HALF.search(text):
            value, places = whole(value, shared=False)
        return validate(value), places

    def _count(self, body: Any) -> None:
        """Raise `InvalidRequestError` for too many items; lists of numbers and texts are free."""
        whole = {"": body} if not isinstance(body, dict) else {"": {}, **body}
        left = self._most_items
        if len(whole) > left:
            raise InvalidRequestError(f"the body has more than {left} fields{self._hint}")
        for name, value in whole.items():
            found = [value]
            while found:
                part = found.pop()
                if isinstance(part, dict):
                    left -= 1
                    size, parts = len(part), list(part.values())
                elif isinstance(part, list):
                    size, parts = 0, part
                else:
                    continue
                if left < 0 or size > self._most_items:
                    what = "fields in one object" if left >= 0 else "objects"
                    at = f"{name}: " if name else ""
                    raise InvalidRequestError(
                        f"{at}the body has more than {self._most_items} {what}{self._hint}",
                        param=name or None,
                    )
                found += [each for each in parts if isinstance(each, dict | list)]

    @property
    def _hint(self) -> str:
        return "; server.max_request_items sets this limit"
