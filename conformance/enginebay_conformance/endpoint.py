"""The server that is checked, asked over plain HTTP so that nothing hides what it sends."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import httpx2
from openai import OpenAI

from enginebay_conformance.expect import Unsupported, expect

Json = dict[str, Any]

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
_NO_KEY = "none"
STORY = [{"role": "user", "content": "Tell me a story about a train."}]


@dataclass(frozen=True)
class Stream:
    """The body of a streamed answer, every byte of it."""

    raw: bytes

    @cached_property
    def events(self) -> list[str]:
        """The data of each event, `[DONE]` too; comments are left out."""
        lines = self.raw.decode().splitlines()
        return [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]

    @cached_property
    def chunks(self) -> list[Json]:
        """The events that are JSON."""
        return [json.loads(event) for event in self.events if event != "[DONE]"]

    @cached_property
    def usage(self) -> Json | None:
        """The usage of the last chunk."""
        usage: Json | None = self.chunks[-1].get("usage")
        return usage

    def choices(self, index: int = 0) -> list[Json]:
        """What the chunks say about one choice."""
        return [
            choice
            for chunk in self.chunks
            for choice in chunk["choices"]
            if choice["index"] == index
        ]

    def deltas(self, index: int = 0) -> list[Json]:
        """The deltas of one choice."""
        return [choice["delta"] for choice in self.choices(index)]

    def joined(self, key: str = "content", index: int = 0) -> str:
        """A field of all deltas of a choice."""
        return "".join(delta.get(key) or "" for delta in self.deltas(index))

    def finish_reason(self, index: int = 0) -> str | None:
        """The finish reason of a choice."""
        reasons = [choice.get("finish_reason") for choice in self.choices(index)]
        return next(filter(None, reasons), None)


class Endpoint:
    """A base URL, a model and a key, and how checks ask for answers.

    Requests are greedy and short unless a check says otherwise, so that any model will do.
    """

    def __init__(self, http: httpx2.Client, openai: OpenAI, card: Json, api_key: str | None):
        self.http = http
        self.openai = openai
        self.card = card
        self.api_key = api_key

    @property
    def model(self) -> str:
        """The id of the model."""
        return str(self.card["id"])

    @property
    def context_length(self) -> int | None:
        """The model's context length, by any of the names servers have for it."""
        meta = self.card.get("meta") or {}
        found = (
            self.card.get("context_length"),
            self.card.get("max_model_len"),
            meta.get("n_ctx"),
            meta.get("n_ctx_train"),
        )
        return next((length for length in found if isinstance(length, int)), None)

    def post(
        self, path: str, body: Json, headers: Mapping[str, str] | None = None
    ) -> httpx2.Response:
        """Send a body as it is."""
        return self.http.post(path, json=body, headers=headers)

    def chat(self, **fields: Any) -> Json:
        """A whole chat answer."""
        return _object(self.post(CHAT, self.chat_body(**fields)))

    def stream(self, **fields: Any) -> Stream:
        """A streamed chat answer."""
        return _stream(self.post(CHAT, self.chat_body(stream=True, **fields)))

    def complete(self, **fields: Any) -> Json:
        """A whole text completion."""
        return _object(self.post(TEXT, self.text_body(**fields)))

    def stream_text(self, **fields: Any) -> Stream:
        """A streamed text completion."""
        return _stream(self.post(TEXT, self.text_body(stream=True, **fields)))

    def chat_body(self, **fields: Any) -> Json:
        """A small chat request, and these fields."""
        return {**self._body(), "messages": STORY, **fields}

    def text_body(self, **fields: Any) -> Json:
        """A small request for a text completion, and these fields."""
        return {**self._body(), "prompt": "Once upon a time", **fields}

    def _body(self) -> Json:
        return {"model": self.model, "max_tokens": 24, "temperature": 0, "seed": 1}


def _object(response: httpx2.Response) -> Json:
    body: Json = answered(response).json()
    return body


def _stream(response: httpx2.Response) -> Stream:
    return Stream(answered(response).content)


def answered(response: httpx2.Response) -> httpx2.Response:
    """The response, if it is an answer; `Unsupported` or `Mismatch` if it is none."""
    if response.status_code == 400 and b'"unsupported_parameter"' in response.content:
        raise Unsupported(f"the server says: {response.json()['error']['message']}")
    expect(response.status_code == 200, f"{response.status_code} {response.text[:200]}")
    return response


class NoSuchModelError(Exception):
    """The server does not list the model; the message says which it lists."""


@contextmanager
def connect(
    url: str, *, model: str | None = None, api_key: str | None = None, timeout: float = 120
) -> Iterator[Endpoint]:
    """The server at `url`, with or without `/v1`, and one of its models, else the first.

    `timeout`: seconds without a byte after which a request counts as failed.
    """
    base = url.rstrip("/").removesuffix("/v1")
    key = api_key or _NO_KEY
    with (
        httpx2.Client(
            base_url=base,
            timeout=timeout,
            headers={"Authorization": f"Bearer {key}"},
            event_hooks={"request": [_without_key]},
            limits=httpx2.Limits(max_keepalive_connections=0),  # that servers close when they like
        ) as http,
        OpenAI(base_url=f"{base}/v1", api_key=key, max_retries=0, http_client=http) as openai,
    ):
        cards: list[Json] = _object(http.get("/v1/models"))["data"]
        card = next((card for card in cards if model in (None, card["id"])), None)
        if card is None:
            names = ", ".join(str(card["id"]) for card in cards) or "none"
            raise NoSuchModelError(f"{base} has no model {model or ''}; it lists: {names}")
        yield Endpoint(http, openai, card, api_key)


def _without_key(request: httpx2.Request) -> None:
    """Remove the key that the SDK insists on: a server would call it a wrong one."""
    if request.headers.get("Authorization") == f"Bearer {_NO_KEY}":
        del request.headers["Authorization"]
