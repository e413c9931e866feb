"""API keys: permissions, creating new ones, finding the one a request sent."""

import hmac
import secrets
from collections.abc import Iterable, Sequence
from hashlib import sha256

from enginebay.config.keys import Key

PREFIX = "eb-"
"""What generated keys begin with, so that people and secret scanners know them."""

HASH_PREFIX = "sha256:"


def new_key() -> str:
    """A key of 256 random bits."""
    return PREFIX + secrets.token_urlsafe(32)


def digest_of(key: str) -> bytes:
    """The SHA-256 of a key.

    A plain hash is enough for keys that are random: nobody can try 2**256 of them. Slow hashes,
    as of passwords, would only make each request slow.
    """
    return sha256(key.encode()).digest()


def hash_of(key: str) -> str:
    """`digest_of` as the keys file has it."""
    return HASH_PREFIX + digest_of(key).hex()


def sent_keys(headers: Iterable[tuple[bytes, bytes]]) -> list[bytes]:
    """Every key in the headers of a request: some clients send the same one in several.

    Read from `Authorization: Bearer`, `x-api-key` and `x-admin-key`. `headers` are as in ASGI,
    their names in lower case.
    """
    sent = []
    for name, value in headers:
        if name == b"authorization":
            scheme, _, value = value.strip().partition(b" ")
            if scheme.lower() != b"bearer":
                continue
        elif name not in (b"x-api-key", b"x-admin-key"):
            continue
        if value := value.strip():
            sent.append(value)
    return sent


def find_key(sent: Iterable[bytes], keys: Sequence[Key]) -> Key | None:
    """The key that was sent, an admin's rather than a user's; None if no known one was.

    Every key is compared, and digests take the same time wherever they differ: how long it takes
    says nothing about the keys.
    """
    digests = [sha256(key).digest() for key in sent]
    found: Key | None = None
    for key in keys:
        for digest in digests:
            known = hmac.compare_digest(digest, key.digest)
            if known and (found is None or found.role == "user"):
                found = key
    return found
