"""Engines without a model that embed, rerank and classify by counting letters.

A token is a character; 1 is put before a text and 2 behind it, as BERT's tokenizers do. A text
with "!" in it makes numbers that are not finite.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import httpx2

from enginebay.config.schema import Config
from enginebay.testing import ScriptedEngine
from tests.support import Server, engine_backend, plugins_with, scripted, serve

CONTEXT = 16
LETTERS = "abcd"
PROMPTS = {"query": "a: ", "passage": "b: ", "topic": "c: "}


class Bracketed(ScriptedEngine):
    def __init__(self, **info: Any) -> None:
        super().__init__(["never said"], context_length=CONTEXT)
        self.info = replace(self.info, **{"generates": False, **info})

    def tokenize(self, text: str, *, add_special_tokens: bool) -> list[int]:
        tokens = [ord(character) for character in text]
        return [1, *tokens, 2] if add_special_tokens else tokens


class Embeds(Bracketed):
    """Counts the letters a to d; texts for it are at most 16 tokens."""

    def __init__(self, **info: Any) -> None:
        super().__init__(**{"embedding_size": len(LETTERS), **info})

    def embed(self, prompts: Sequence[Sequence[int]]) -> list[list[float]]:
        return [_counts(prompt) for prompt in prompts]


class Ranks(Bracketed):
    """A document's score is how many of its characters are the query's first one.

    With a label, its raw output is how many more these are than others.
    """

    def __init__(self, **info: Any) -> None:
        super().__init__(**{"reranks": True, **info})

    def tokenize_pair(self, query: str, document: str) -> list[int]:
        return [1, *map(ord, query), 2, *map(ord, document), 2]

    def rerank(self, pairs: Sequence[Sequence[int]]) -> list[float]:
        return [_relevance(list(pair)) for pair in pairs]

    def classify(self, prompts: Sequence[Sequence[int]]) -> list[list[float]]:
        return [[100 * _relevance(list(pair))] for pair in prompts]


class Classifies(Bracketed):
    """The raw output for each label is how often its first letter is in the text."""

    def classify(self, prompts: Sequence[Sequence[int]]) -> list[list[float]]:
        assert all(prompts)
        return [_counts(prompt)[: len(self.info.labels)] for prompt in prompts]


class Rewards(Bracketed):
    """The raw output is how many tokens it read, and 1000 if it found one in front."""

    def __init__(self) -> None:
        super().__init__(labels=("reward",))

    def classify(self, prompts: Sequence[Sequence[int]]) -> list[list[float]]:
        return [[len(p) + 1000.0 * (1 in p) if ord("!") not in p else _NAN] for p in prompts]


_NAN = float("nan")


def _counts(prompt: Sequence[int]) -> list[float]:
    if ord("!") in prompt:
        return [_NAN] * len(LETTERS)
    return [float(prompt.count(ord(letter))) for letter in LETTERS]


def _relevance(pair: list[int]) -> float:
    if 2 not in pair[:-1]:
        return 0  # it is no pair
    document = pair[pair.index(2) + 1 : -1]
    if ord("!") in document:
        return float("inf")
    return document.count(pair[1]) / len(document)


BACKENDS = {
    "says": scripted(["ok"]),
    "embeds": engine_backend(Embeds),
    "nested": engine_backend(lambda: Embeds(shorter_embeddings=(2, 3))),
    "any": engine_backend(lambda: Embeds(shorter_embeddings=())),
    "prompted": engine_backend(lambda: Embeds(prompts=PROMPTS, default_prompt="topic")),
    "ranks": engine_backend(Ranks),
    "raw": engine_backend(lambda: Ranks(labels=("LABEL_0",))),
    "three": engine_backend(lambda: Classifies(labels=("good", "bad", "neither"))),
    "many": engine_backend(lambda: Classifies(labels=("a", "b"), multi_label=True)),
    "rewards": engine_backend(Rewards),
}


@contextmanager
def serving(*names: str) -> Iterator[Server]:
    """A server with these models, else with all."""
    models = [{"name": name, "backend": name, "path": "."} for name in names or BACKENDS]
    config = Config.model_validate({"models": models})
    with serve(config, plugins_with(**BACKENDS)) as server:
        yield server


def refusal(response: httpx2.Response, status: int = 400) -> dict[str, Any]:
    """The error of an answer with this status."""
    assert response.status_code == status, response.text
    error: dict[str, Any] = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error
