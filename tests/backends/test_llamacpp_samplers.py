"""Each sampler on logits made by hand, against formulas in numpy."""

import math
import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from random import Random
from typing import Any

import numpy as np
import pytest

from backends.llamacpp.candidates import Row
from backends.llamacpp.chain import Chain, needs_chain
from backends.llamacpp.draw import draw
from backends.llamacpp.library import llama
from backends.llamacpp.samplers import NativeSampler
from backends.llamacpp.vocabulary import Vocabulary
from demo.to_gguf import convert
from enginebay import InvalidRequestError, SamplingParams
from tests.support import DEMO_MODEL

SAMPLED: dict[str, Any] = {"temperature": 1.0, "seed": 7}
GREEDY: dict[str, Any] = {"temperature": 0.0}


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Vocabulary]:
    path = tmp_path_factory.mktemp("gguf") / "demo.gguf"
    convert(DEMO_MODEL, path, "f16")
    params = llama.llama_model_default_params()
    params.vocab_only = True
    model = llama.llama_model_load_from_file(str(path).encode(), params)
    yield Vocabulary(llama.llama_model_get_vocab(model), 2048)
    llama.llama_model_free(model)


class Maker:
    """Makes samplers, and closes them at the end."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self.made: list[NativeSampler] = []
        self.ends = frozenset(
            token
            for token in range(vocabulary.size)
            if llama.llama_vocab_is_eog(vocabulary.vocab, token)
        )

    def __call__(
        self,
        *completion: int,
        prompt: Sequence[int] = (),
        index: int = 0,
        eos: Collection[int] = (),
        **params: Any,
    ) -> NativeSampler:
        sampler = NativeSampler(self.vocabulary, SamplingParams(**params), prompt, index, eos)
        self.made.append(sampler)
        for token in completion:
            sampler.accept(token)
        return sampler

    def row(self, *logits: float, rest: float = -50.0) -> Row:
        """Logits of the first tokens; the rest is as good as impossible."""
        row = np.full(self.vocabulary.size, rest, np.float32)
        row[: len(logits)] = logits
        return row

    def random_row(self, seed: int = 0, spread: float = 2.5) -> Row:
        generator = np.random.default_rng(seed)
        return (generator.standard_normal(self.vocabulary.size) * spread).astype(np.float32)

    def draws(self, row: Row, count: int = 300, **params: Any) -> Counter[int]:
        """What samplers with different seeds choose first."""
        return Counter(self(**{**params, "seed": seed}).sample(row) for seed in range(count))

    def token(self, text: str) -> int:
        data = text.encode()
        ids = (llama.llama_token * 8)()
        count = llama.llama_tokenize(self.vocabulary.vocab, data, len(data), ids, 8, False, True)
        assert count == 1, text
        return int(ids[0])

    def text(self, token: int) -> str:
        buffer = bytes(64)
        length = llama.llama_token_to_piece(self.vocabulary.vocab, token, buffer, 64, 0, True)
        return buffer[:length].decode()


@pytest.fixture
def make(vocabulary: Vocabulary) -> Iterator[Maker]:
    maker = Maker(vocabulary)
    yield maker
    for sampler in maker.made:
        sampler.close()
        sampler.close()


# What is chosen by default.


def softmax(logits: Row) -> Any:
    weights = np.exp(logits.astype(np.float64) - logits.max())
    return weights / weights.sum()


def expected(row: Row, temperature: float, top_k: int, top_p: float, min_p: float) -> Any:
    """Probabilities by the textbook: scale, then cut, renormalizing each time."""
    p = softmax(row / np.float32(temperature))
    order = np.argsort(-p, kind="stable")
    if top_k:
        p[order[top_k:]] = 0
        p /= p.sum()
    before = np.cumsum(p[order]) - p[order]
    p[order[before >= max(top_p, 1e-9)]] = 0
    p[p < min_p * p.max()] = 0
    return p / p.sum()


@pytest.mark.parametrize("chain", [False, True])
@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p", "min_p"),
    [
        (1.0, 0, 1.0, 0.0),
        (0.3, 0, 1.0, 0.0),
        (1.0, 8, 1.0, 0.0),
        (0.7, 0, 0.8, 0.0),
        (1.0, 0, 1.0, 0.2),
        (1.2, 20, 0.9, 0.05),
    ],
)
def test_distribution(
    make: Maker, chain: bool, temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    row = make.random_row(spread=4)
    params: dict[str, Any] = {
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
    }
    # XTC with this threshold leaves out nothing, but makes llama.cpp do all of it.
    other: dict[str, Any] = {"xtc_probability": 1e-9, "xtc_threshold": 0.5} if chain else {}
    probabilities = expected(row, temperature, top_k, top_p, min_p)
    sampler = make(**params, **other, seed=3)
    assert bool(sampler._chain) == chain
    draws = 6000
    counts = np.bincount([sampler.sample(row) for _ in range(draws)], minlength=len(row))
    assert counts[probabilities == 0].sum() == 0
    distance = np.abs(counts / draws - probabilities).sum() / 2
    # Of as many draws from the true distribution, the mean distance is at most this.
    bound = np.sqrt(probabilities * (1 - probabilities) / draws).sum() / 2
    assert distance < 1.3 * bound


@pytest.mark.parametrize("top_p", [0.0, 1e-6, 0.3, 0.9, 0.99999])
@pytest.mark.parametrize("spread", [0.0, 0.05, 3.0])
def test_top_p_of_flat_and_sharp_logits(make: Maker, top_p: float, spread: float) -> None:
    row = make.random_row(spread=spread)
    probabilities = expected(row, 1.0, 0, top_p, 0.0)
    # Where top_p falls between two tokens up to rounding, one more is as right; equals all count.
    lowest = probabilities[probabilities > 0].min() * 0.9999 if spread else 0
    drawn = make.draws(row, 50, top_p=top_p)
    probability = softmax(row)
    assert all(probability[token] >= lowest * probability.max() for token in drawn)
    if top_p < 1e-3 and spread:
        assert list(drawn) == [int(row.argmax())]


def test_seed_and_index_make_the_tokens(make: Maker) -> None:
    row = make.random_row()
    for other in ({}, {"typical_p": 0.9}, {"mirostat": 2}, {"adaptive_target": 0.3}):

        def tokens(**params: Any) -> tuple[int, ...]:
            sampler = make(**params, **other)  # noqa: B023
            return tuple(sampler.sample(row) for _ in range(8))

        assert tokens(seed=1) == tokens(seed=1)
        assert len({tokens(seed=s, index=i) for s in (0, 1, 2**64 - 1) for i in range(4)}) == 12
        assert tokens() != tokens()


def test_neutral_params_add_no_sampler(make: Maker) -> None:
    assert make(**GREEDY).is_plain_greedy
    assert make(**GREEDY, min_tokens=3).is_plain_greedy
    assert not make(**GREEDY, min_tokens=3, eos=[1]).is_plain_greedy
    assert not make(**GREEDY, logit_bias={1: 1.0}).is_plain_greedy
    assert not make(**GREEDY, repetition_penalty=1.1).is_plain_greedy
    assert not make(**GREEDY, dry_multiplier=0.8).is_plain_greedy
    assert not make(**GREEDY, grammar='root ::= "a"').is_plain_greedy
    assert make(**GREEDY, mirostat=2, typical_p=0.1, xtc_probability=1.0).is_plain_greedy
    plain = SamplingParams(temperature=0.7, top_k=3, top_p=0.5, min_p=0.1)
    assert not needs_chain(plain)


@pytest.mark.parametrize(
    ("params", "length"),
    [
        ({}, 1),
        ({"temperature": 0.5}, 2),
        ({"typical_p": 0.5}, 3),
        ({"top_p": 0.5, "top_k": 5, "min_p": 0.1, "top_n_sigma": 1.0}, 5),
        ({"dry_multiplier": 1.0, "temperature": 0.0, "top_p": 0.5}, 2),
        ({"mirostat": 1, "top_p": 0.5}, 2),
    ],
)
def test_length_of_the_chain(make: Maker, params: dict[str, Any], length: int) -> None:
    chain = Chain(make.vocabulary, SamplingParams(**params), (), Random(0))
    assert chain.length == length
    chain.close()


# One sampler at a time.


def test_top_k_and_min_p_of_one_are_greedy(make: Maker) -> None:
    row = make.random_row()
    best = int(row.argmax())
    assert list(make.draws(row, 20, top_k=1)) == [best]
    assert list(make.draws(row, 20, min_p=1.0)) == [best]


@pytest.mark.parametrize("temperature", [0.5, 3.0])
def test_top_n_sigma_keeps_the_same_at_every_temperature(make: Maker, temperature: float) -> None:
    row = make.random_row()
    kept = np.flatnonzero(row >= row.max() - 0.4 * row.std())
    assert 2 <= len(kept) <= 10
    drawn = make.draws(row, temperature=temperature, top_n_sigma=0.4)
    assert set(drawn) <= set(kept.tolist())
    assert len(drawn) >= 2


def test_typical_leaves_out_what_is_too_likely_and_too_unlikely(make: Maker) -> None:
    # Entropy is 1.8 nats, at which surprise of the middle ones is nearest.
    p = np.array([0.4, 0.12, 0.12, 0.12, 0.12, 0.12])
    drawn = make.draws(make.row(*np.log(p)), typical_p=0.5)
    assert set(drawn) <= {1, 2, 3, 4, 5}
    assert len(drawn) == 5


def test_typical_is_not_misled_by_probabilities_that_round_to_zero(make: Maker) -> None:
    row = make.row(1.0, 1.0, rest=-500.0)
    assert set(make.draws(row, typical_p=0.9)) == {0, 1}


def test_xtc_leaves_the_least_likely_of_the_likely(make: Maker) -> None:
    row = make.row(*np.log([0.5, 0.3, 0.15, 0.05]))
    assert set(make.draws(row, xtc_probability=1.0)) == {2, 3}
    drawn = make.draws(row, 1000, xtc_probability=0.5)
    assert drawn[0] == pytest.approx(250, abs=60)
    assert 0 in make.draws(row, xtc_probability=1.0, xtc_threshold=0.4)


def test_dynamic_temperature_follows_the_entropy(make: Maker) -> None:
    sharp = make.row(4.0, 0.0)
    params: dict[str, Any] = {"temperature": 2.0, "dynatemp_range": 2.0, "dynatemp_exponent": 1.0}
    assert len(make.draws(sharp, temperature=2.0)) == 2
    assert make.draws(sharp, **params)[0] == 300  # nearly no entropy: nearly no temperature
    flat = make.row(rest=0.0)
    assert len(make.draws(flat, **params)) > 200


def test_temperature_last(make: Maker) -> None:
    row = make.row(*np.log([0.6, 0.3, 0.1]))
    assert set(make.draws(row, temperature=9.0, top_p=0.8, temperature_last=True)) == {0, 1}
    assert 2 in make.draws(row, temperature=9.0, top_p=0.8)
    drawn = make.draws(row, 1000, temperature=9.0, top_p=0.8, temperature_last=True)
    assert drawn[1] / drawn[0] == pytest.approx(0.5 ** (1 / 9), rel=0.15)


@pytest.mark.parametrize("version", [1, 2])
def test_mirostat_holds_the_surprise(make: Maker, version: int) -> None:
    row = make.row(*(-1.2 * np.log(np.arange(1, 1001))))
    surprise = -np.log2(softmax(row))

    def mean(tau: float) -> float:
        sampler = make(**SAMPLED, mirostat=version, mirostat_tau=tau, mirostat_eta=0.3)
        return float(np.mean([surprise[sampler.sample(row)] for _ in range(400)]))

    low, high = mean(2.0), mean(4.5)
    assert low + 0.8 < high
    if version == 2:
        assert list(make.draws(row, 30, temperature=3.0, mirostat=2, mirostat_tau=0.0)) == [0]


def test_adaptive_p_prefers_its_target(make: Maker) -> None:
    row = make.row(*np.log([0.7, 0.2, 0.1]))

    def often(target: float) -> Counter[int]:
        return make.draws(row, adaptive_target=target, min_p=0.01)

    assert often(0.2)[1] > often(0.7)[1]
    assert often(0.9)[0] > 250


# DRY.


def test_dry_penalizes_the_token_that_goes_on_with_a_repetition(make: Maker) -> None:
    a, b, c, d = 300, 301, 302, 303
    row = make.row()
    row[c], row[d] = 5.0, 3.0
    repeated: dict[str, Any] = {"prompt": [a, b, c, d, a], **GREEDY}
    params: dict[str, Any] = {"dry_multiplier": 1.0, "dry_base": 2.0, "dry_sequence_breakers": ()}
    # "a b" has been said before and c came next: 1 * 2 ** (2 - allowed length).
    assert make(b, **repeated, **params).sample(row) == c  # 5 - 1
    assert make(b, **repeated, **params, dry_allowed_length=1).sample(row) in (c, d)  # 5 - 2
    assert make(b, **repeated, **{**params, "dry_base": 2.5}, dry_allowed_length=1).sample(row) == d
    strong: dict[str, Any] = {**params, "dry_multiplier": 2.5}
    assert make(b, **repeated, **strong).sample(row) == d
    assert make(b, **repeated, **strong, dry_allowed_length=3).sample(row) == c
    assert make(b, **repeated, **strong, dry_penalty_last_n=0).sample(row) == c
    assert make(b, **repeated, **strong, dry_penalty_last_n=3).sample(row) == c
    assert make(b, d, **repeated, **strong).sample(row) == c
    drawn = make(b, prompt=[a, b, c, d, a], **SAMPLED, **{**params, "dry_multiplier": 50.0})
    assert drawn.sample(row) == d


def test_dry_does_not_reach_over_a_sequence_breaker(make: Maker) -> None:
    a, c, d, newline = 300, 302, 303, make.token("\n")
    row = make.row()
    row[c], row[d] = 5.0, 3.0
    params: dict[str, Any] = {"prompt": [a, newline, c, d, a], "dry_multiplier": 50.0, **GREEDY}
    assert make(newline, **params, dry_sequence_breakers=("x",)).sample(row) == d
    assert make(newline, **params).sample(row) == c


def test_dry_of_many_choices_is_prepared_once(make: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared: list[Any] = []
    original = llama.llama_sampler_init_dry

    def prepare(*arguments: Any) -> Any:
        prepared.append(arguments)
        return original(*arguments)

    monkeypatch.setattr(llama, "llama_sampler_init_dry", prepare)
    for multiplier in (0.33, 0.33, 0.33, 0.44):
        make(dry_multiplier=multiplier)
    assert len(prepared) == 2


def test_a_sequence_breaker_that_is_no_unicode(make: Maker) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        make(dry_multiplier=1.0, dry_sequence_breakers=("\ud800",))
    assert caught.value.param == "dry_sequence_breakers"


# Penalties, bias, ends.


def changed(make: Maker, row: Row, sampler: NativeSampler) -> Row:
    before = row.copy()
    after = sampler._changes.apply(row)
    assert (row == before).all()
    return after


def test_repetition_penalty_counts_prompt_and_completion(make: Maker) -> None:
    row = make.random_row()
    result = row.copy()
    for token in (1, 2, 3):
        result[token] = result[token] / 1.7 if result[token] > 0 else result[token] * 1.7
    sampler = make(3, 2, 3, prompt=[1, 1, 2], repetition_penalty=1.7)
    np.testing.assert_allclose(changed(make, row, sampler), result, rtol=1e-6)


def test_presence_and_frequency_penalty_count_the_completion(make: Maker) -> None:
    row = make.random_row()
    result = row.copy()
    result[3] -= 0.5 + 2 * 0.25
    result[2] -= 0.5 + 0.25
    sampler = make(3, 2, 3, prompt=[1, 1, 2], presence_penalty=0.5, frequency_penalty=0.25)
    np.testing.assert_allclose(changed(make, row, sampler), result, rtol=1e-6)


@pytest.mark.parametrize(
    ("last_n", "repetition", "counts"),
    [(0, [], {}), (1, [9], {9: 1}), (3, [9, 8], {9: 2, 8: 1}), (5, [9, 8, 2], {9: 2, 8: 1})],
)
def test_penalties_look_back_so_far(
    make: Maker, last_n: int, repetition: list[int], counts: dict[int, int]
) -> None:
    row = make.random_row()
    result = row.copy()
    for token in repetition:
        result[token] = result[token] / 2 if result[token] > 0 else result[token] * 2
    for token, count in counts.items():
        result[token] -= count
    sampler = make(
        9, 8, 9, prompt=[1, 2, 2], repetition_penalty=2.0, frequency_penalty=1.0,
        penalty_last_n=last_n,
    )  # fmt: skip
    np.testing.assert_allclose(changed(make, row, sampler), result, rtol=1e-6)


def test_repetition_comes_before_the_other_penalties_and_the_bias(make: Maker) -> None:
    row = make.row(2.0, -2.0, 1.0)
    sampler = make(0, 1, repetition_penalty=2.0, presence_penalty=0.5, logit_bias={0: 3.0, 2: -1.0})
    result = make.row(2.0 / 2 - 0.5 + 3, -2.0 * 2 - 0.5, 0.0)
    np.testing.assert_allclose(changed(make, row, sampler), result, rtol=1e-6)


def test_logit_bias_bans_and_forces(make: Maker) -> None:
    row = make.row(0.0, 5.0, 1.0)
    assert make(**GREEDY, logit_bias={1: -100.0}).sample(row) == 2
    assert make(**SAMPLED, logit_bias={0: 100.0}).sample(row) == 0


@pytest.mark.parametrize("params", [GREEDY, SAMPLED, {**SAMPLED, "typical_p": 0.9}])
def test_min_tokens_forbids_the_ends(make: Maker, params: dict[str, Any]) -> None:
    row = make.row(30.0, 20.0, 10.0)
    sampler = make(**params, min_tokens=2, eos=[0], stop_token_ids=(1,))
    assert [sampler.sample(row) for _ in range(3)] == [2, 2, 0]
    assert make(**params, min_tokens=2, eos=[0], ignore_eos=True).sample(row) == 0


# Grammars.

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


# Corners.


@pytest.mark.parametrize("temperature", [1e-6, 1e-30, 1e-300])
@pytest.mark.parametrize("other", [{}, {"typical_p": 0.99}, {"dry_multiplier": 1.0}])
def test_tiny_temperatures_are_greedy(
    make: Maker, temperature: float, other: dict[str, Any]
) -> None:
    row = make.row(1e4, -1e4, 1e4 + 1, 3e38)
    assert make(**other, seed=1, temperature=temperature).sample(row) == 3


EVERYTHING: list[dict[str, Any]] = [
    {},
    {"typical_p": 0.0},
    {"top_n_sigma": 1.0, "typical_p": 0.5, "xtc_probability": 1.0, "xtc_threshold": 0.0},
    {"mirostat": 1, "mirostat_tau": 0.0},
    {"mirostat": 2, "mirostat_tau": 100.0},
    {"dynatemp_range": 9.0, "dynatemp_exponent": 0.0, "temperature": 1e-9},
    {"adaptive_target": 1.0, "top_p": 0.0},
    {"dry_multiplier": 9.0, "dry_base": 100.0, "dry_allowed_length": 0},
    {"temperature_last": True, "temperature": 50.0, "top_k": 2**40, "min_p": 1.0},
    {"repetition_penalty": 10.0, "penalty_last_n": 2**40, "dry_penalty_last_n": 2**40},
]


def test_a_token_without_weight_is_never_drawn() -> None:
    """Not at the ends of the scale, nor between the blocks that weights are summed in."""
    logits = np.full(5000, -np.inf, np.float32)
    logits[[1024, 4095]] = 0.0
    numbers = (0.0, 0.4999, 0.5, 1 - 2**-53)
    drawn = [draw(logits, SamplingParams(), number) for number in numbers]
    assert drawn == [1024, 1024, 4095, 4095]


@pytest.mark.parametrize("params", EVERYTHING, ids=str)
def test_odd_logits_give_a_token_of_the_vocabulary(make: Maker, params: dict[str, Any]) -> None:
    one = make.row(rest=-math.inf)
    one[17] = 3.0
    two = one.copy()
    two[18] = -200.0
    infinite = make.random_row()
    infinite[5] = math.inf
    sampler = make(**{**SAMPLED, **params}, prompt=[17, 18] * 40)
    assert sampler.sample(one) == 17
    assert sampler.sample(two) in (17, 18)
    assert sampler.sample(infinite) == 5
    for row in (make.row(rest=-math.inf), make.row(rest=0.0), make.row(3e38, rest=-3e38)):
        assert 0 <= sampler.sample(row) < make.vocabulary.size
    with pytest.raises(FloatingPointError):
        sampler.sample(make.row(math.nan))
