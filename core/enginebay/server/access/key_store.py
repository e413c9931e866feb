"""The current keys: those of the config and those of the keys file."""

import asyncio
import logging
import os
from collections.abc import Sequence
from pathlib import Path

from enginebay.config.keys import Key, KeyEntry, load_keys
from enginebay.config.paths import state_of
from enginebay.config.problems import ConfigError
from enginebay.config.schema import Config, resolved_path
from enginebay.server.access import keys_file
from enginebay.server.access.keys import HASH_PREFIX, digest_of, hash_of

logger = logging.getLogger(__name__)

LOOK_EVERY = 1.0
"""Seconds between two looks at the file."""

SHORT = 16
"""Characters of a key below which it can be guessed from its hash."""


class KeyStore:
    """The keys of a config and of a file that may change at any time.

    If the file becomes invalid, that is logged with the line, and the previous keys stay in effect.
    Raises `ConfigError` if it cannot be used at the start; there may be none.
    """

    def __init__(self, path: Path, fixed: Sequence[Key] = ()) -> None:
        self.path = path
        self._fixed = tuple(fixed)
        self._turn = asyncio.Lock()
        self._seen = state_of(path)
        self._of_file = self._load() if self._seen else ()
        self._keys = self._fixed + self._of_file

    def known(self) -> tuple[Key, ...]:
        """All current keys."""
        return self._keys

    def fix(self, fixed: Sequence[Key]) -> None:
        """Have these keys, in place of those that are not from the file."""
        self._fixed = tuple(fixed)
        self._keys = self._fixed + self._of_file

    async def look(self) -> None:
        """Read the file if it has changed, on a thread because a large file takes long."""
        async with self._turn:
            changed = await asyncio.to_thread(self._changed)
            if changed is not None:
                self._of_file = changed
                self._keys = self._fixed + changed
                logger.info("%s has changed: %d keys are valid", self.path, len(self._keys))

    def _changed(self) -> tuple[Key, ...] | None:
        """The keys of the file; None if it is the same as before, or cannot be used."""
        state = state_of(self.path)
        if state == self._seen:
            return None
        self._seen = state
        if state is None:
            logger.error("%s was removed; its keys stay valid until the server stops", self.path)
            return None
        try:
            return self._load()
        except ConfigError as error:
            for problem in error.problems:
                logger.error("%s", problem)
            logger.error("keeping the previous keys of %s", self.path)
        except OSError:  # another program is replacing it
            self._seen = None
        return None

    def _load(self) -> tuple[Key, ...]:
        entries = load_keys(self.path)
        if os.name == "posix" and self.path.stat().st_mode & 0o077:
            logger.warning("others can read %s: chmod 600 '%s'", self.path, self.path)
        if plain := [entry for entry in entries if entry.key]:
            self._hash(plain)
        return tuple(map(_key, entries))

    def _hash(self, entries: Sequence[KeyEntry]) -> None:
        """Replace keys by their hashes."""
        for entry in entries:
            if len(_secret(entry)) < SHORT:
                logger.warning(
                    "the key of %s is short: anyone who sees its hash can guess it; `enginebay "
                    "keys rotate %s` creates a long one",
                    entry.name,
                    entry.name,
                )
        try:
            keys_file.set_hash(self.path, {e.name: hash_of(_secret(e)) for e in entries})
        except (ConfigError, OSError) as error:
            logger.warning("keys remain in plain text in %s: %s", self.path, error)


def key_store(config: Config, *more: Key) -> KeyStore:
    """The key store of a config, and of these keys besides."""
    return KeyStore(keys_path(config), [*fixed_keys(config), *more])


def fixed_keys(config: Config) -> list[Key]:
    """The keys that stand in a config.

    Their names come from their hashes, so that no key takes over what belongs to another when the
    list changes. No name of the keys file has brackets.
    """
    digests = (digest_of(secret.get_secret_value()) for secret in config.server.api_keys)
    return [Key(f"api_keys[{digest.hex()[:8]}]", digest) for digest in digests]


def keys_path(config: Config) -> Path:
    """Where the keys file is, or would be."""
    return Path(resolved_path(config.server.keys_file, config.base))


def _key(entry: KeyEntry) -> Key:
    return Key(
        entry.name,
        bytes.fromhex(entry.hash.removeprefix(HASH_PREFIX))
        if entry.hash
        else digest_of(_secret(entry)),
        entry.role,
        None if entry.models is None else tuple(entry.models),
        entry.requests_per_minute,
        entry.tokens_per_minute,
        entry.tokens_per_day,
        entry.concurrent_requests,
        entry.max_tokens,
        entry.priority,
    )


def _secret(entry: KeyEntry) -> str:
    return entry.key.get_secret_value() if entry.key else ""
