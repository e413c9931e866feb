"""What a grammar allows, token by token, for a vocabulary of bytes and a few special tokens."""

import json
import pickle
import random
import threading
from typing import Any

import numpy as np
import pytest
from jsonschema import Draft202012Validator

from enginebay import (
    Case,
    Free,
    Grammar,
    GrammarCompiler,
    InvalidRequestError,
    Json,
    Matcher,
    Pattern,
    Text,
    UpTo,
    Vocabulary,
    allowed_tokens,
    choice,
    json_value,
    optional,
    sequence,
)
from enginebay.grammar.lark import to_lark

WORDS = ["<think>", "</think>", '": ', '{"', '"}', "true", " and", "tool"]
SPECIALS = ["<call>", "</call>", "<turn>"]
END = 256 + len(WORDS) + len(SPECIALS)
SPECIAL = {text: 256 + len(WORDS) + i for i, text in enumerate(SPECIALS)}
TOKENS = [bytes([i]) for i in range(256)] + [text.encode() for text in [*WORDS, *SPECIALS, "<end>"]]


def encode(text: str) -> list[int]:
    """Special tokens, then words, then bytes."""
    for known, token_id in [*SPECIAL.items(), *zip(WORDS, range(256, 300), strict=False)]:
        if known in text:
            before, _, behind = text.partition(known)
            return [*encode(before), token_id, *encode(behind)]
    return list(text.encode())


VOCABULARY = Vocabulary(
    tokens=TOKENS,
    special_token_ids=frozenset([*SPECIAL.values(), END]),
    end_token_ids=frozenset([END]),
    encode=encode,
)


@pytest.fixture(name="compiler", scope="module")
def _compiler() -> GrammarCompiler:
    return GrammarCompiler(VOCABULARY, threads=1)


def allowed(compiler: GrammarCompiler, matcher: Matcher) -> set[int]:
    [mask] = compiler.fill([matcher])
    return set(np.flatnonzero(allowed_tokens(mask, len(TOKENS))).tolist())


def takes(compiler: GrammarCompiler, grammar: Grammar, text: str) -> str | None:
    """How a text stands to a grammar: `ends`, `may end`, `goes on`; None if it is refused.

    What the mask says of each token and what comes of accepting it must be the same.
    """
    matcher = compiler.matcher(grammar)
    for token_id in encode(text):
        expected = token_id in allowed(compiler, matcher)
        assert matcher.accept(token_id) == expected
        if not expected:
            return None
    if matcher.finished:
        return "ends"
    assert (END in allowed(compiler, matcher)) == matcher.satisfied
    return "may end" if matcher.satisfied else "goes on"


CALL = Case(Text("<call>"), sequence("f(", Pattern("[0-9]+"), ")</call>"))
TOOL = Case(Text("tool"), sequence(":", Pattern("[0-9]+"), ";"))
BARE = Case(Pattern(r"\{\s*n"), Text("ame}"))


@pytest.mark.parametrize(
    ("grammar", "text", "expected"),
    [
        (Text("a<call>b"), "a<call>b", "ends"),
        (Text("a<end>"), "a", "ends"),  # the token says so itself
        (Pattern("[a-z/\n]{2,3}"), "a/", "may end"),
        (Pattern("[a-z/\n]{2,3}"), "\n/a", "ends"),
        (Pattern("[a-z]+"), "<call>", None),
        (sequence("a", optional("b")), "ab", "ends"),
        (choice("yes", "no"), "yes", "ends"),
        (choice("yes", "no"), "nope", None),
        (Json("true"), '{"a": [1, null]}', "ends"),
        (json_value(True), '"<call>', None),  # no special token in a string
        (json_value(True), '"<think>"', "ends"),
        # Free text, and what must follow where a case opens.
        (Free((CALL,)), "any <turn> text", "may end"),
        (Free((CALL,)), "any <call>f(1)</call> and <call>f(2)</call>", "may end"),
        (Free((CALL,)), "any <call>g", None),
        (Free((CALL,)), "any <call>f(1", "goes on"),
        (Free((CALL,), once=True), "any <call>f(1)</call>", "ends"),
        (Free((CALL, TOOL)), "a tool:7; <call>f(1)</call> tool:8;", "may end"),
        (Free((CALL, TOOL)), "a tool is", None),
        (Free((TOOL,), once=True), "a tool:7;", "ends"),
        (Free((TOOL,), once=True), "a <turn> tool:7", "goes on"),
        # What counts only where the text begins.
        (Free((CALL,), first=(BARE,)), "{ name}", "ends"),
        (Free((CALL,), first=(BARE,)), "{ no", None),
        (Free((CALL,), first=(BARE,)), "{x} { no", "may end"),
        (Free((CALL,), first=(BARE,)), "{x <call>f(1)</call> { no", "may end"),
        (Free((CALL,), first=(BARE,)), "<turn>{ no", "may end"),
        (Free((TOOL,), first=(BARE,)), "tool:1;{ no", "may end"),
        (Free((TOOL,), first=(BARE,)), "{ name} tool", None),
        (Free((TOOL,), first=(BARE,), once=True), "so tool:1;", "ends"),
        # Up to an end, as text or as a special token, with cases on the way.
        (sequence(UpTo("</think>"), "x"), "a {n < </thin </think>x", "ends"),
        (sequence(UpTo("</think>"), "x"), "a</think>y", None),
        (sequence(UpTo("<turn>"), "x"), "a </think> <turn>x", "ends"),
        (sequence(UpTo("<turn>user"), "x"), "a<turn>userx", "ends"),
        (sequence(UpTo("</think>", (CALL,)), "x"), "a<call>f(1)</call>b</think>x", "ends"),
        (sequence(UpTo("</think>", (CALL,)), "x"), "a<call></think>", None),
        (sequence(UpTo("<turn>", (TOOL,)), "x"), "a tool:1; b<turn>x", "ends"),
        # And none of what ends it otherwise, as text or as a special token.
        (sequence(UpTo("<turn>", without=("ab",)), "x"), "a ba<call>b<turn>x", "ends"),
        (sequence(UpTo("<turn>", without=("ab",)), "x"), "b<call>ba", "goes on"),
        (sequence(UpTo("<turn>", without=("ab",)), "x"), "b<call>bab", None),
        (sequence(UpTo("<turn>", without=("<call>", "ab")), "x"), "a<call>", None),
        (sequence(UpTo("<turn>", without=("<call>a",)), "x"), "a</call>b<turn>x", "ends"),
        (sequence(UpTo("</think>", without=("<call>", "ab")), "x"), "a b</think>x", "ends"),
        (sequence(UpTo("</think>", without=("<call>", "ab")), "x"), "a b</think>ab", None),
        (sequence(UpTo("</think>", without=("<call>", "ab")), "x"), "a<turn>ab", None),
        (sequence(UpTo("</think>", without=("<call>", "ab")), "x"), "a<call>", None),
        (sequence(UpTo("<turn>", (TOOL,), without=("ab",)), "x"), "a tool:1;b<turn>x", "ends"),
        (sequence(UpTo("<turn>", (TOOL,), without=("ab",)), "x"), "a tool:1;ab", None),
        (sequence(UpTo("<turn>", (TOOL,), without=("ab",)), "x"), "ab", None),
    ],
)
def test_what_a_grammar_takes(
    compiler: GrammarCompiler, grammar: Grammar, text: str, expected: str | None
) -> None:
    assert takes(compiler, pickle.loads(pickle.dumps(grammar)), text) == expected


SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "minLength": 1, "maxLength": 8},
        "unit": {"enum": ["c", "f"]},
        "days": {"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 3},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("seed", range(20))
def test_a_random_walk_is_valid(compiler: GrammarCompiler, seed: int) -> None:
    rng = random.Random(seed)
    matcher = compiler.matcher(json_value(SCHEMA))
    taken: list[int] = []
    while not matcher.finished:
        forced = matcher.forced()
        token_ids = forced or [rng.choice(sorted(allowed(compiler, matcher)))]
        assert all(map(matcher.accept, token_ids))
        taken += token_ids
    Draft202012Validator(SCHEMA).validate(json.loads(b"".join(TOKENS[i] for i in taken)))


def test_forced_tokens_are_written_as_the_tokenizer_writes_them(compiler: GrammarCompiler) -> None:
    grammar = sequence("<call>", '{"name": ', Pattern("[0-9]"))
    assert compiler.matcher(grammar).forced() == encode('<call>{"name": ')


def test_stop_tokens_of_a_request(compiler: GrammarCompiler) -> None:
    stop = SPECIAL["<turn>"]
    matcher = compiler.matcher(sequence("a", UpTo("<call>")), frozenset([stop]))
    assert matcher.accept(ord("a"))
    assert stop not in allowed(compiler, matcher)
    matcher = compiler.matcher(Pattern("a+"), frozenset([stop]))
    assert matcher.accept(ord("a"))
    assert {stop, END} <= allowed(compiler, matcher)
    assert matcher.accept(stop)
    needed = compiler.matcher(sequence("a<turn>b"), frozenset([stop]))
    assert needed.accept(ord("a"))
    assert allowed(compiler, needed) == {stop}
    assert needed.accept(stop)
    assert not needed.satisfied


def test_a_model_without_an_end() -> None:
    endless = Vocabulary(
        tokens=TOKENS, special_token_ids=frozenset(), end_token_ids=frozenset(), encode=encode
    )
    compiler = GrammarCompiler(endless)
    matcher = compiler.matcher(Pattern("[ab]{2}"))
    assert allowed(compiler, matcher) == {ord("a"), ord("b")}
    assert matcher.accept(ord("a"))
    assert not matcher.finished
    assert matcher.accept(ord("b"))
    assert matcher.finished


def test_many_at_once_and_each_for_itself(compiler: GrammarCompiler) -> None:
    matchers = [compiler.matcher(Pattern("[a-c]x*")) for _ in range(3)]
    for matcher, letter in zip(matchers, b"abc", strict=True):
        assert matcher.accept(letter)
    masks = compiler.fill(matchers)
    assert masks.shape == (3, (len(TOKENS) + 31) // 32)
    assert all(
        set(np.flatnonzero(allowed_tokens(mask, len(TOKENS))).tolist()) == {ord("x"), END}
        for mask in masks
    )


@pytest.mark.parametrize(
    "grammar",
    [
        Json('{"not": {}}'),
        Json('{"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}'),
        Json('{"uniqueItems": true}'),
        Pattern("a("),
        Pattern("(?=a)b"),
    ],
)
def test_what_cannot_be_compiled(compiler: GrammarCompiler, grammar: Grammar) -> None:
    with pytest.raises(InvalidRequestError, match="cannot be compiled"):
        compiler.compile(grammar)


def test_compiled_once_by_many_threads(compiler: GrammarCompiler) -> None:
    grammar = json_value({"enum": ["of", "this", "test"]})
    threads = [threading.Thread(target=compiler.compile, args=(grammar,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert allowed(compiler, compiler.matcher(grammar)) == {ord('"')}


def test_long_grammars_are_forgotten_first(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[Grammar] = []

    def counted(grammar: Grammar, *args: Any) -> str:
        written.append(grammar)
        return to_lark(grammar, *args)

    monkeypatch.setattr("enginebay.grammar.compiler.to_lark", counted)
    short, *long = (json_value({"const": n, "title": "x" * n * 3_000_000}) for n in range(4))
    for grammar in (short, long[0], short, long[0], long[2], long[2], short):
        compiler.compile(grammar)
    assert written == [short, long[0], long[2], short]


def test_keys_cannot_be_hidden_behind_escapes(compiler: GrammarCompiler) -> None:
    schema = json_value({"properties": {"a": {"type": "integer"}}, "required": ["a"]})
    assert takes(compiler, schema, '{"a":1,"\\u0061":"x"}') is None


def test_ranges_of_special_tokens() -> None:
    lark = to_lark(Free(), {"a": 1, "b": 2, "c": 3, "d": 7, "e": 9}, {9})
    assert "<[1-3,7-7]>" in lark
