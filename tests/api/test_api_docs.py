"""`docs/reference/api.md` has every route, and every field of some, under all its names."""

import re
from collections.abc import Iterable, Iterator

import pytest
from pydantic import AliasChoices, BaseModel

from enginebay.chat.schemas.chat_request import ChatCompletionRequest
from enginebay.chat.schemas.completion_bodies import CompletionRequest
from enginebay.chat.schemas.generation_request import GenerationBody
from enginebay.config.sampling_fields import SamplingFields
from enginebay.config.schema import Config
from enginebay.plugins import Plugins
from enginebay.serving.schemas.classify_bodies import ClassifyRequest, ScoreEvaluationRequest
from enginebay.serving.schemas.embedding_bodies import EmbeddingRequest
from enginebay.serving.schemas.rerank_bodies import RerankRequest, ScoreRequest
from enginebay_kobold.bodies import GenerateRequest
from enginebay_messages.request_bodies import MessagesRequest
from enginebay_responses.request_bodies import ResponsesRequest
from tests.support import REPOSITORY, Server, serve

PAGE = (REPOSITORY / "docs" / "reference" / "api.md").read_text(encoding="utf-8")


def names(body: type[BaseModel], fields: Iterable[str]) -> Iterator[str]:
    for name in fields:
        alias = body.model_fields[name].validation_alias
        choices = alias.choices if isinstance(alias, AliasChoices) else [name]
        yield ", ".join(f"`{choice}`" for choice in choices)


def documented(heading: str) -> list[str]:
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n#")[0]
    return re.findall(r"(?m)^\| (`.*?`) \|", section)


@pytest.mark.parametrize(
    ("heading", "body"),
    [
        ("Both routes", GenerationBody),
        ("Chat", ChatCompletionRequest),
        ("Completions", CompletionRequest),
        ("Embeddings", EmbeddingRequest),
        ("Reranking", RerankRequest),
        ("Scores", ScoreRequest),
        ("Classification", ClassifyRequest),
        ("Reward models", ScoreEvaluationRequest),
        ("Clients of KoboldCpp", GenerateRequest),
        ("Messages", MessagesRequest),
        ("Responses", ResponsesRequest),
    ],
)
def test_every_field_has_a_row(heading: str, body: type[BaseModel]) -> None:
    inherits = issubclass(body, GenerationBody) and body is not GenerationBody
    inherited = GenerationBody.model_fields if inherits else {}
    own = [name for name in body.model_fields if name not in inherited]
    assert sorted(documented(heading)) == sorted(names(body, own))


def test_sampling_fields_are_described_as_in_their_table() -> None:
    """What stands behind the description is only of requests."""
    for row, field in zip(
        names(SamplingFields, SamplingFields.model_fields),
        SamplingFields.model_fields.values(),
        strict=True,
    ):
        assert f"\n| {row} | {field.description}" in PAGE


def routes() -> Iterator[tuple[str, str, str]]:
    """Method, path and who needs a key, by the page."""
    for row in PAGE.partition("\n# ")[0].splitlines():
        _, *cells = row.split("|")
        for method, path in re.findall(r"`(GET|POST|DELETE) (.*?)`", cells[0] if cells else ""):
            yield method, path, cells[1].strip()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    settings = {"auth": "required", "api_keys": ["key-of-a-user"]}
    with serve(Config.model_validate({"server": settings}), Plugins()) as server:
        yield server


def test_every_route_has_a_place(server: Server) -> None:
    served = {
        (method.upper(), path)
        for path, methods in server.app.openapi()["paths"].items()
        for method in methods
    }
    assert sorted((method, path) for method, path, _ in routes()) == sorted(served)


def test_who_needs_a_key(server: Server) -> None:
    statuses = {"none": (False, False), "user": (True, False), "admin": (True, True)}
    names = dict.fromkeys(("model_id", "request_id", "response_id"), "x")
    for method, path, key in routes():
        without, of_user = (
            server.http.request(method, path.format(**names), headers=headers)
            for headers in ({}, {"x-api-key": "key-of-a-user"})
        )
        assert (without.status_code == 401, of_user.status_code == 403) == statuses[key], path
