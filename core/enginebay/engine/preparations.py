"""Items of media that are prepared for an engine while it goes on with its steps."""

from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Generic, TypeVar

from enginebay.contract.media import Media

_FORGOTTEN = 4096
"""Questions after which an item that none of them was about is forgotten: its request has gone."""

_WAIT = 0.05

Prepared = TypeVar("Prepared")


class Preparations(Generic[Prepared]):
    """What an encoder needs of items, decoded on a thread and held until it has been used.

    Items are prepared when prompts are tokenized, and kept in a cache, `kept`. Where that has
    forgotten one, the engine asks `ready` and goes on with other work until it is. All methods are
    called on the engine's thread; `make` is called on another one.
    """

    def __init__(
        self, make: Callable[[Media], Prepared], kept: Callable[[Media], Prepared | None]
    ) -> None:
        """`make` prepares an item, and may raise; `kept` finds it in the cache."""
        self._make = make
        self._kept = kept
        self._thread = ThreadPoolExecutor(1, "enginebay-preparing")
        self._held: dict[str, Future[Prepared]] = {}
        self._asked: dict[str, int] = {}
        self._questions = 0

    def ready(self, media: Media) -> bool:
        """Whether `get` returns at once. If not, the item is being prepared from now on."""
        self._questions += 1
        self._asked[media.key] = self._questions
        if media.key not in self._held:
            self._forget_others()
            self._held[media.key] = self._prepared(media)
        return self._held[media.key].done()

    def get(self, media: Media) -> Prepared:
        """The item, which stays held; raises what preparing it raised. Waits if it is not ready."""
        self.ready(media)
        return self._held[media.key].result()

    def forget(self, media: Media) -> None:
        """The item has been encoded."""
        self._asked.pop(media.key, None)
        self._held.pop(media.key, None)

    def wait(self) -> None:
        """Wait a moment for what is being prepared, with nothing else to do."""
        if unready := [each for each in self._held.values() if not each.done()]:
            wait(unready, _WAIT, FIRST_COMPLETED)

    def _prepared(self, media: Media) -> Future[Prepared]:
        if (kept := self._kept(media)) is None:
            return self._thread.submit(self._make, media)
        made: Future[Prepared] = Future()
        made.set_result(kept)
        return made

    def _forget_others(self) -> None:
        for key, asked in list(self._asked.items()):
            if self._questions - asked > _FORGOTTEN:
                del self._asked[key]
                self._held.pop(key, None)
