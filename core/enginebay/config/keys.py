"""The schema of the keys file."""

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, ConfigDict, Field, SecretStr, ValidationError, model_validator

from enginebay.config.document import Document
from enginebay.config.fast_yaml import parse_fast
from enginebay.config.messages import explain
from enginebay.config.origins import Origins
from enginebay.config.paths import is_special
from enginebay.config.problems import ConfigError, in_order, key_text
from enginebay.config.schema import sendable
from enginebay.config.section import Section, Text
from enginebay.config.tabbyapi import keys_of_tabbyapi

EXPECTED = "; it must begin with `keys:`. Delete it, and `enginebay keys add NAME` creates one"


Role = Literal["user", "admin"]


@dataclass(frozen=True, slots=True)
class Key:
    """One key: its owner and what it may do; None is unlimited.

    `digest` is the SHA-256 of the key, which itself is not stored. `models`: names of models,
    aliases or adapters. `priority`: of all its requests, whatever they ask for.
    """

    name: str
    digest: bytes
    role: Role = "user"
    models: tuple[str, ...] | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    tokens_per_day: int | None = None
    concurrent_requests: int | None = None
    max_tokens: int | None = None
    priority: int | None = None

    @property
    def has_rates(self) -> bool:
        """Whether requests or tokens are limited by time."""
        limits = (self.requests_per_minute, self.tokens_per_minute, self.tokens_per_day)
        return any(limit is not None for limit in limits)

    def may_use(self, *names: str) -> bool:
        """Whether it may use the model that has these names."""
        return self.models is None or not set(names).isdisjoint(self.models)

    def cache_salt(self, asked: str | None) -> str:
        """The cache salt of its requests that ask for this salt.

        Nobody can guess the salt without the key, nor find the key from the salt.
        """
        parts = b"" if asked is None else b":" + asked.encode(errors="surrogatepass")
        return sha256(self.digest + parts).hexdigest()[:32]


class KeyEntry(Section):
    """One key and its limits."""

    name: str = Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._@-]{0,63}$",
        description="Name of the key's owner: letters, digits and . _ @ -",
    )
    role: Role = Field("user", description="user, or admin, who may also use admin routes.")
    hash: str | None = Field(
        None,
        pattern=r"^sha256:[0-9a-f]{64}$",
        description="sha256: and the key's hash; written by `enginebay keys`.",
    )
    key: Annotated[SecretStr, AfterValidator(sendable)] | None = Field(
        None, description="A key of your own choice; the server replaces it with its hash."
    )
    models: list[Text] | None = Field(
        None, description="Models the key may see and use; all if unset."
    )
    requests_per_minute: int | None = Field(
        None, gt=0, description="Maximum requests in any 60 seconds; unlimited if unset."
    )
    tokens_per_minute: int | None = Field(
        None,
        gt=0,
        description="Maximum tokens of prompts and answers in any 60 seconds; unlimited if unset.",
    )
    tokens_per_day: int | None = Field(
        None,
        gt=0,
        description="Maximum tokens of prompts and answers in a day of UTC; unlimited if unset.",
    )
    concurrent_requests: int | None = Field(
        None, gt=0, description="Maximum requests running at once; unlimited if unset."
    )
    max_tokens: int | None = Field(
        None, gt=0, description="Maximum tokens per answer; limited only by the context if unset."
    )
    priority: int | None = Field(
        None,
        description="Priority of its requests (lower goes first); if unset, requests choose it.",
    )

    @model_validator(mode="after")
    def _hash_or_key(self) -> Self:
        if (self.hash is None) == (self.key is None):
            raise ValueError("must have either `hash` or `key`")
        return self


class KeysFile(Section):
    """The whole file."""

    model_config = ConfigDict(title="Enginebay keys.yml")

    keys: list[KeyEntry] = Field(default=[], description="The keys.")


def entry_problems(entry: Mapping[str, Any]) -> list[str]:
    """The problems of an entry of the file."""
    try:
        KeyEntry.model_validate(entry)
    except ValidationError as error:
        found = explain(error, entry, KeyEntry.model_json_schema())
        return [f"{key_text(key)}: {message}" for key, message in found]
    return []


def load_keys(path: Path) -> list[KeyEntry]:
    """The entries of a keys file. Raises `ConfigError` with all problems."""
    try:
        return _load_valid(path)
    except (OSError, ValueError):
        return _load_slowly(path)


def _load_valid(path: Path) -> list[KeyEntry]:
    """The entries of a file without problems. `OSError` or `ValueError` if it may have some."""
    if is_special(path):
        raise ValueError("reading it may never end")
    entries = KeysFile.model_validate(parse_fast(path.read_text("utf-8-sig"))).keys
    if len({entry.name for entry in entries}) < len(entries):
        raise ValueError("two keys have the same name")
    return entries


def _load_slowly(path: Path) -> list[KeyEntry]:
    """The entries of any file, with the line of each problem."""
    document = Document(path, expected=EXPECTED)
    origins = Origins(path, document)
    problems = list(document.problems)
    file = KeysFile()
    try:
        file = KeysFile.model_validate(document.data)
    except ValidationError as error:
        of_tabbyapi = dict(keys_of_tabbyapi(document.data))
        found = explain(error, document.data, KeysFile.model_json_schema())
        problems += [origins.problem(key, of_tabbyapi.get(key, message)) for key, message in found]
    names = [entry.name for entry in file.keys]
    for index, name in enumerate(names):
        if name in names[:index]:
            message = "another key already has this name"
            problems.append(origins.problem(("keys", index, "name"), message))
    if problems:
        raise ConfigError(in_order(problems))
    return file.keys
