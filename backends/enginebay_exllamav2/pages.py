"""The pages of the cache: sharing them, and extending a job that has filled its own."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from hashlib import blake2b
from typing import Any

from enginebay_exllamav2.library import generator as library

PAGE = library.dynamic.PAGED_PAGE_SIZE


class Pages:
    """The page table of one generator.

    The library knows a page by the hash of its tokens and of all before them, or compares tokens
    where a page is not full; it ignores adapters and `cache_salt`. Here the hashes of a key
    begin with a salt, and pages of other keys are hidden where tokens are compared.
    """

    def __init__(self, generator: Any) -> None:
        self._generator = generator
        self._owners: dict[int, Hashable] = {}  # by the page object, which lives with the generator

    @property
    def free(self) -> int:
        """Pages that no job uses."""
        return len(self._generator.unreferenced_pages)

    def salt(self, key: Hashable) -> bytes | None:
        """The prefix of a key's hashes; None for the library's own."""
        if key == (None, None):
            return None
        return blake2b(repr(key).encode(), digest_size=16).digest()

    def hashes(self, token_ids: Any, count: int, salt: bytes | None) -> list[bytes]:
        """Of the first `count` pages of `token_ids` (`[1, tokens]`), each by those before it."""
        hashes = []
        before = salt
        for start in range(0, count * PAGE, PAGE):
            before = library.dynamic._tensor_hash_checksum(
                token_ids[:, start : start + PAGE], before
            )
            hashes.append(before)
        return hashes

    def own(self, pages: list[Any], key: Hashable) -> None:
        """Mark these pages as holding tokens of this key."""
        for page in pages:
            self._owners[id(page)] = key

    @contextmanager
    def hidden_from(self, key: Hashable) -> Iterator[None]:
        """In this block, tokens are compared only with pages of this key."""
        generator = self._generator
        everything = generator.all_pages
        generator.all_pages = [p for p in everything if self._owners.get(id(p), key) == key]
        try:
            yield
        finally:
            generator.all_pages = everything

    @contextmanager
    def apart(self, sequence: Any) -> Iterator[None]:
        """In this block, a page that the next token completes is not shared.

        The library would hash it without a salt and, where another page has this hash, clear that
        one or share it: even one that is not filled yet, or while the token that completes its own
        may still be rolled back.
        """
        generator = self._generator
        index, place = divmod(sequence.kv_position + 1, PAGE)
        if place:
            yield
            return
        pages = sequence.allocated_pages
        before = pages[index - 2].phash if index > 1 else None
        theirs = self._hash(sequence, index - 1, before)
        tables = (generator.referenced_pages, generator.unreferenced_pages)
        hidden = [(table, table.pop(theirs)) for table in tables if theirs in table]
        try:
            yield
        finally:
            if pages[index - 1].phash == theirs:
                pages[index - 1].update_hash(library.dynamic._randomhash())
                pages[index].prev_hash = pages[index - 1].phash
            for table, page in hidden:
                table[theirs] = page

    def share(self, sequence: Any, index: int, salt: bytes | None) -> None:
        """Let others find a page that this sequence has filled and that stays as it is."""
        generator = self._generator
        pages = sequence.allocated_pages
        page = pages[index]
        own = self._hash(sequence, index, pages[index - 1].phash if index else salt)
        if (other := generator.referenced_pages.get(own)) is None:
            if own in generator.unreferenced_pages:
                generator.unreferenced_pages[own].clear()
            page.update_hash(own)
        elif other.kv_position == PAGE:
            other.add_ref(page.access_serial)
            page.sub_ref()
            pages[index] = other
            sequence.block_index_tensor = None
        pages[index + 1].prev_hash = pages[index].phash
        pages[index + 1].can_revert = False

    def _hash(self, sequence: Any, index: int, before: bytes | None) -> bytes:
        token_ids = sequence.sequence_ids.torch_slice(index * PAGE, (index + 1) * PAGE)
        hashed: bytes = library.dynamic._tensor_hash_checksum(token_ids, before)
        return hashed

    def extend(self, sequence: Any, tokens: int, key: Hashable) -> bool:
        """Give a running sequence pages for that many tokens; False if there are not enough."""
        generator = self._generator
        while len(sequence.allocated_pages) * PAGE < tokens:
            oldest = min(
                generator.unreferenced_pages.values(), key=lambda p: p.access_serial, default=None
            )
            if oldest is None:
                return False
            generator.access_serial += 1
            oldest.add_ref_unique(generator.access_serial)
            sequence.allocated_pages.append(oldest)
            sequence.block_index_tensor = None
            self.own([oldest], key)
        return True
