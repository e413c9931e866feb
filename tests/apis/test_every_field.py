"""Every field of every API, sent to every route: odd values, and null for no value."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel

from enginebay.config.field_types import field_names
from tests.apis.ollama_support import user
from tests.effort import some
from tests.support import Server, plugins_with, scripted, scripted_config, serve

CHAT: dict[str, Any] = {"model": "scripted", "messages": user("hi"), "max_tokens": 5}
PROMPT: dict[str, Any] = {"model": "scripted", "prompt": "hi", "max_tokens": 5}
INPUT: dict[str, Any] = {"model": "scripted", "input": "hi"}
PAIR: dict[str, Any] = {"model": "scripted", "query": "a", "documents": ["b"]}
BODIES: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("/v1/chat/completions", "/v1/chat/completions/explain"), CHAT),
    **dict.fromkeys(("/v1/tokenize", "/v1/apply-template"), CHAT),
    "/v1/chat/completions/input_tokens": CHAT,
    **dict.fromkeys(("/v1/messages", "/v1/messages/count_tokens"), CHAT),
    "/v1/completions": PROMPT,
    **dict.fromkeys(("/v1/responses", "/v1/responses/input_tokens"), INPUT),
    "/v1/detokenize": {"tokens": [104]},
    "/v1/token/decode": {"tokens": [104]},
    "/v1/token/encode": {"text": "hi"},
    "/v1/infill": {"input_prefix": "a", "input_suffix": "b"},
    "/api/chat": {**CHAT, "stream": False},
    "/api/generate": {**PROMPT, "stream": False},
    **dict.fromkeys(("/api/v1/generate", "/api/extra/generate/stream"), PROMPT),
    "/api/extra/tokencount": {"prompt": "hi"},
    "/api/show": {"model": "scripted"},
    **dict.fromkeys(("/v1/embeddings", "/v1/classify", "/api/embed"), INPUT),
    "/api/embeddings": PROMPT,
    "/v1/embed": {"model": "scripted", "texts": ["a"], "input_type": "search_query"},
    **dict.fromkeys(("/v1/rerank", "/v2/rerank"), PAIR),
    "/v1/score": {"model": "scripted", "text_1": "a", "text_2": "b"},
    "/v1/score/evaluation": CHAT,
}
"""What these routes accept, or refuse because the model cannot embed."""
WITHOUT = ("load", "/api/pull")
"""What is in the paths of routes that ask other servers, or load and unload the model."""
ODD = [-5, "x", [], {}, [[]], [{}], [None], 1e300, {"type": "x"}, "\ud800"]


def models_of(kind: type[BaseModel]) -> Iterator[type[BaseModel]]:
    for each in kind.__subclasses__():
        yield each
        yield from models_of(each)


def properties(schema: dict[str, Any], document: dict[str, Any]) -> set[str]:
    """The fields of the objects that a schema allows."""
    if reference := schema.get("$ref"):
        schema = document["components"]["schemas"][reference.rpartition("/")[2]]
    unions = [each for key in ("anyOf", "oneOf") for each in schema.get(key, ())]
    return set(schema.get("properties", ())).union(*(properties(each, document) for each in unions))


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serve(scripted_config(), plugins_with(scripted=scripted(["ok"]))) as server:
        yield server


@pytest.fixture(scope="module")
def own_fields(server: Server) -> dict[str, set[str]]:
    """The fields that the body of each route has, by its path."""
    document: dict[str, Any] = server.app.openapi()
    found = {}
    for path, methods in document["paths"].items():
        content = methods.get("post", {}).get("requestBody", {}).get("content", {})
        if "application/json" in content and not any(each in path for each in WITHOUT):
            found[path] = properties(content["application/json"]["schema"], document)
    return found


@pytest.mark.parametrize("value", some(ODD, keep=[-5]), ids=json.dumps)
def test_no_value_is_an_internal_error(
    server: Server, own_fields: dict[str, set[str]], value: Any
) -> None:
    # WIRE-10
    names = set().union(*own_fields.values())
    for model in models_of(BaseModel):
        if model.__module__.startswith("core.") and model.__module__.endswith(("bodies", "fields")):
            names.update(*(field_names(*field) for field in model.model_fields.items()))
    for path in own_fields:
        for name in sorted(names):
            body = json.dumps({**BODIES.get(path, {}), name: value})
            response = server.http.post(path.replace("{model_id}", "scripted"), content=body)
            assert response.status_code < 500 or response.status_code == 503, (path, name)
    for path in ("/v1/chat/completions", "/v1/tokenize", "/api/chat"):
        assert server.http.post(path, json=BODIES[path]).status_code == 200


@pytest.mark.parametrize("path", BODIES)
def test_null_is_no_value(server: Server, own_fields: dict[str, set[str]], path: str) -> None:
    # WIRE-6
    body = BODIES[path]
    usual = server.http.post(path, json=body)
    for name in own_fields[path] - body.keys():
        response = server.http.post(path, json={**body, name: None})
        assert response.status_code == usual.status_code, (name, response.text)
