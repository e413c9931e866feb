"""The pages of the cache: who may use whose, and more of them for a job that has filled its own."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from hashlib import blake2b
from typing import Any

from backends.exllamav2.library import generator as library

PAGE = library.dynamic.PAGED_PAGE_SIZE


class Pages:
    """The page table of one generator.

    The library knows a page by the hash of its tokens and of all before them, or compares tokens
    where a page is not full; adapters and `cache_salt` are nothing to it. Here the hashes of a key
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
        """What the hashes of a key begin with; None for the library's own."""
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
        """These hold tokens of this key from now on."""
        for page in pages:
            self._owners[id(page)] = key

    @contextmanager
    def hidden_from(self, key: Hashable) -> Iterator[None]:
        """Inside, tokens are compared with those in pages of this key only."""
        generator = self._generator
        everything = generator.all_pages
        generator.all_pages = [p for p in everything if self._owners.get(id(p), key) == key]
        try:
            yield
        finally:
            generator.all_pages = everything

    @contextmanager
    def salted(self, pages: list[Any], token_ids: Any, salt: bytes) -> Iterator[None]:
        """Inside, the first of a sequence's pages becomes full, with `token_ids` in it.

        The library takes the hash without a salt for it, and would share, or clear, the page of
        somebody else that has this hash.
        """
        generator = self._generator
        [plain] = self.hashes(token_ids, 1, None)
        [own] = self.hashes(token_ids, 1, salt)
        tables = (generator.referenced_pages, generator.unreferenced_pages)
        hidden = [(table, table.pop(plain)) for table in tables if plain in table]
        try:
            yield
        finally:
            if pages[0].phash == plain:
                taken = own in generator.referenced_pages
                if own in generator.unreferenced_pages:
                    generator.unreferenced_pages[own].clear()
                pages[0].update_hash(library.dynamic._randomhash() if taken else own)
                pages[1].prev_hash = pages[0].phash
            for table, other in hidden:
                table[plain] = other

    def extend(self, sequence: Any, tokens: int, key: Hashable) -> bool:
        """Give a running sequence pages for so many tokens; False if there are not enough."""
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
