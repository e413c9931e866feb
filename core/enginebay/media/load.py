"""All media of a request: from what a client sent to items that an engine can have."""

import asyncio
import logging
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from enginebay.contract.errors import InvalidRequestError
from enginebay.contract.media import Media, MediaOption, Modality
from enginebay.media.data_url import data_of, is_data
from enginebay.media.fetch import Fetcher
from enginebay.media.kinds import NOUNS, format_of
from enginebay.media.local_files import local_file
from enginebay.media.network import Resolver
from enginebay.media.pictures import check_picture
from enginebay.media.policy import ByteLimit, MediaPolicy

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaSource:
    """Where an item is: an http, https, data or file URL, or base64.

    `param`: the part of the request that says so, for errors. `options`: of the item.
    """

    kind: Modality
    url: str = field(repr=False)
    param: str
    options: Mapping[str, MediaOption] = field(default_factory=dict)


class MediaLoader:
    """Loads the items of requests; one for a server, whose fetches it limits together."""

    def __init__(
        self,
        policy: MediaPolicy,
        *,
        resolve: Resolver | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._policy = policy
        self._fetcher = Fetcher(policy, resolve=resolve, tls=tls)

    def close(self) -> None:
        """Fetch nothing more."""
        self._fetcher.close()

    def check_passed_on(self, sources: Sequence[MediaSource]) -> None:
        """Raise for the first URL that may not be passed on to another server, which fetches it."""
        for source in sources:
            try:
                if not is_data(source.url):
                    self._fetcher.check(source.url)
            except InvalidRequestError as error:
                raise type(error)(error.message, param=source.param) from None

    async def load(self, sources: Sequence[MediaSource], salt: str | None = None) -> list[Media]:
        """The items, in this order and with this salt, none of them decoded yet.

        The first that cannot be had is an `InvalidRequestError` with its `param`; the others are
        given up, and their connections closed, as they are if this is cancelled. What was sent is
        looked at before anything is fetched.
        """
        if len(sources) > self._policy.items:
            raise InvalidRequestError(
                f"there are {len(sources)} pictures, sounds and videos in the request; the most "
                f"are {self._policy.items} (server.max_media_items)",
                param=sources[self._policy.items].param,
            )
        whole = ByteLimit(
            self._policy.request_bytes,
            "(server.max_media_total_bytes) all media of the request together have",
        )
        loaded: dict[int, Media] = {}
        for is_sent in (True, False):
            places = [i for i, item in enumerate(sources) if is_data(item.url) == is_sent]
            media = await self._together([sources[i] for i in places], salt, whole)
            loaded.update(zip(places, media, strict=True))
        return [loaded[i] for i in range(len(sources))]

    async def _together(
        self, sources: Sequence[MediaSource], salt: str | None, whole: ByteLimit
    ) -> list[Media]:
        turn = asyncio.Semaphore(self._policy.request_fetches)

        async def load(source: MediaSource) -> Media:
            async with turn:
                return await self._load(source, salt, whole)

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(load(source)) for source in sources]
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        return [task.result() for task in tasks]

    async def _load(self, source: MediaSource, salt: str | None, whole: ByteLimit) -> Media:
        noun = NOUNS[source.kind]
        limit = ByteLimit(self._policy.item_bytes, f"the {noun} has", whole)
        try:
            data = await self._read(source.url, limit)
            return await asyncio.to_thread(self._media, source, salt, data)
        except InvalidRequestError as error:
            raise type(error)(error.message, param=source.param) from None

    async def _read(self, url: str, limit: ByteLimit) -> bytes:
        if is_data(url):
            return data_of(url, limit)
        if url[:5].lower() == "file:":
            data = await asyncio.to_thread(local_file, url, self._policy.folder, limit.most + 1)
            limit.take(len(data))
            return data
        return await self._fetcher.get(url, limit)

    def _media(self, source: MediaSource, salt: str | None, data: bytes) -> Media:
        found = format_of(data, source.kind)
        if source.kind == "image":
            check_picture(data, self._policy.limits)
        media = Media(
            kind=source.kind,
            data=data,
            type=found.type,
            options=source.options,
            limits=self._policy.limits,
            salt=salt,
        )
        logger.debug("%s, %s, %d bytes, %.8s", source.kind, found.type, len(data), media.key)
        return media
