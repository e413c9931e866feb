"""Grammars hold, and never end the process."""

import math
import re
from typing import Any

import pytest

from enginebay import InvalidRequestError
from tests.backends.llamacpp_sampling.conftest import GREEDY, Maker

NUMBERS = 'root ::= "[" number ("," number)* "]"\nnumber ::= [1-9] [0-9]*'


@pytest.mark.parametrize(
    "params",
    [GREEDY, {"temperature": 3.0}, {"typical_p": 0.5}, {"mirostat": 1}, {"top_k": 1}],
)
def test_the_completion_follows_the_grammar(make: Maker, params: dict[str, Any]) -> None:
    ended = 0
    for seed in range(5):
        sampler = make(**params, seed=seed, grammar=NUMBERS, eos=make.ends)
        text = ""
        for step in range(60):
            token = sampler.sample(make.random_row(seed=100 * seed + step))
            if token in make.ends:
                ended += 1
                assert re.fullmatch(r"\[[1-9][0-9]*(,[1-9][0-9]*)*\]", text)
                break
            text += make.text(token)
        assert re.fullmatch(r"\[[0-9,]*\]?", text)
    assert ended


@pytest.mark.parametrize("params", [{}, {"min_tokens": 9}, {"ignore_eos": True}])
def test_the_end_of_the_grammar_ends_the_completion(make: Maker, params: dict[str, Any]) -> None:
    sampler = make(**GREEDY, **params, grammar='root ::= "a"', eos=make.ends)
    tokens = [sampler.sample(make.random_row()) for _ in range(4)]
    assert tokens[0] == make.token("a")
    assert make.ends.issuperset(tokens[1:])


@pytest.mark.parametrize(
    "grammar",
    [
        "",
        "x",
        "root :: = a",
        "root ::= a",
        'a ::= "b"',
        "root ::= root",
        'root ::= "a"{99999}',
        "root ::= [a",
        'root ::= "a" \0',
        'root ::= "\ud800"',
        "root ::= " + "(" * 30_000 + '"a"' + ")" * 30_000,
        "root ::= <[999999999999]>",
        "%llguidance {}\nstart: /a/",
    ],
)
def test_grammars_that_cannot_be_used(make: Maker, grammar: str) -> None:
    if not grammar:
        assert make(grammar=grammar).sample(make.row(9.0)) == 0
        return
    with pytest.raises(InvalidRequestError) as caught:
        make(grammar=grammar, typical_p=0.5)
    assert caught.value.param == "grammar"


def test_parentheses_in_literals_nest_nothing(make: Maker) -> None:
    make(grammar='root ::= "' + "(" * 300 + '" [((("(]+ # ((((')


def test_a_token_the_grammar_forbids_ends_it(make: Maker) -> None:
    for token in (make.token("b"), *make.ends):
        sampler = make(**GREEDY, grammar='root ::= "aaaa"', eos=make.ends)
        sampler.accept(token)
        assert sampler.sample(make.random_row()) in make.ends


def test_a_grammar_that_no_token_can_follow(make: Maker) -> None:
    banned = {make.token("a"): -math.inf}
    sampler = make(**GREEDY, grammar='root ::= "a"', logit_bias=banned)
    assert sampler.sample(make.random_row()) in make.ends
