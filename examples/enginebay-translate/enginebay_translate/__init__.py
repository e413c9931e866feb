"""LibreTranslate's API: https://docs.libretranslate.com."""

import asyncio
import json
from collections.abc import Awaitable, Iterable, Mapping
from math import exp
from typing import Any, TypeVar
from urllib.parse import parse_qs

from enginebay import (
    ContextLengthExceededError,
    InvalidRequestError,
    RouteRegister,
    RouteRequest,
    ServingError,
    hookimpl,
)
from enginebay_translate.languages import LANGUAGES

T = TypeVar("T")

_MOST_TEXTS = 128


@hookimpl
def register_routes(register: RouteRegister) -> None:
    """LibreTranslate's routes, and its shape of errors for them."""
    example = {"q": "Good morning", "source": "en", "target": "fr"}
    register("POST", "/translate", translate, example=example)
    register("POST", "/detect", detect, example={"q": "Bonjour"})
    register("GET", "/languages", languages)
    for path in ("/translate", "/detect", "/languages"):
        register.errors(path, _error)


def _error(error: ServingError) -> dict[str, str]:
    return {"error": error.message}


async def languages(request: RouteRequest) -> list[dict[str, Any]]:
    """The languages a model is asked to translate; which ones it really knows is up to it."""
    return [
        {"code": code, "name": name, "targets": [other for other in LANGUAGES if other != code]}
        for code, name in LANGUAGES.items()
    ]


async def detect(request: RouteRequest) -> list[dict[str, Any]]:
    """The language of a text, with the model's own probability in percent."""
    fields = _fields(request)
    return [await _detected(request, fields, _texts(fields)[0])]


async def translate(request: RouteRequest) -> dict[str, Any]:
    """A text, or a list of them, in another language; `source` may be `auto`.

    A field `model` chooses the model; without it, the server's default one translates.
    """
    fields = _fields(request)
    texts, target = _texts(fields), _language(fields, "target")
    source = None if fields.get("source", "auto") == "auto" else _language(fields, "source")
    detected = None
    if source is None:
        detected = await _detected(request, fields, texts[0])
        source = detected["language"]
    wanted = (_translated(request, fields, text, source, target) for text in texts)
    translated: Any = await _together(wanted)
    answer = {"translatedText": translated if isinstance(fields["q"], list) else translated[0]}
    return answer | ({"detectedLanguage": detected} if detected else {})


async def _translated(
    request: RouteRequest, fields: Mapping[str, Any], text: str, source: str, target: str
) -> str:
    languages = f"from {LANGUAGES[source]} into {LANGUAGES[target]}"
    most = 4 * len(text) + 100  # or a model that repeats itself would fill its context
    choice = await _chat(
        request,
        fields,
        f"Translate the user's text {languages}. Keep names, numbers, markup and line breaks.",
        text,
        response_format={
            "type": "json_schema",
            "json_schema": {
                "name": "translation",
                "strict": True,
                "schema": {
                    "type": "object",
                    "properties": {"translation": {"type": "string", "maxLength": most}},
                    "required": ["translation"],
                    "additionalProperties": False,
                },
            },
        },
    )
    translation: str = json.loads(choice["message"]["content"])["translation"]
    if len(translation) == most:
        raise InvalidRequestError(
            "the model's translation is too long to be one; choose another model", param="model"
        )
    return translation


async def _detected(request: RouteRequest, fields: Mapping[str, Any], text: str) -> dict[str, Any]:
    choice = await _chat(
        request,
        fields,
        "Answer with the ISO 639-1 code of the language of the user's text, and nothing else.",
        text,
        structured_outputs={"choice": list(LANGUAGES)},
        logprobs=True,
    )
    logprob = sum(token["logprob"] for token in choice["logprobs"]["content"])
    return {"confidence": round(100 * exp(logprob), 1), "language": choice["message"]["content"]}


async def _chat(
    request: RouteRequest, fields: Mapping[str, Any], system: str, text: str, **more: Any
) -> dict[str, Any]:
    messages = [{"role": "system", "content": system}, {"role": "user", "content": text}]
    body = {"messages": messages, "temperature": 0, "enable_thinking": False, **more}
    if "model" in fields:
        body["model"] = fields["model"]
    answer = await (await request.chat(body)).whole()
    choice: dict[str, Any] = answer["choices"][0]
    if choice["finish_reason"] != "stop":
        raise ContextLengthExceededError(
            "the translation does not fit into the model's context, or has more tokens than the "
            "API key allows; send less text at a time",
            param="q",
        )
    return choice


async def _together(work: Iterable[Awaitable[T]]) -> list[T]:
    """All results; the first error cancels the rest."""
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _fields(request: RouteRequest) -> dict[str, Any]:
    """The body's fields, sent as JSON or as a form."""
    if request.headers.get("content-type", "").startswith("application/x-www-form-urlencoded"):
        return {name: last for name, [*_, last] in parse_qs(request.body.decode()).items()}
    return request.json_object()


def _texts(fields: Mapping[str, Any]) -> list[str]:
    texts = fields.get("q")
    if isinstance(texts, str):
        texts = [texts]
    if not isinstance(texts, list) or not all(isinstance(text, str) and text for text in texts):
        raise InvalidRequestError("q must be a text, or a list of texts", param="q")
    if not 0 < len(texts) <= _MOST_TEXTS:
        raise InvalidRequestError(f"q must have 1 to {_MOST_TEXTS} texts", param="q")
    return texts


def _language(fields: Mapping[str, Any], name: str) -> str:
    code = fields.get(name)
    if not isinstance(code, str) or code not in LANGUAGES:
        known = ", ".join(LANGUAGES)
        raise InvalidRequestError(f"{name} must be a language's code: {known}", param=name)
    return code
