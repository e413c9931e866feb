"""Text of real vocabularies: streamed, at once, and by the tokenizer's own decode. REAL-7"""

import copy
import json
import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from enginebay import Detokenizer
from tests.real.echo import EchoEngine
from tests.real.vocabularies import UNKNOWN, Vocabulary
from tests.support import Server, engine_backend, plugins_with, scripted_config, serve

pytestmark = [pytest.mark.real, pytest.mark.thorough]
LONGEST = 40
PATH = "/v1/completions"


@pytest.fixture(scope="module")
def echo(vocabulary: Vocabulary) -> Iterator[Server]:
    """A server that answers with the tokens of the prompt."""
    plugins = plugins_with(scripted=engine_backend(lambda: EchoEngine(vocabulary)))
    with serve(scripted_config(), plugins) as server:
        yield server


def test_every_cut_of_a_stream(vocabulary: Vocabulary) -> None:
    """After each token the stream has a beginning of the text, and its end gives the rest."""
    whole = 0
    for token_ids in vocabulary.sequences(1000, LONGEST):
        detokenizer, text = Detokenizer(vocabulary.ours.decode), ""
        for number, token_id in enumerate(token_ids, 1):
            text += detokenizer.feed(token_id)
            rest = copy.copy(detokenizer).finish()
            vocabulary.check(text + rest, token_ids[:number])
        whole += UNKNOWN not in text + rest
    assert whole > 300  # random text is all whole characters


@pytest.mark.parametrize("skip", [False, True])
def test_streamed_and_whole_texts_over_http(
    echo: Server, vocabulary: Vocabulary, skip: bool
) -> None:
    sequences = vocabulary.sequences(1000, LONGEST)
    for start in range(0, len(sequences), 50):
        prompts = sequences[start : start + 50]
        body = {"prompt": prompts, "skip_special_tokens": skip, "return_token_ids": True}
        whole, streamed = at_once(echo, body), in_pieces(echo, body)
        for index, token_ids in enumerate(prompts):
            assert whole[index] == streamed[index]
            assert whole[index][1] == token_ids
            vocabulary.check(whole[index][0], token_ids, skip_special_tokens=skip)


def test_special_tokens_have_text_only_if_asked(echo: Server, vocabulary: Vocabulary) -> None:
    """REAL-5"""
    chance = random.Random(5)
    special = sorted(vocabulary.ours.special_token_ids)
    words = vocabulary.ours.encode("One word and another.", add_special_tokens=False)
    token_ids = [id for word in words for id in (chance.choice(special), word)]
    body = {"prompt": token_ids}
    assert at_once(echo, body)[0][0] == "One word and another."
    assert in_pieces(echo, body)[0][0] == "One word and another."
    shown = at_once(echo, {**body, "skip_special_tokens": False})[0][0]
    assert shown == vocabulary.decode(token_ids)


def test_texts_of_a_model_over_http(served: Server, vocabulary: Vocabulary) -> None:
    """Sampled tokens of a model, and counts of tokens that are exact."""
    [prompt] = vocabulary.sequences(1, LONGEST)
    for number, given in enumerate([prompt, "Hello 日本 😀"]):
        expected = given if given is prompt else vocabulary.theirs.encode(given)
        for seed in range(3):
            asked = {"prompt": given, "max_tokens": 40, "seed": seed, "ignore_eos": True}
            body = {**asked, "return_token_ids": True, "skip_special_tokens": False}
            for get in (at_once, in_pieces):
                salted = {**body, "cache_salt": f"{number} {seed} {get.__name__}"}
                text, token_ids, prompt_ids, usage = get(served, salted)[0]
                vocabulary.check(text, token_ids)
                assert prompt_ids == expected
                assert usage == (len(expected), len(token_ids), 40 + len(expected))
                assert len(token_ids) == 40


Answer = tuple[str, list[int], list[int] | None, tuple[int, int, int]]


def at_once(server: Server, body: Any) -> dict[int, Answer]:
    """Text, token ids, token ids of the prompt, and the usage of the whole answer, by choice."""
    answered = server.http.post(PATH, json=body)
    assert answered.status_code == 200, answered.text
    return _joined([answered.json()])


def in_pieces(server: Server, body: Any) -> dict[int, Answer]:
    """The same of a stream."""
    options = {"stream": True, "stream_options": {"include_usage": True}}
    answered = server.http.post(PATH, json={**body, **options})
    assert answered.status_code == 200, answered.text
    lines = [line[6:] for line in answered.text.split("\n") if line.startswith("data: ")]
    assert lines.pop() == "[DONE]"
    return _joined([json.loads(line) for line in lines])


def _joined(chunks: Sequence[Any]) -> dict[int, Answer]:
    texts: dict[int, str] = defaultdict(str)
    tokens: dict[int, list[int]] = defaultdict(list)
    prompts: dict[int, list[int]] = {}
    usage = next(chunk["usage"] for chunk in reversed(chunks) if chunk.get("usage"))
    counts = (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"])
    for chunk in chunks:
        for choice in chunk["choices"]:
            index = choice["index"]
            texts[index] += choice["text"]
            tokens[index] += choice.get("token_ids") or []
            if choice.get("prompt_token_ids"):
                prompts[index] = choice["prompt_token_ids"]
    return {index: (texts[index], tokens[index], prompts.get(index), counts) for index in texts}
