"""Chats that are too long, and what is left out of them. ENG-10"""

import base64
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginebay.chat.plan.overflow import droppable
from enginebay.chat.schemas.messages import Message
from enginebay.testing import ScriptedEngine
from tests.conftest import ServeScripted
from tests.media.samples import PNG
from tests.support import Server, engine_backend, plugins_with, scripted_config, serve

CHAT = "/v1/chat/completions"
DROPPED = "x-dropped-messages"
SYSTEM = {"role": "system", "content": "Be."}


class Listening(ScriptedEngine):
    """Notes the prompts it is asked, and what it tokenizes."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(["ok"], **settings)
        self.prompts: list[str] = []
        self.tokenized = 0
        self.decoded: list[bytes] = []

    def add_request(self, request: Any) -> None:
        self.prompts.append(self.detokenize(request.prompt_token_ids))
        super().add_request(request)

    def tokenize(self, text: str, *, add_special_tokens: bool) -> list[int]:
        self.tokenized += 1
        return super().tokenize(text, add_special_tokens=add_special_tokens)

    def tokenize_media(self, pieces: Any, *, add_special_tokens: bool) -> Any:
        self.decoded += [piece.data for piece in pieces if not isinstance(piece, str)]
        return super().tokenize_media(pieces, add_special_tokens=add_special_tokens)


@pytest.fixture(scope="module")
def engine() -> Listening:
    return Listening(context_length=400)


@pytest.fixture(scope="module")
def server(engine: Listening) -> Iterator[Server]:
    plugins = plugins_with(scripted=engine_backend(lambda: engine))
    with serve(scripted_config(tools="hermes"), plugins) as running:
        yield running


def turns(count: int, size: int = 30) -> list[dict[str, Any]]:
    roles = ("user", "assistant")
    return [
        {"role": role, "content": f"{at}{role[0]}" + "x" * size}
        for at in range(count)
        for role in roles
    ]


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def test_whole_turns_go(server: Server, engine: Listening) -> None:
    messages = [SYSTEM, *turns(8), user("last")]
    body = {"messages": messages, "max_tokens": 40}
    refused = server.http.post(CHAT, json=body)
    assert refused.json()["error"]["code"] == "context_length_exceeded"
    for asked in ({"overflow": "drop_oldest"}, {"truncate_history": True}):
        answer = server.http.post(CHAT, json={**body, **asked})
        assert answer.status_code == 200, answer.text
        gone = int(answer.headers[DROPPED])
        kept = [SYSTEM, *messages[1 + gone :]]
        said = "".join(f"<{m['role']}>{m['content']}\n" for m in kept) + "<assistant>"
        assert engine.prompts[-1] == said
        assert gone % 2 == 0
        turn = len(f"<user>0u{'x' * 30}\n<assistant>0a{'x' * 30}\n")
        assert 400 - 40 - turn < len(said) <= 400 - 40
    off = {"overflow": "drop_oldest", "truncate_history": False}
    assert DROPPED in server.http.post(CHAT, json={**body, **off}).headers


def test_what_fits_stays_as_it_is(server: Server) -> None:
    answer = server.http.post(CHAT, json={"messages": turns(2), "overflow": "drop_oldest"})
    assert answer.status_code == 200
    assert DROPPED not in answer.headers


def test_room_for_the_answer(server: Server, engine: Listening) -> None:
    """`max_tokens`, at most half of the context; a quarter without it."""
    messages = [*turns(20, size=3), user("last")]
    for limit, room in (({}, 100), ({"max_tokens": 10}, 10), ({"max_tokens": 5000}, 200)):
        sent = {"messages": messages, "overflow": "drop_oldest", **limit}
        server.http.post(CHAT, json=sent)
        assert 400 - room - 40 < len(engine.prompts[-1]) <= 400 - room


def test_too_long_all_the_same(server: Server) -> None:
    messages = [*turns(3), user("x" * 500)]
    answer = server.http.post(CHAT, json={"messages": messages, "overflow": "drop_oldest"})
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "context_length_exceeded"


def test_explained(server: Server) -> None:
    body = {"messages": [SYSTEM, *turns(8), user("last")], "overflow": "drop_oldest"}
    answer = server.http.post(f"{CHAT}/explain", json=body).json()
    ran = server.http.post(CHAT, json=body)
    assert str(answer["dropped_messages"]) == ran.headers[DROPPED]
    assert answer["headers"]["X-Dropped-Messages"] == ran.headers[DROPPED]
    assert answer["prompt"].startswith("<system>Be.\n<user>")


@pytest.mark.wing("llama_server")
@pytest.mark.parametrize("asked", ["error", None])
def test_the_config_decides_for_requests_that_do_not(
    serve_scripted: ServeScripted, asked: str | None
) -> None:
    server = serve_scripted(["ok"], overflow="drop_oldest", engine={"context_length": 300})
    body: dict[str, Any] = {"messages": [*turns(9), user("last")], "overflow": asked}
    assert server.http.post(CHAT, json=body).status_code == (400 if asked else 200)
    counted = server.http.post(f"{CHAT}/input_tokens", json=body).json()
    assert counted["input_tokens"] > 300  # all of them


@pytest.mark.parametrize("value", ["drop", 1, ["error"]])
def test_bad_values(server: Server, value: Any) -> None:
    answer = server.http.post(CHAT, json={"messages": [user("x")], "overflow": value})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "overflow")


def test_few_renderings_of_many_turns(server: Server, engine: Listening) -> None:
    roles = ("user", "assistant")
    for sizes in ([30] * 500, [3, 300] * 100, [0] * 400 + [200] * 10):
        messages = [{"role": role, "content": "x" * size} for size in sizes for role in roles]
        before = engine.tokenized
        sent = {"messages": [*messages, user("last")], "overflow": "drop_oldest"}
        answer = server.http.post(CHAT, json=sent)
        assert answer.status_code == 200, answer.text
        assert engine.tokenized - before <= 12


def test_paths_are_those_that_were_sent(server: Server) -> None:
    messages = [*turns(8), {"role": "user", "content": [{"type": "text", "text": "x", "odd": 5}]}]
    answer = server.http.post(CHAT, json={"messages": messages, "overflow": "drop_oldest"})
    assert answer.headers["x-unsupported-params"] == "messages[16].content[0].odd"


def test_completions_are_no_chats(server: Server) -> None:
    body = {"prompt": "x", "overflow": "drop_oldest", "max_tokens": 1}
    assert server.http.post("/v1/completions", json=body).headers["x-unsupported-params"] == (
        "overflow"
    )


def test_pictures_that_go_are_not_decoded() -> None:
    engine = Listening(context_length=220, media={"image"})
    plugins = plugins_with(scripted=engine_backend(lambda: engine))
    with serve(scripted_config(), plugins) as server:
        items = [PNG + bytes([n]) for n in range(6)]
        messages = []
        for data in items:
            url = f"data:image/png;base64,{base64.b64encode(data).decode()}"
            picture = {"type": "image_url", "image_url": {"url": url}}
            messages += [
                {"role": "user", "content": [picture, {"type": "text", "text": "y" * 20}]},
                {"role": "assistant", "content": "z" * 20},
            ]
        sent = {"messages": [*messages, user("last")], "overflow": "drop_oldest"}
        answer = server.http.post(CHAT, json={**sent, "max_tokens": 9})
        assert answer.status_code == 200, answer.text
        gone = int(answer.headers[DROPPED]) // 2
        assert 0 < gone < 6
        decoded = set(engine.decoded)
        assert set(items[gone:]) <= decoded
        assert len(decoded - set(items[gone:])) <= 1


def test_calls_stay_with_their_results(server: Server, engine: Listening) -> None:
    def call(id: str) -> list[dict[str, Any]]:
        function = {"name": "f", "arguments": "{}"}
        called = [{"id": id, "type": "function", "function": function}]
        return [
            {"role": "assistant", "tool_calls": called, "content": f"call-{id}" + "x" * 20},
            {"role": "tool", "tool_call_id": id, "content": f"result-{id}" + "x" * 20},
        ]

    messages = [user("go"), *(part for n in range(9) for part in call(str(n)))]
    answer = server.http.post(CHAT, json={"messages": messages, "overflow": "drop_oldest"})
    assert answer.status_code == 200, answer.text
    prompt = engine.prompts[-1]
    assert prompt.startswith("<user>go\n")
    for n in range(9):
        assert (f"call-{n}" in prompt) == (f"result-{n}" in prompt)
    assert "result-8" in prompt


MESSAGES = st.lists(
    st.tuples(
        st.sampled_from(["system", "developer", "user", "assistant", "assistant", "tool"]),
        st.lists(st.sampled_from("abc"), max_size=2),
    ),
    min_size=1,
    max_size=14,
)


@given(MESSAGES)
def test_groups(drawn: list[tuple[str, list[str]]]) -> None:
    messages = []
    open_calls: set[str] = set()
    for role, ids in drawn:
        sent: dict[str, Any] = {"role": role, "content": "x"}
        if role == "assistant" and ids:
            sent["tool_calls"] = [{"id": id, "function": {"name": "f"}} for id in ids]
            open_calls |= set(ids)
        if role == "tool" and ids:
            sent["tool_call_id"] = ids[0]
        messages.append(Message.model_validate(sent))
    groups = droppable(messages)
    positions = [at for group in groups for at in group]
    assert len(set(positions)) == len(positions)
    said = [at for at, each in enumerate(messages) if each.role == "user"]
    for at in positions:
        assert messages[at].role not in ("system", "developer")
        assert not said or at != said[-1]
    for count in range(len(groups) + 1):
        gone = {at for group in groups[:count] for at in group}
        caller: dict[str, int] = {}
        for at, message in enumerate(messages):
            for called in message.tool_calls or ():
                caller[called.id or ""] = at
            of = caller.get(message.tool_call_id or "")
            if message.role == "tool" and of is not None:
                assert (at in gone) == (of in gone)
