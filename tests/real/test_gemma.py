"""Gemma 3 270M, with 262,144 tokens, beside transformers and llama-cpp-python. REAL-14"""

import json
import re
from collections.abc import Iterator
from math import exp
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from tests.real.gemma import LONGER, PROMPTS, STORY, Gemma, cached_tokens, complete
from tests.real.peers import TOKENS
from tests.real.serving import loaded
from tests.support import Server

pytestmark = [pytest.mark.real, pytest.mark.thorough]
PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "role": {"enum": ["cook", "pilot", "写真家"]},
    },
    "required": ["name", "age", "role"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def server(model: Gemma) -> Iterator[Server]:
    with loaded(model.config()) as running:
        yield running


def test_greedy_texts_are_the_peers(server: Server, model: Gemma) -> None:
    agreed = 0
    for prompt in PROMPTS:
        whole = complete(server, prompt, cache_salt="whole")
        agreed += model.agreement(prompt, whole)
        assert whole["usage"]["prompt_tokens"] == len(model.said[prompt].continuation.prompt)
        assert whole["usage"]["completion_tokens"] == TOKENS
        stream = server.openai.completions.create(
            model="gemma", prompt=prompt, temperature=0, max_tokens=TOKENS, stream=True
        )
        text = "".join(chunk.choices[0].text for chunk in stream)
        assert model.said[prompt].agreement(text, model.bound) > 0
    assert agreed > TOKENS * len(PROMPTS) / 2


def test_logprobs_are_those_of_the_peer(server: Server, model: Gemma) -> None:
    """As probabilities: a logit that is off by a little moves one by a quarter of that at most."""
    compared = 0
    for prompt in PROMPTS[:2]:
        answer = complete(server, prompt, logprobs=5, cache_salt="logprobs")
        logprobs = answer["choices"][0]["logprobs"]
        assert "".join(logprobs["tokens"]) == answer["choices"][0]["text"]
        for place in range(model.agreement(prompt, answer)):
            said = model.said[prompt]
            best = said.logprobs[place].topk(5).values.exp().tolist()
            top = sorted(logprobs["top_logprobs"][place].values(), reverse=True)[:5]
            assert list(map(exp, top)) == pytest.approx(best, abs=model.bound / 4)
            expected = exp(said.continuation.logprobs[place])
            given = exp(logprobs["token_logprobs"][place])
            assert given == pytest.approx(expected, abs=model.bound / 4)
            compared += 1
    assert compared > TOKENS / 2


@pytest.mark.parametrize("seed", range(3))
def test_json_of_a_schema(server: Server, seed: int) -> None:
    schema = {"name": "person", "schema": PERSON, "strict": True}
    answer = complete(
        server,
        "A person as JSON: ",
        temperature=1,
        seed=seed,
        max_tokens=80,
        response_format={"type": "json_schema", "json_schema": schema},
    )
    [choice] = answer["choices"]
    assert choice["finish_reason"] == "stop", choice
    Draft202012Validator(PERSON).validate(json.loads(choice["text"]))


def test_texts_of_grammars(server: Server) -> None:
    body = {"temperature": 1, "max_tokens": 40, "seed": 1}
    date = r"20\d\d-[01]\d-[0-3]\d 🌤[äöü]{2}"
    dated = complete(server, "Today is ", **body, guided_regex=date)
    assert re.fullmatch(date, dated["choices"][0]["text"])
    grammar = 'root ::= item ("、" item){2}\nitem ::= "東京" | "大阪" | "Kyōto"'
    listed = complete(server, "Cities: ", **body, guided_grammar=grammar)
    assert re.fullmatch("((東京|大阪|Kyōto)(、|$)){3}", listed["choices"][0]["text"])


def test_a_cached_prefix_changes_no_text(server: Server, model: Gemma) -> None:
    first, again, longer = (
        complete(server, prompt, cache_salt="prefix") for prompt in (STORY, STORY, LONGER)
    )
    assert cached_tokens(first) == 0
    assert cached_tokens(again) > 100
    assert cached_tokens(longer) > 100
    for prompt, answer in [(STORY, first), (STORY, again), (LONGER, longer)]:
        model.agreement(prompt, answer)


@pytest.mark.parametrize("template", ["chatml", "llama3"])
def test_a_template_of_the_server_begins_with_one_bos(model: Gemma, template: str) -> None:
    # ANS-8
    config = model.config()
    config.models[0].chat_template = template
    bos = 2
    with loaded(config) as server:
        body = {"messages": [{"role": "user", "content": "Hi"}]}
        report = server.http.post("/v1/chat/completions/explain", json=body).json()
        ids = [token["id"] for token in report["tokens"]]
        assert (ids[0], ids.count(bos), report["bos"]["count"]) == (bos, 1, 1)
        assert report["prompt"].startswith("<bos>")
        assert server.http.post("/tokenize", json=body).json()["tokens"] == ids
        # ANS-10: the answer of a base model ends. The folder has the tokenizer of a chat model.
        is_base = config.models[0].backend == "llamacpp"
        assert report["max_tokens"] == (1024 // 4 if is_base else 1024 - len(ids))
        answer = server.http.post("/v1/chat/completions", json={**body, "max_tokens": 4}).json()
        assert answer["usage"]["prompt_tokens"] == len(ids)
