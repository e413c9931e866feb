"""A model that says what the last message of the user tells it to, and laws of response streams."""

import json
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from typing import Any

import httpx2

from enginebay import Delta, GenerationRequest
from enginebay.contract.media import Media, MediaPrompt
from enginebay.server.access.key_store import KeyStore
from enginebay.testing import ScriptedEngine
from tests.apis.named_events import named_events
from tests.support import InlineBackend, Server, plugins_with, scripted_config, serve

PATH = "/v1/responses"
TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>"
    "{% if m.reasoning_content %}[thought {{ m.reasoning_content }}]{% endif %}{{ m.content }}"
    "{% for c in m.tool_calls or [] %}"
    "[call {{ c.id }} {{ c.function.name }} {{ c.function.arguments | tojson }}]{% endfor %}"
    "{% if m.tool_call_id %}[of {{ m.tool_call_id }}]{% endif %}{{ '\\n' }}{% endfor %}"
    "{% if tools %}[tools{% for t in tools %} {{ t.function.name }}{% endfor %}]{% endif %}"
    "{% if verbosity %}[{{ verbosity }}]{% endif %}"
    "{% if reasoning_effort %}[effort {{ reasoning_effort }}]{% endif %}"
    "{% if enable_thinking is defined and not enable_thinking %}[off]{% endif %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
WEATHER = {
    "type": "function",
    "name": "weather",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
THOUGHT = "<think>Let me see.</think>"


def call(name: str = "weather", **arguments: Any) -> str:
    """A call as the model writes it."""
    said = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>{said}</tool_call>"


def say(*pieces: str) -> str:
    """A message that has the model say this, a delta a piece."""
    return json.dumps(list(pieces))


class SayingEngine(ScriptedEngine):
    """Says the list of pieces that the user has said last; after a result of a tool, "Done."

    `prompts` are those it got. A piece "died" is an error.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(self._said, chat_template=TEMPLATE, **kwargs)
        self.prompts: list[str] = []

    def add_request(self, request: GenerationRequest) -> None:
        self.prompts.append(self.detokenize(request.prompt_token_ids))
        super().add_request(request)

    def _said(self, prompt: str, index: int) -> Iterator[str]:
        behind = prompt.rpartition("<user>")[2]
        text = behind.partition("\n")[0]
        pieces = json.loads(text) if text.startswith("[") else ["ok"]
        for piece in ["Done."] if "<tool>" in behind else pieces:
            if piece == "died":
                raise RuntimeError("no memory")
            yield piece


class StepwiseBackend(InlineBackend):
    """Forgets what is not read to its end."""

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Delta, None]:
        try:
            async with aclosing(super().generate(request)) as deltas:
                async for delta in deltas:
                    yield delta
        finally:
            self._engine.abort_request(request.request_id)

    async def tokenize_media(
        self, pieces: Sequence[str | Media], *, add_special_tokens: bool
    ) -> MediaPrompt:
        return self._engine.tokenize_media(pieces, add_special_tokens=add_special_tokens)


class Saying:
    """A server whose model does that."""

    def __init__(self, server: Server, engine: SayingEngine) -> None:
        self.server = server
        self.engine = engine

    def post(self, input: Any, **fields: Any) -> httpx2.Response:
        """What the route answers."""
        headers = fields.pop("headers", None)
        return self.server.http.post(PATH, json={"input": input, **fields}, headers=headers)

    def whole(self, input: Any, **fields: Any) -> dict[str, Any]:
        """The answer, whole."""
        response = self.post(input, **fields)
        assert response.status_code == 200, response.text
        answer: dict[str, Any] = response.json()
        return answer

    def events(self, input: Any, **fields: Any) -> list[dict[str, Any]]:
        """The events of the answer, which keep the laws."""
        response = self.post(input, stream=True, **fields)
        assert response.status_code == 200, response.text
        return checked(response.text)

    def both(self, input: Any, **fields: Any) -> dict[str, Any]:
        """The answer, which is the same whole and streamed."""
        whole = self.whole(input, **fields)
        streamed = self.events(input, **fields)[-1]["response"]
        assert unnamed(whole) == unnamed(streamed)  # RESP-1
        return whole

    @property
    def prompt(self) -> str:
        """The last prompt."""
        return self.engine.prompts[-1]


@contextmanager
def saying(
    *, keys: KeyStore | None = None, engine: Mapping[str, Any] | None = None, **model: Any
) -> Iterator[Saying]:
    """Serve such a model, whose deltas are never merged."""
    speaker = SayingEngine(**{"context_length": 4096, **(engine or {})})
    plugins = plugins_with(scripted=lambda settings: StepwiseBackend(speaker))
    config = scripted_config(**{"reasoning": "think", "tools": "hermes", **model})
    with serve(config, plugins, keys=keys) as server:
        yield Saying(server, speaker)


def unnamed(answer: Mapping[str, Any]) -> dict[str, Any]:
    """An answer without its ids and times."""
    output = [
        {name: value for name, value in item.items() if name not in ("id", "call_id")}
        for item in answer["output"]
    ]
    left = ("id", "created_at", "completed_at")
    return {**{k: v for k, v in answer.items() if k not in left}, "output": output}


def checked(text: str) -> list[dict[str, Any]]:
    """The events of a whole stream, with the laws that hold for every one of them."""
    events = named_events(text)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))  # RESP-2
    assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
    terminal = ("response.completed", "response.incomplete", "response.failed")
    assert [event["type"] in terminal for event in events].index(True) == len(events) - 1  # RESP-7
    final = events[-1]["response"]
    assert final["id"] == events[0]["response"]["id"]
    assert events[0]["response"]["usage"] is None
    assert final["usage"] is not None
    done = _items(events[2:-1])
    assert done == final["output"]  # RESP-3 RESP-4 RESP-6
    return events


def _items(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The items of a stream as they are when they are done; one is open at a time."""
    done: list[dict[str, Any]] = []
    open_item: dict[str, Any] | None = None
    part: dict[str, Any] | None = None
    deltas, finished = "", ""
    for event in events:
        kind = event["type"]
        assert event["output_index"] == len(done)
        if kind == "response.output_item.added":
            assert open_item is None
            open_item, deltas = event["item"], ""
            assert open_item.get("status", "in_progress") == "in_progress"
            continue
        assert open_item is not None
        if kind == "response.output_item.done":
            assert part is None
            assert event["item"]["id"] == open_item["id"]
            assert event["item"].get("status") != "in_progress"
            assert text_of(event["item"]) == finished == deltas  # RESP-5
            done.append(event["item"])
            open_item = None
            continue
        assert event["item_id"] == open_item["id"]
        if "part" in event:
            assert (part is None) == kind.endswith("part.added")
            part = event["part"] if part is None else None
        elif kind.endswith(".delta"):
            assert event["delta"]
            deltas += event["delta"]
        else:
            keys = ("text", "refusal", "arguments", "input")
            [finished] = [event[key] for key in keys if key in event]
        if "arguments" not in kind and "custom" not in kind:
            assert event["summary_index" if "summary" in kind else "content_index"] == 0
        if "output_text" in kind:
            assert isinstance(event["logprobs"], list)
    assert open_item is None
    return done


def text_of(item: Mapping[str, Any]) -> str:
    """What an item says."""
    parts = [*item.get("content", ()), *item.get("summary", ())]
    texts = [part.get("text", part.get("refusal")) for part in parts]
    return "".join([*texts, item.get("arguments", ""), item.get("input", "")])


def error_of(response: httpx2.Response, status: int = 400) -> dict[str, Any]:
    """The error of an answer, which is OpenAI's."""
    assert response.status_code == status, response.text
    error: dict[str, Any] = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error
