"""Fields of `/v1/embeddings` besides OpenAI's: sizes, prompts, cuts, whose model it is."""

import json
import math
from collections.abc import Iterator
from typing import Any

import pytest

from tests.pooling import CONTEXT, refusal, serving
from tests.support import Server


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving() as running:
        yield running


def ask(server: Server, input: Any, model: str | None = "embeds", **more: Any) -> Any:
    body = {"input": input, "model": model, **more}
    return server.http.post("/v1/embeddings", content=json.dumps(body))


def vectors(server: Server, input: Any, model: str = "embeds", **more: Any) -> list[list[float]]:
    response = ask(server, input, model, **more)
    assert response.status_code == 200, response.text
    assert "x-unsupported-params" not in response.headers
    return [item["embedding"] for item in response.json()["data"]]


def test_they_have_length_1_unless_a_request_says_otherwise(server: Server) -> None:
    assert vectors(server, ["aaab", "x"])[0] == pytest.approx([3 / 10**0.5, 1 / 10**0.5, 0, 0])
    assert vectors(server, "x") == [[0, 0, 0, 0]]  # it has no direction
    for name in ("normalize", "use_activation"):  # of TEI, and of vLLM
        assert vectors(server, "aaab", **{name: False}) == [[3, 1, 0, 0]]
        assert vectors(server, "aaab", **{name: None}) == vectors(server, "aaab")


@pytest.mark.parametrize(
    ("model", "size"), [("nested", 2), ("nested", 3), ("any", 1), ("any", 3), ("embeds", 4)]
)
def test_models_trained_for_it_make_shorter_ones(server: Server, model: str, size: int) -> None:
    # SCO-7: cut, and scaled again.
    full = vectors(server, "aabbbcd", model, normalize=False)[0]
    [short] = vectors(server, "aabbbcd", model, dimensions=size)
    assert math.hypot(*short) == pytest.approx(1)
    assert short == pytest.approx([x / math.hypot(*full[:size]) for x in full[:size]])
    assert vectors(server, "aabbbcd", model, dimensions=size, normalize=False) == [full[:size]]


@pytest.mark.parametrize(
    ("model", "size", "said"),
    [
        ("embeds", 2, "4 dimensions, and it was not trained"),
        ("nested", 1, "have 2, 3 or 4 dimensions"),
        ("any", 5, "4 dimensions or fewer"),
    ],
)
def test_others_say_what_sizes_there_are(server: Server, model: str, size: int, said: str) -> None:
    error = refusal(ask(server, "a", model, dimensions=size))
    assert (error["param"], said in error["message"]) == ("dimensions", True)


@pytest.mark.parametrize(
    ("choice", "prompt"),
    [
        ({}, "c: "),
        ({"prompt_name": "query"}, "a: "),
        ({"prompt_name": "passage"}, "b: "),
        ({"input_type": "query"}, "a: "),
        ({"input_type": "search_query"}, "a: "),
        ({"input_type": "document"}, "b: "),
        ({"input_type": "search_document"}, "b: "),
        ({"input_type": "topic"}, "c: "),
        ({"task": "retrieval.query"}, "a: "),
        ({"prompt_name": "query", "input_type": "passage"}, "a: "),
    ],
)
def test_prompts_stand_in_front(server: Server, choice: dict[str, str], prompt: str) -> None:
    text = "dd"
    found = vectors(server, text, "prompted", normalize=False, **choice)
    assert found == vectors(server, prompt + text, normalize=False)
    usage = ask(server, text, "prompted", **choice).json()["usage"]
    assert usage["prompt_tokens"] == len(prompt + text) + 2


@pytest.mark.parametrize(
    ("model", "choice", "names"),
    [
        ("prompted", {"prompt_name": "title"}, "'query', 'passage', 'topic'"),
        ("prompted", {"prompt_name": ""}, "'query', 'passage', 'topic'"),
        ("prompted", {"input_type": "image"}, "'query', 'passage', 'topic'"),
        ("embeds", {"prompt_name": "query"}, "none"),
    ],
)
def test_unknown_prompts(server: Server, model: str, choice: dict[str, str], names: str) -> None:
    # MEDIA-42
    error = refusal(ask(server, "a", model, **choice))
    assert error["param"] == next(iter(choice))
    assert error["message"].endswith(f"its prompts: {names}")


def test_token_ids_get_no_prompt(server: Server) -> None:
    ids = [1, 100, 2]
    assert vectors(server, ids, "prompted", normalize=False) == [[0, 0, 0, 1]]
    error = refusal(ask(server, [ids], "prompted", prompt_name="query"))
    assert error["param"] == "prompt_name"


def test_a_type_of_input_means_nothing_to_models_without_prompts(server: Server) -> None:
    assert ask(server, "a", input_type="image").headers["x-unsupported-params"] == "input_type"


def test_a_type_of_input_means_nothing_to_token_ids(server: Server) -> None:
    answer = ask(server, [1, 100], "prompted", input_type="query")
    assert answer.status_code == 200
    assert answer.headers["x-unsupported-params"] == "input_type"


@pytest.mark.parametrize(
    ("cut", "kept"),
    [
        ({"truncate_prompt_tokens": 5}, "aab"),
        ({"truncate_prompt_tokens": 5, "truncation_side": "left"}, "bdd"),
        ({"truncate_prompt_tokens": 5, "truncation_direction": "Left"}, "bdd"),
        ({"truncate_prompt_tokens": 100}, "aabbbdd"),
        ({"truncate": True}, "aabbbdd"),
    ],
)
def test_cut_texts_keep_what_stands_around_them(
    server: Server, cut: dict[str, Any], kept: str
) -> None:
    whole = vectors(server, kept, normalize=False)
    assert vectors(server, "aabbbdd", normalize=False, **cut) == whole
    usage = ask(server, "aabbbdd", **cut).json()["usage"]
    assert usage["prompt_tokens"] == len(kept) + 2


@pytest.mark.parametrize("cut", [{"truncate": True}, {"truncate_prompt_tokens": -1}])
@pytest.mark.parametrize("length", [CONTEXT - 1, 5000, 1_000_000])
def test_texts_of_any_length_fit_when_they_are_cut(
    server: Server, cut: dict[str, Any], length: int
) -> None:
    answer = ask(server, ["d" * length, "a"], **cut).json()
    assert answer["usage"]["prompt_tokens"] == CONTEXT + 3
    left = ask(server, "a" + "d" * length, truncation_side="left", normalize=False, **cut).json()
    assert left["data"][0]["embedding"] == [0, 0, 0, CONTEXT - 2]
    error = refusal(ask(server, ["a", "d" * length]))
    assert (error["code"], error["param"]) == ("context_length_exceeded", "input[1]")


def test_token_ids_are_cut_as_they_are(server: Server) -> None:
    ids = [97] * 3 + [98] * CONTEXT
    assert vectors(server, ids, truncate=True, normalize=False) == [[3, CONTEXT - 3, 0, 0]]
    cut = {"truncate_prompt_tokens": 4, "truncation_side": "left"}
    assert vectors(server, [ids], normalize=False, **cut) == [[0, 4, 0, 0]]


def test_special_tokens_can_be_left_out(server: Server) -> None:
    answer = ask(server, "abc", add_special_tokens=False).json()
    assert answer["usage"]["prompt_tokens"] == 3


@pytest.mark.parametrize(
    ("wrong", "param"),
    [
        ({"truncate_prompt_tokens": -2}, "truncate_prompt_tokens"),
        ({"truncate_prompt_tokens": 0}, "input"),
        ({"truncation_side": "middle"}, "truncation_side"),
        ({"truncate": "some"}, "truncate"),
        ({"normalize": "some"}, "normalize"),
        ({"prompt_name": 5}, "prompt_name"),
        ({"priority": 2**40}, "priority"),
    ],
)
def test_wrong_fields(server: Server, wrong: dict[str, Any], param: str) -> None:
    assert refusal(ask(server, "a", **wrong))["param"] == param


def test_what_is_not_finite_is_named(server: Server) -> None:
    error = refusal(ask(server, ["a", "b", "!", "c"]))
    assert (error["param"], "not finite" in error["message"]) == ("input[2]", True)
    assert vectors(server, "a") == [[1, 0, 0, 0]]


def test_too_many_are_counted_before_they_are_read(server: Server) -> None:
    error = refusal(ask(server, ["", *[5] * 100_000]))
    assert (error["param"], "the maximum is 2048" in error["message"]) == ("input", True)


def test_without_a_name_it_is_a_model_that_can(server: Server) -> None:
    assert ask(server, "a", None).json()["model"] == "embeds"
    with serving("says") as only:
        assert refusal(ask(only, "a", None))["param"] == "model"


def test_it_can_be_seen_what_a_model_makes(server: Server) -> None:
    report = server.http.get("/v1/models/prompted/inspect").json()
    assert (report["embedding_size"], report["shorter_embeddings"]) == (4, None)
    assert (report["prompts"]["query"], report["default_prompt"]) == ("a: ", "topic")
    assert server.http.get("/v1/models/nested/inspect").json()["shorter_embeddings"] == [2, 3]
    cards = {card["id"]: card for card in server.http.get("/v1/models").json()["data"]}
    assert cards["any"]["embedding_size"] == 4
    assert (cards["says"]["embedding_size"], cards["three"]["labels"]) == (
        None,
        ["good", "bad", "neither"],
    )
