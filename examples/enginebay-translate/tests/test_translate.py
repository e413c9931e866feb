import json
from collections.abc import Iterator

import pytest
from enginebay_translate import register_routes

from enginebay import RouteRegister
from enginebay.testing.routes import check_routes, serving_routes


def test_errors_are_libretranslates() -> None:
    routes = RouteRegister()
    register_routes(routes)
    assert set(routes.error_shapes) == {"/translate", "/detect", "/languages"}


async def test_promises_of_routes() -> None:
    await check_routes(register_routes)


def script(prompt: str, index: int) -> Iterator[str]:
    """French, with the text in it that was to be translated."""
    text = prompt.rpartition("<user>")[2].partition("\n")[0]
    yield "fr" if "ISO 639-1" in prompt else json.dumps({"translation": f"[{text}]"})


@pytest.mark.parametrize("as_form", [False, True])
async def test_translate(as_form: bool) -> None:
    async with serving_routes(register_routes, script) as client:
        body = {"q": "Good morning", "source": "en", "target": "fr"}
        sent = {"data": body} if as_form else {"json": body}
        answer = await client.post("/translate", **sent)
        assert answer.json() == {"translatedText": "[Good morning]"}


async def test_many_texts_and_the_language_detected() -> None:
    async with serving_routes(register_routes, script) as client:
        body = {"q": ["a", "b", "c"], "source": "auto", "target": "de"}
        answer = (await client.post("/translate", json=body)).json()
        assert answer["translatedText"] == ["[a]", "[b]", "[c]"]
        assert answer["detectedLanguage"] == {"confidence": 100, "language": "fr"}
        [detected] = (await client.post("/detect", json={"q": "Bonjour"})).json()
        assert detected == {"confidence": 100, "language": "fr"}
        listed = (await client.get("/languages")).json()
        assert {"code", "name", "targets"} == listed[0].keys()


async def test_a_model_that_repeats_itself() -> None:
    def endless(prompt: str, index: int) -> Iterator[str]:
        yield '{"translation": "'
        while True:
            yield "la "

    async with serving_routes(register_routes, endless) as client:
        body = {"q": "Good morning", "source": "en", "target": "fr"}
        answer = await client.post("/translate", json=body)
        assert answer.status_code == 400
        assert "too long to be one" in answer.json()["error"]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"target": "fr"}, "q must be a text"),
        ({"q": [], "target": "fr"}, "q must have 1 to 128 texts"),
        ({"q": "a", "target": "xx"}, "target must be a language's code: ar, "),
        ({"q": "a", "source": 5, "target": "fr"}, "source must be"),
        ({"q": "a", "source": "en", "target": "fr", "model": "none"}, "the model 'none' does not"),
        ({"q": "a " * 9000, "source": "en", "target": "fr"}, "maximum context length"),
    ],
)
async def test_errors(body: dict[str, object], message: str) -> None:
    async with serving_routes(register_routes, script) as client:
        answer = await client.post("/translate", json=body)
        assert answer.status_code in (400, 404)
        assert answer.json().keys() == {"error"}
        assert message in answer.json()["error"]
        refused = await client.post("/translate", json=body, headers={"x-api-key": "wrong"})
        assert (refused.status_code, refused.json().keys()) == (401, {"error"})
