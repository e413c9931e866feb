"""Responses that are kept: found, gone on from, referred to, listed, deleted; and by whom."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from enginebay.config.keys import Key
from enginebay.server.access.key_store import KeyStore
from enginebay.server.access.keys import digest_of
from tests.apis.response_events import (
    PATH,
    THOUGHT,
    WEATHER,
    Saying,
    call,
    error_of,
    say,
    saying,
    text_of,
)


@pytest.fixture(scope="module")
def at() -> Iterator[Saying]:
    with saying() as server:
        yield server


def get(at: Saying, id: str, status: int = 200, headers: Any = None) -> Any:
    response = at.server.http.get(f"{PATH}/{id}", headers=headers)
    assert response.status_code == status, response.text
    return response.json()


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


@pytest.mark.parametrize("stream", [False, True])
def test_what_was_answered_is_kept(at: Saying, stream: bool) -> None:
    # RESP-4 RESP-26
    said = say(*THOUGHT, "Hello")
    answer = at.events(said)[-1]["response"] if stream else at.whole(said)
    assert answer["store"] is True
    assert get(at, answer["id"]) == answer
    at.whole("more", previous_response_id=answer["id"])
    assert at.prompt == (
        f"<user>{said}\n<assistant>[thought Let me see.]Hello\n<user>more\n<assistant>"
    )


def test_a_response_can_be_chained_when_its_end_is_told(at: Saying) -> None:
    # RESP-26
    with at.server.http.stream("POST", PATH, json={"input": "hi", "stream": True}) as response:
        lines = (line[6:] for line in response.iter_lines() if line.startswith("data: "))
        end = next(e for e in map(json.loads, lines) if e["type"] == "response.completed")
        id = end["response"]["id"]
        assert at.whole("more", previous_response_id=id)["previous_response_id"] == id


def test_calls_survive(at: Saying) -> None:
    # RESP-21
    first = at.whole(say(*THOUGHT, call(city="Oslo")), tools=[WEATHER])
    made = first["output"][1]
    output = {"type": "function_call_output", "call_id": made["call_id"], "output": "4 degrees"}
    second = at.whole([output], tools=[WEATHER], previous_response_id=first["id"])
    assert text_of(second["output"][0]) == "Done."
    third = at.whole("Thanks", previous_response_id=second["id"])
    written = json.dumps({"city": "Oslo"})
    assert f"[thought Let me see.][call {made['call_id']} weather {written}]" in at.prompt
    assert f"<tool>4 degrees[of {made['call_id']}]\n<assistant>Done.\n<user>Thanks" in at.prompt
    assert third["previous_response_id"] == second["id"]


def test_instructions_are_not_inherited(at: Saying) -> None:
    # RESP-23
    first = at.whole("hi", instructions="Be kind.")
    at.whole("more", previous_response_id=first["id"], instructions="Be short.")
    assert at.prompt.startswith("<system>Be short.\n<user>hi")
    at.whole("more", previous_response_id=first["id"])
    assert at.prompt.startswith("<user>hi")


@pytest.mark.parametrize("stream", [False, True])
def test_unknown_ones(at: Saying, stream: bool) -> None:
    # RESP-22 RESP-24
    error = error_of(at.post("hi", previous_response_id="resp_nobody", stream=stream))
    assert error["param"] == "previous_response_id"
    assert error["code"] == "previous_response_not_found"
    items = [user("hi"), {"type": "item_reference", "id": "msg_nobody"}]
    error = error_of(at.post(items, stream=stream), 404)
    assert "msg_nobody" in error["message"]
    assert error["param"] == "input[1].id"


def test_references(at: Saying) -> None:
    # RESP-24
    first = at.whole(say(*THOUGHT, "Hello"), store=True)
    [asked] = at.server.http.get(f"{PATH}/{first['id']}/input_items").json()["data"]
    ids = [asked["id"], *(item["id"] for item in first["output"])]
    items = [{"type": "item_reference", "id": ids[0]}, {"id": ids[1]}, {"id": ids[2]}]
    second = at.whole([*items, user("more")])
    assert "<assistant>[thought Let me see.]Hello\n<user>more\n" in at.prompt
    listed = at.server.http.get(f"{PATH}/{second['id']}/input_items?order=asc").json()["data"]
    assert [item["id"] for item in listed[:3]] == ids


def test_a_reference_is_not_repeated(at: Saying) -> None:
    """As few bytes could otherwise ask for any amount of text."""
    id = at.whole("hi")["output"][0]["id"]
    error = error_of(at.post([{"id": id}, user("x"), {"id": id}]))
    assert error["param"] == "input[2].id"
    assert id in error["message"]


def test_what_is_not_to_be_kept(at: Saying) -> None:
    # RESP-25
    for stream in (False, True):
        fields: dict[str, Any] = {"store": False}
        answer = at.events("hi", **fields)[-1]["response"] if stream else at.whole("hi", **fields)
        assert answer["store"] is False
        get(at, answer["id"], 404)
        error_of(at.post("more", previous_response_id=answer["id"]))
        error_of(at.post([{"id": answer["output"][0]["id"]}]), 404)


def test_without_a_store() -> None:
    with saying(server={"response_store": "off"}) as other:
        for fields in ({}, {"store": True}):
            answer = other.both("hi", **fields)
            assert answer["store"] is False
        get(other, answer["id"], 404)
        error = error_of(other.post("hi", previous_response_id=answer["id"]))
        assert error["message"].startswith("this server stores no responses")
        error_of(other.post([{"id": "msg_1"}]), 404)
        error_of(other.server.http.delete(f"{PATH}/{answer['id']}"), 404)


def test_deleting(at: Saying) -> None:
    # RESP-27
    first = at.whole("hi")
    second = at.whole("more", previous_response_id=first["id"])
    deleted = at.server.http.delete(f"{PATH}/{first['id']}")
    assert deleted.json() == {"id": first["id"], "object": "response", "deleted": True}
    for gone in ("", "/input_items"):
        error_of(at.server.http.get(f"{PATH}/{first['id']}{gone}"), 404)
    error_of(at.server.http.delete(f"{PATH}/{first['id']}"), 404)
    error_of(at.post("again", previous_response_id=first["id"]))
    at.whole("again", previous_response_id=second["id"])
    assert at.prompt.startswith("<user>hi\n<assistant>ok\n<user>more\n")


def test_input_items(at: Saying) -> None:
    # RESP-28
    sent = [user(f"{number}") for number in range(5)]
    first = at.whole(sent)
    path = f"{PATH}/{first['id']}/input_items"
    page = at.server.http.get(path).json()
    assert (page["object"], page["has_more"]) == ("list", False)
    ids = [item["id"] for item in page["data"]]
    assert (page["first_id"], page["last_id"]) == (ids[0], ids[-1])
    texts = [item["content"][0]["text"] for item in page["data"]]
    assert texts == ["4", "3", "2", "1", "0"]
    assert page["data"][0] == {
        "id": ids[0],
        "type": "message",
        "role": "user",
        "status": "completed",
        "content": [{"type": "input_text", "text": "4"}],
    }
    for order in ("asc", "desc"):
        found, after = [], ""
        while True:
            asked = at.server.http.get(f"{path}?order={order}&limit=2{after}").json()
            found += [item["id"] for item in asked["data"]]
            after = f"&after={asked['last_id']}"
            if not asked["has_more"]:
                break
        assert found == (ids[::-1] if order == "asc" else ids)
    for query in ("limit=0", "limit=101", "limit=x", "order=up", "after=nobody", "limit=-1"):
        error = error_of(at.server.http.get(f"{path}?{query}"))
        assert error["param"] == query.partition("=")[0]


def test_pages_of_items_with_one_id_end(at: Saying) -> None:
    # RESP-28
    first = at.whole(
        [{**user(text), "id": id} for id, text in (("a", "1"), ("a", "2"), ("b", "3"))]
    )
    path = f"{PATH}/{first['id']}/input_items?order=asc&limit=1"
    page = at.server.http.get(path).json()
    for _ in range(3):
        if page["has_more"]:
            page = at.server.http.get(f"{path}&after={page['last_id']}").json()
    assert (page["last_id"], page["has_more"]) == ("b", False)


def test_own_input_items_only(at: Saying) -> None:
    first = at.whole("a")
    second = at.whole("b", previous_response_id=first["id"])
    listed = at.server.http.get(f"{PATH}/{second['id']}/input_items").json()["data"]
    assert [item["content"][0]["text"] for item in listed] == ["b"]


def test_what_there_is_not(at: Saying) -> None:
    # RESP-33
    for fields, param in (
        ({"background": True}, "background"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"conversation": {"id": "conv_1"}}, "conversation"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt"),
        ({"conversation": "c", "previous_response_id": "r"}, "previous_response_id"),
    ):
        for stream in (False, True):
            assert error_of(at.post("hi", stream=stream, **fields))["param"] == param
    answer = at.whole("hi", background=False, conversation=None)
    assert error_of(at.server.http.get(f"{PATH}/{answer['id']}?stream=true"))["param"] == "stream"
    assert at.server.http.get(f"{PATH}/{answer['id']}?stream=false&include[]=x").status_code == 200
    assert "background" in error_of(at.server.http.post(f"{PATH}/{answer['id']}/cancel"))["message"]
    error_of(at.server.http.post(f"{PATH}/resp_nobody/cancel"), 404)
    for path in ("/v1/responses/compact/x", "/v1/conversations"):
        error_of(at.server.http.get(path), 404)


def test_conversations_are_not_compacted() -> None:
    """Codex takes an ordinary answer to this item for a broken compaction. EVE-7 WIRE-9"""
    items = [{"role": "user", "content": "hi"}, {"type": "compaction_trigger"}]
    with saying() as at:
        for stream in (False, True):
            response = at.server.http.post(PATH, json={"input": items, "stream": stream})
            error = error_of(response)
            assert (error["param"], error["code"]) == ("input[1]", "unsupported_parameter")
            assert "ordinary request" in error["message"]
        for path in (f"{PATH}/compact", "/responses/compact"):
            error = error_of(at.server.http.post(path, json={"model": "m", "input": items}), 404)
            assert "ordinary request" in error["message"]


def test_penalties_are_numbers() -> None:
    """Clients check that each response has both. WIRE-9"""
    with saying() as at:
        for sent in ({}, {"presence_penalty": 0.5, "frequency_penalty": -1}):
            answer = at.whole("hi", **sent)
            kept = at.server.http.get(f"{PATH}/{answer['id']}").json()
            for response in (answer, kept):
                assert response["presence_penalty"] == sent.get("presence_penalty", 0.0)
                assert response["frequency_penalty"] == sent.get("frequency_penalty", 0.0)


def test_whose_they_are(tmp_path: Path) -> None:
    # RESP-29 RESP-24
    names = {"ann": "a" * 32, "ben": "b" * 32}
    keys = [Key(name, digest_of(secret)) for name, secret in names.items()]
    keys.append(Key("root", digest_of("r" * 32), "admin"))
    with saying(keys=KeyStore(tmp_path / "keys.yml", keys), server={"auth": "required"}) as at:
        ann, ben = ({"x-api-key": secret} for secret in names.values())
        root = {"x-api-key": "r" * 32}
        answer = at.whole("a secret", headers=ann)
        path = f"{PATH}/{answer['id']}"
        assert get(at, answer["id"], headers=ann) == answer
        unknown = get(at, "resp_nobody", 404, ben)
        for other in (ben, root):
            found = get(at, answer["id"], 404, other)
            assert json.dumps(found).replace(answer["id"], "resp_nobody") == json.dumps(unknown)
            error_of(at.server.http.get(f"{path}/input_items", headers=other), 404)
            error_of(at.server.http.delete(path, headers=other), 404)
            error_of(at.server.http.post(f"{path}/cancel", headers=other), 404)
            error_of(at.post("more", previous_response_id=answer["id"], headers=other))
            item = [{"id": answer["output"][0]["id"]}]
            error_of(at.post(item, headers=other), 404)
        assert at.server.http.get(path).status_code == 401
        assert at.post("more", previous_response_id=answer["id"], headers=ann).status_code == 200


def test_only_where_it_is_served() -> None:
    with saying(server={"apis": ["messages"]}) as other:
        error_of(other.post("hi"), 404)
