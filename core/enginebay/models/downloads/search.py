"""What a hub has: repositories by words, and the models of one. Both block."""

from contextlib import suppress
from dataclasses import dataclass

from enginebay.contract.errors import InvalidRequestError
from enginebay.models.downloads.choose import Choice, choices, choose
from enginebay.models.downloads.errors import in_words
from enginebay.models.downloads.hub import Hub, get_json, hub_endpoint, hub_headers

_SMALL = 1_000_000  # bytes; above it, a config.json is none


@dataclass(frozen=True, slots=True)
class FoundRepository:
    """A repository of models. `updated`: when it was last changed, as ISO 8601 has it."""

    id: str
    downloads: int
    likes: int
    updated: str
    gguf: bool


def search(query: str, limit: int) -> list[FoundRepository]:
    """The repositories of models that have these words in their names, most downloaded first.

    Raises a `ServingError` if the hub does not say.
    """
    with in_words(f"the search for {query!r}"):
        found = get_json(
            f"{hub_endpoint()}/api/models",
            hub_headers(None),
            search=query,
            limit=limit,
            sort="downloads",
            direction=-1,
            full="true",
        )
        return [
            FoundRepository(
                id=str(each["id"]),
                downloads=int(each.get("downloads") or 0),
                likes=int(each.get("likes") or 0),
                updated=str(each.get("lastModified") or ""),
                gguf="gguf" in (each.get("tags") or ()),
            )
            for each in map(dict, found[:limit])
        ]


@dataclass(frozen=True, slots=True)
class Offered:
    """The models of a repository. `recommended`: None if one has to be named.

    `config_json`: the content of the file of that name, empty without one.
    """

    models: list[Choice]
    recommended: Choice | None
    config_json: bytes


def models_of(repo_id: str, revision: str | None = None) -> Offered:
    """The models of a repository, best first. Raises a `ServingError` if the hub does not say."""
    hub = Hub(repo_id, revision, None)
    snapshot = hub.snapshot()
    there = [file for file in snapshot.files if file.name == "config.json" and file.size < _SMALL]
    content = b"".join(hub.small_file(file, snapshot.commit) for file in there)
    recommended = None
    with suppress(InvalidRequestError):
        recommended = choose(repo_id, snapshot.files)
    return Offered(choices(repo_id, snapshot.files), recommended, content)
