"""Pictures on the backend exllamav2 beside others: caches, choices, failures, and a server.

Rows of the acceptance lists: MEDIA-5, 6, 7, 9, 10, 15, 37, TAB-32.
"""

import base64
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import openai
import pytest

from enginebay import Media, Pattern
from enginebay.config.schema import Config
from enginebay.testing import check_backend
from tests.backends.exllamav2_asking import Model, ask, check_logprobs, prompt
from tests.backends.exllamav2_loading import LoadExLlamaV2
from tests.backends.exllamav2_loading import load_exllamav2 as load_exllamav2
from tests.backends.exllamav2_seeing import picture
from tests.backends.test_exllamav2_engine import assert_empty
from tests.run import Run, request
from tests.support import Server, engine_backend, plugins_with, serve


@pytest.fixture(scope="module")
def qwen(load_exllamav2: LoadExLlamaV2, tmp_path_factory: pytest.TempPathFactory) -> Model:
    """Its positions have axes, so it shows what others do, too."""
    return Model(tmp_path_factory.mktemp("qwen"), "qwen2_vl", load_exllamav2)


def counted(engine: Any, patch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one for each picture that the tower encodes from now on."""
    tower = engine._model.pictures._tower
    encode = tower.encode
    counts: list[int] = []

    def encode_counted(*arguments: Any) -> Any:
        counts.append(1)
        return encode(*arguments)

    patch.setattr(tower, "encode", encode_counted)
    return counts


# The prefix cache, choices, company.


def test_a_picture_is_encoded_once_and_its_tokens_are_cached(  # MEDIA-5, MEDIA-7
    qwen: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = qwen.load()
    encodings = counted(engine, monkeypatch)
    turn = ask(engine, ["see ", picture(11), " what is it?"], n=2, id="one")
    run = Run(engine, turn).finish()
    assert len(encodings) == 1
    assert run.token_ids("one", 0) == run.token_ids("one", 1)
    assert run.deltas["one", 0][0].prefill_tokens == len(turn.prompt_token_ids)
    again = ask(engine, ["see ", picture(11), " what is it? and now?"], id="two")
    delta = Run(engine, again).finish().deltas["two", 0][0]
    assert delta.cached_tokens >= turn.media[0].end
    assert delta.cached_tokens + delta.prefill_tokens == len(again.prompt_token_ids)
    assert len(encodings) == 1
    other = ask(engine, ["see ", picture(12), " what is it?"], id="three")
    assert len(other.prompt_token_ids) == len(turn.prompt_token_ids)
    delta = Run(engine, other).finish().deltas["three", 0][0]
    # What stands before the rows is one of the library's tokens of the picture, too.
    assert delta.cached_tokens < other.media[0].start
    assert len(encodings) == 2


def test_without_room_for_rows_choices_still_share_them(
    qwen: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = qwen.load(media_cache_mb=0)
    encodings = counted(engine, monkeypatch)
    asked = ask(engine, ["see ", picture(1)], n=3)
    run = Run(engine, asked).finish()
    assert len(encodings) == 1
    assert len({tuple(run.token_ids(index=index)) for index in range(3)}) == 1
    Run(engine, ask(engine, ["see ", picture(2)])).finish()
    Run(engine, asked).finish()
    assert len(encodings) == 3


@pytest.mark.parametrize("options", [{"cache_tokens": 512}, {"paged": False}, {"prompt_lookup": 3}])
def test_answers_are_the_same_under_pressure(qwen: Model, options: dict[str, Any]) -> None:
    """Where memory runs out, where requests take turns, and where tokens are guessed."""
    tight = qwen.load(context_length=512, **options)
    asked = [
        ask(
            tight,
            ["see " * n, picture(n, 64, 64), " again "],
            id=str(n),
            max_tokens=240,
            logprobs=0,
        )
        for n in range(1, 5)
    ]
    run = Run(tight, *asked).finish()
    assert not run.errors
    if "cache_tokens" in options:
        assert tight.stats().preempted
    if "prompt_lookup" in options:
        assert tight.stats().drafted
    for each in asked:
        check_logprobs(qwen, run, each)
    assert_empty(tight)


def test_guessing_never_says_a_token_of_a_picture(qwen: Model) -> None:
    engine = qwen.load(prompt_lookup=3)
    media = picture(1)
    asked = ask(engine, ["a", media, "b", media, "a"], max_tokens=30, logprobs=0)
    run = Run(engine, asked).finish()
    assert not run.errors
    check_logprobs(qwen, run, asked)


def test_running_choices_wait_for_one_picture_at_most(  # MEDIA-37
    qwen: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = qwen.load()
    encodings = counted(engine, monkeypatch)
    run = Run(engine, request([5, 6, 7], id="text", max_tokens=40)).steps(3)
    many = [picture(20 + n) for n in range(4)]
    run.add(ask(engine, ["see ", *many], id="many", max_tokens=4))
    for encoded in range(1, 5):
        said = len(run.token_ids("text"))
        run.steps(1)
        assert len(encodings) == encoded
        assert len(run.token_ids("text")) > said
    run.add(ask(engine, [picture(30), picture(31)], id="gone"))
    run.steps(1)
    run.abort("gone")
    run.finish()
    assert len(encodings) == 5
    assert not run.errors
    assert_empty(engine)


def test_a_tower_that_fails_ends_its_request_only(
    qwen: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = qwen.load()
    bad = ask(engine, ["see ", picture(1)], id="bad", n=2)
    good = ask(engine, ["see ", picture(2)], id="good", max_tokens=6)
    run = Run(engine, good).steps(2)
    with monkeypatch.context() as patch:
        process = engine._model.pictures._tower._tower

        def fail(*_: Any, **__: Any) -> None:
            raise RuntimeError("CUDA out of memory")

        patch.setattr(process, "process", fail)
        run.add(bad)
        run.steps(2)
    run.finish()
    assert "CUDA out of memory" in run.errors["bad"].message
    assert run.token_ids("good") == Run(engine, good).finish().token_ids("good")
    assert not Run(engine, bad).finish().errors
    assert_empty(engine)


@pytest.mark.parametrize(  # MEDIA-9
    "sampling",
    [
        {"constraint": Pattern("[0-9]{4}-[0-9]{2}"), "ignore_eos": False},
        {"token_healing": True},
        {"banned_strings": ("a", "th")},
        {"repetition_penalty": 1.4, "frequency_penalty": 0.5, "dry_multiplier": 0.8},
        {"temperature": 1.0, "seed": 3, "logprobs": 2},
        {"stop": ("e",)},
    ],
    ids=lambda sampling: next(iter(sampling)),
)
def test_sampling_beside_pictures(qwen: Model, sampling: dict[str, Any]) -> None:
    asked = ask(qwen.engine, ["see ", picture(1), " the qui"], n=2, max_tokens=12, **sampling)
    run = Run(qwen.engine, asked).finish()
    assert not run.errors
    again = Run(qwen.load(), asked).finish()
    assert run.text() == again.text()
    if "constraint" in sampling:
        assert run.text()[:4].isdigit()
    if "banned_strings" in sampling:
        assert "a" not in run.text()
        assert "th" not in run.text()


# Behind a server.


@pytest.fixture(scope="module")
def server(qwen: Model) -> Iterator[Server]:
    create = engine_backend(qwen.load)
    config = {"models": [{"name": "tiny", "backend": "exl", "path": str(qwen.folder)}]}
    with serve(Config.model_validate(config), plugins_with(exl=create)) as running:
        yield running


def chat(server: Server, *pictures: Media, **body: Any) -> Any:
    parts: list[dict[str, Any]] = [{"type": "text", "text": "see "}]
    for media in pictures:
        url = "data:image/png;base64," + base64.b64encode(media.data).decode()
        parts.append({"type": "image_url", "image_url": {"url": url}})
    messages = [{"role": "user", "content": [*parts, {"type": "text", "text": " what?"}]}]
    return server.openai.chat.completions.create(
        model="tiny", messages=messages, temperature=0, max_tokens=12, **body
    )


def test_a_chat_shows_pictures_where_its_parts_stand(  # TAB-32, MEDIA-5, MEDIA-6
    server: Server, qwen: Model
) -> None:
    whole = chat(server, picture(1), picture(2, 64, 32))
    pieces = ["user: see ", picture(1), picture(2, 64, 32), " what? bot: "]
    made = prompt(qwen.engine, *pieces)
    assert whole.usage.prompt_tokens == len(made.token_ids)
    images = whole.usage.prompt_tokens_details.image_tokens
    assert images == sum(span.tokens for span in made.spans)
    asked = replace(request(made.token_ids, ignore_eos=False), media=made.spans)
    assert whole.choices[0].message.content == Run(qwen.engine, asked).finish().text()
    streamed = "".join(
        chunk.choices[0].delta.content or ""
        for chunk in chat(server, picture(1), picture(2, 64, 32), stream=True)
    )
    assert streamed == whole.choices[0].message.content
    again = chat(server, picture(1), picture(2, 64, 32))
    assert again.usage.prompt_tokens_details.cached_tokens >= made.spans[-1].end


def test_a_list_of_models_says_what_they_take(server: Server) -> None:  # MEDIA-10
    [listed] = server.http.get("/v1/models").json()["data"]
    assert listed["architecture"]["input_modalities"] == ["text", "image"]


def test_a_damaged_picture_is_a_400_with_its_path(server: Server) -> None:  # MEDIA-15
    cut = replace(picture(1, 480, 480), data=picture(1, 480, 480).data[:300])
    with pytest.raises(openai.BadRequestError) as caught:
        chat(server, picture(1), cut)
    assert caught.value.param == "messages[0].content[2]"


@pytest.mark.thorough
async def test_check_backend(qwen: Model) -> None:
    await check_backend(qwen.load, prompt="the quick brown fox")
