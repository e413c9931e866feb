"""The functions that stand in for the extension's, against the rules they follow."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
F = torch.nn.functional

from tests.exllamav2_cpu.extension import extension  # noqa: E402

EXTENSION = extension()
NONE = torch.empty((1, 1), device="meta")
PROBS = torch.tensor([0.05, 0.4, 0.1, 0.25, 0.2])


def sample(random: float = 0.5, probs: Any = PROBS, top: int = 0, **options: Any) -> Any:
    """Token, its probability, the top tokens and theirs, and the new `mirostat_mu`."""
    tokens, chosen = torch.zeros(1, 1, dtype=torch.long), torch.zeros(1, 1)
    top_tokens = torch.zeros(1, 1, top, dtype=torch.long) if top else NONE
    top_probs = torch.zeros(1, 1, top) if top else NONE
    arguments: dict[str, Any] = {
        "temperature": 1.0,
        "top_k": 0,
        "top_p": 0.0,
        "top_a": 0.0,
        "min_p": 0.0,
        "tfs": 0.0,
        "typical": 0.0,
        "logit_filter": NONE,
        "mirostat": False,
        "mirostat_mu": [],
        "mirostat_tau": 1.5,
        "mirostat_eta": 0.1,
        "post_temperature": 1.0,
        "xtc_mask": NONE,
    }
    mu = EXTENSION.sample_basic(
        logits=probs.log().view(1, 1, -1),
        random=random,
        output_tokens=tokens,
        output_probs=chosen,
        output_kprobs=top_probs,
        output_ktokens=top_tokens,
        **arguments | options,
    )
    return tokens.item(), chosen.item(), top_tokens, top_probs, mu


def distribution(**options: Any) -> list[float]:
    """How often each token is chosen, over random numbers that are spread evenly."""
    counts = np.zeros(len(PROBS))
    for step in range(200):
        counts[sample((step + 0.5) / 200, **options)[0]] += 1
    return list(counts / 200)


def share(*kept: int, probs: Any = PROBS) -> Any:
    """The distribution among some tokens."""
    mask = torch.zeros(len(probs))
    mask[list(kept)] = 1
    return pytest.approx((probs * mask / (probs * mask).sum()).tolist(), abs=0.011)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, share(0, 1, 2, 3, 4)),
        ({"temperature": 0.005}, share(1)),
        ({"temperature": 0.5}, share(0, 1, 2, 3, 4, probs=PROBS**2)),
        ({"post_temperature": 2.0}, share(0, 1, 2, 3, 4, probs=PROBS**0.5)),
        ({"top_k": 1}, share(1)),
        ({"top_k": 3}, share(1, 3, 4)),
        ({"top_k": 9}, share(0, 1, 2, 3, 4)),
        # The largest sum within 0.7, without the token that crosses it.
        ({"top_p": 0.7}, share(1, 3)),
        ({"top_p": 0.1}, share(1)),
        # 0.4² = 0.16
        ({"top_a": 1.0}, share(1, 3, 4)),
        # 0.6 · 0.4² = 0.096: the one below is kept all the same, as the loop goes too far.
        ({"top_a": 0.6}, share(0, 1, 2, 3, 4)),
        ({"min_p": 0.6}, share(1, 3)),
        # Bends between the sorted 0.4, 0.25, 0.2, 0.1, 0.05: 0.1, 0.05, 0.05.
        ({"tfs": 0.6}, share(1, 3)),
        ({"mirostat": True, "mirostat_mu": [2.1]}, share(1, 3)),
        # XTC spares the least likely of those over the threshold.
        (
            {"top_k": 4, "xtc_probability": 1.0, "xtc_threshold": 0.2, "xtc_mask": PROBS > 0},
            share(2, 4),
        ),
        (
            {"smoothing_factor": 0.5},
            share(0, 1, 2, 3, 4, probs=(-0.5 * (PROBS / 0.4).log() ** 2).exp()),
        ),
        ({"logit_filter": torch.tensor([[True, False, True, False, False]])}, share(0, 2)),
    ],
)
def test_each_sampler_keeps_to_its_rule(options: dict[str, Any], expected: Any) -> None:
    assert distribution(**options) == expected


def test_dynamic_temperature_follows_the_entropy() -> None:
    entropy = -(PROBS * PROBS.log()).sum() / np.log(5)
    temperature = 0.5 + 1.5 * entropy**2
    expected = share(0, 1, 2, 3, 4, probs=PROBS ** (1 / temperature))
    assert distribution(min_temp=0.5, max_temp=2.0, temp_exponent=2.0) == expected


def test_skew_bends_the_random_number() -> None:
    # Sorted: 0.4, 0.25, …; 0.5 becomes 0.5 ** exp(-1) = 0.77, which is in the third.
    assert sample(0.5)[0] == 2
    assert sample(0.5, skew=1.0)[0] == 4


def test_mirostat_learns_from_the_surprise() -> None:
    *_, mu = sample(0.1, mirostat=True, mirostat_mu=[0.0])
    assert mu == pytest.approx([3.0 + 0.1 * (1.5 + np.log2(0.4 / 0.85))])


def test_typical_keeps_what_is_nearest_to_the_expected_surprise() -> None:
    probs = torch.tensor([0.7, 0.1, 0.1, 0.1])
    assert sample(0.99, probs, typical=0.71)[0] == 0


def test_top_tokens_come_sorted_and_are_filled_with_others_of_probability_zero() -> None:
    _, _, tokens, probs, _ = sample(top=4, top_k=2)
    assert tokens[0, 0].tolist() == [1, 3, 0, 2]
    assert probs[0, 0].tolist() == pytest.approx([0.4 / 0.65, 0.25 / 0.65, 0, 0])


def test_rows_of_a_batch_have_numbers_of_their_own() -> None:
    tokens, chosen = torch.zeros(8, 1, dtype=torch.long), torch.zeros(8, 1)
    logits = PROBS.log().expand(8, 1, 5).contiguous()
    EXTENSION.sample_basic(
        *(logits, 1.0, 0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.3, tokens, chosen, NONE, NONE, NONE),
        *(False, [], 1.5, 0.1, 1.0, NONE),
    )
    assert len(set(tokens.flatten().tolist())) > 1
    assert torch.allclose(chosen, PROBS[tokens])


def test_nothing_to_choose_from_is_an_error() -> None:
    with pytest.raises(ValueError, match="no token is left"):
        sample(logit_filter=torch.zeros(1, 5, dtype=torch.bool))


@given(
    ids=st.lists(st.integers(-1, 8), min_size=1, max_size=20),
    sustain=st.integers(-1, 10),
    decay=st.integers(0, 10),
)
def test_penalties_fade_backwards(ids: list[int], sustain: int, decay: int) -> None:
    repetition, frequency, presence = 1.3, 0.2, 0.5
    logits = torch.linspace(-2, 2, 7).view(1, 1, 7)
    expected = logits.flatten().tolist()
    full = len(ids) if sustain == -1 else sustain
    met = set()
    for age, token in enumerate(reversed(ids)):
        if age >= full + decay:
            break
        strength = 1.0 if age < full else 1 - (age - full) / decay
        if not 0 <= token < 7:
            continue
        if token not in met:
            met.add(token)
            factor = 1 + (repetition - 1) * strength
            expected[token] *= 1 / factor if expected[token] > 0 else factor
            expected[token] -= presence * strength
        expected[token] -= frequency * strength
    sequence = torch.tensor([ids])
    EXTENSION.apply_rep_penalty(sequence, repetition, sustain, decay, frequency, presence, logits)
    assert logits.flatten().tolist() == pytest.approx(expected, abs=1e-5)


def test_a_filter_leaves_only_what_is_listed() -> None:
    allowed = torch.ones(2, 6, dtype=torch.bool)
    EXTENSION.logit_filter_exclusive(allowed, [[0, 3], [5]])
    assert [row.nonzero().flatten().tolist() for row in allowed] == [[0, 3], [5]]


@given(
    text=st.text("abé", max_size=8),
    strings=st.lists(st.text("abé", min_size=1, max_size=4), min_size=1, max_size=3),
)
def test_strings_match_wholly_or_at_the_end(text: str, strings: list[str]) -> None:
    expected = -1
    for string in strings:
        if string in text:
            expected = text.index(string)
            break
        if any(text.endswith(string[:length]) for length in range(1, len(string))):
            expected = -2
            break
    packed = [string.encode("utf-32-le") for string in strings]
    offsets = np.cumsum([0, *map(len, packed)]).astype(np.int32).view(np.uint8)
    match = np.frombuffer(text.encode("utf-32-le"), np.uint8)
    assert EXTENSION.partial_strings_match(match, offsets, b"".join(packed)) == expected


@given(a=st.lists(st.integers(0, 1), min_size=1), b=st.lists(st.integers(0, 1), min_size=1))
def test_matching_tokens_are_counted(a: list[int], b: list[int]) -> None:
    most = len(a)
    expected = next((i for i in range(min(most, len(b))) if a[i] != b[i]), min(most, len(b)))
    assert EXTENSION.count_match(torch.tensor([a]), torch.tensor([b]), most) == expected


# -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_norms(dtype: Any) -> None:
    torch.manual_seed(0)
    x, w, b = torch.randn(3, 64).to(dtype), torch.randn(64).half(), torch.randn(64).half()
    y = torch.empty_like(x)
    EXTENSION.rms_norm(x, w, y, 1e-5)
    expected = F.rms_norm(x.float(), (64,), w.float(), 1e-5)
    torch.testing.assert_close(y.float(), expected, rtol=2e-3, atol=2e-3)
    EXTENSION.layer_norm(x, w, b, y, 1e-5)
    expected = F.layer_norm(x.float(), (64,), w.float(), b.float(), 1e-5)
    torch.testing.assert_close(y.float(), expected, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("rms", [True, False])
def test_head_norms_have_weights_for_each_head(rms: bool) -> None:
    torch.manual_seed(0)
    x, w = torch.randn(1, 2, 3, 8).half(), torch.randn(3, 8).half()
    norm = F.rms_norm if rms else F.layer_norm
    expected = norm(x.float(), (8,), eps=1e-5) * w.float()
    EXTENSION.head_norm(x, w, NONE, x, 1e-5, rms)
    torch.testing.assert_close(x.float(), expected, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("neox", [True, False])
@pytest.mark.parametrize("width", [8, 6])
def test_rotation_of_pairs_by_their_position(neox: bool, width: int) -> None:
    """Pairs as complex numbers, times `exp(i · position · frequency)`."""
    torch.manual_seed(0)
    frequencies = torch.tensor([1.0, 0.3, 0.1, 0.02])[: width // 2]
    angles = torch.arange(32)[:, None] * frequencies
    angles = torch.cat((angles, angles), 1) if neox else angles.repeat_interleave(2, 1)
    sin, cos = angles.sin().half()[None, None], angles.cos().half()[None, None]
    x = torch.randn(2, 3, 4, 8).half()
    pairs = x[..., :width].float()
    pairs = pairs.unflatten(-1, (2, -1)).transpose(-1, -2) if neox else pairs.unflatten(-1, (-1, 2))
    positions = torch.tensor([5, 11])[:, None] + torch.arange(3)
    turns = torch.polar(torch.tensor(1.0), positions[..., None, None] * frequencies)
    turned = torch.view_as_real(torch.view_as_complex(pairs.contiguous()) * turns)
    turned = turned.transpose(-1, -2).flatten(-2) if neox else turned.flatten(-2)
    expected = torch.cat((turned, x[..., width:].float()), -1)
    EXTENSION.rope_(x, sin, cos, 3, 4, 8, torch.tensor([2, 8], dtype=torch.int), neox)
    torch.testing.assert_close(x.float(), expected, rtol=5e-3, atol=5e-3)


def test_softcap() -> None:
    x = torch.linspace(-90, 90, 7)
    expected = 30 * torch.tanh(x / 30)
    EXTENSION.softcap_(x, 30.0)
    torch.testing.assert_close(x, expected)


def test_pages_rotate() -> None:
    pages = torch.arange(5.0)[:, None].repeat(1, 4)
    EXTENSION.cache_rotate(pages, torch.tensor([3, 0, 1], dtype=torch.int), pages[:1].clone())
    assert pages[:, 0].tolist() == [1, 3, 2, 0, 4]


@pytest.mark.parametrize("bits", [4, 6, 8])
@pytest.mark.parametrize("paged", [True, False])
def test_quantised_caches_give_back_what_was_stored(bits: int, paged: bool) -> None:
    torch.manual_seed(0)
    tokens, heads, width = 512, 2, 64
    k, v = (torch.randn(1, tokens, heads, width).half() for _ in range(2))
    k_bits, v_bits = {4: (4, 4), 6: (8, 4), 8: (8, 8)}[bits]
    codes = [
        torch.zeros(1, tokens, heads, width * each // 8, dtype=torch.uint8)
        for each in (k_bits, v_bits)
    ]
    scales = [torch.zeros(1, tokens, heads, width // 32).half() for _ in range(2)]
    if paged:  # 312 tokens in the second page, then in the first
        where = (1, 0, 312, 256, torch.tensor([0]).int(), torch.tensor([[1, 0]]).int())
        back = (1, 0, 312, 256, torch.tensor([312]).int(), torch.tensor([[1, 0]]).int())
        stored = torch.cat((torch.arange(256, 512), torch.arange(56)))
    else:
        where = back = (1, 8, 304, 0, NONE, NONE)
        stored = torch.arange(8, 312)
    EXTENSION.fp16_to_q_kv(k, codes[0], scales[0], v, codes[1], scales[1], *where, bits)
    k_back, v_back = torch.zeros_like(k), torch.zeros_like(v)
    EXTENSION.q_to_fp16_kv(codes[0], k_back, scales[0], codes[1], v_back, scales[1], *back, bits)
    for stored_bits, values, restored in ((k_bits, k, k_back), (v_bits, v, v_back)):
        rms = (values - restored)[:, stored].float().square().mean().sqrt().item()
        assert 0 < rms < (0.2 if stored_bits == 4 else 0.02)
        untouched = torch.ones(tokens, dtype=torch.bool)
        untouched[stored] = False
        assert not restored[:, untouched].any()
