"""Frequencies of rotary embeddings against transformers', and what of a config is refused."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from transformers import LlamaConfig, Phi3Config
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from enginebay_exllamav2.rope import KINDS, Rope

BASES = st.sampled_from([1e4, 5e5, 1e6])
FACTORS = st.floats(1.0, 40.0)
CONTEXTS = st.sampled_from([64, 2048, 4096, 32768])


@st.composite
def scalings(draw: st.DrawFn) -> dict[str, Any]:
    kind = draw(st.sampled_from(["linear", "llama3", "yarn"]))
    settings: dict[str, Any] = {"rope_type": kind, "factor": draw(FACTORS)}
    if kind == "llama3":
        settings["low_freq_factor"] = draw(st.floats(0.5, 2.0))
        settings["high_freq_factor"] = draw(st.floats(2.5, 8.0))
    if kind != "linear":
        settings["original_max_position_embeddings"] = draw(CONTEXTS)
    if kind == "yarn":
        optional = {
            "beta_fast": st.floats(16.0, 64.0),
            "beta_slow": st.floats(0.5, 2.0),
            "attention_factor": st.floats(0.5, 2.0),
            "mscale": st.floats(0.5, 2.0),
            "mscale_all_dim": st.floats(0.5, 2.0),
            "truncate": st.booleans(),
        }
        settings.update(draw(st.fixed_dictionaries({}, optional=optional)))
    return settings


@given(settings=scalings(), base=BASES, context=CONTEXTS, size=st.sampled_from([64, 128]))
def test_frequencies_are_those_of_transformers(
    settings: dict[str, Any], base: float, context: int, size: int
) -> None:
    assume(context >= settings.get("original_max_position_embeddings", 0))
    config = LlamaConfig(
        head_dim=size,
        hidden_size=2 * size,
        num_attention_heads=2,
        max_position_embeddings=context,
        rope_parameters={**settings, "rope_theta": base},
    )
    expected, scale = ROPE_INIT_FUNCTIONS[settings["rope_type"]](config, "cpu")
    rope = Rope.of(config.to_dict())
    frequencies, ours = rope.frequencies(base, size)
    torch.testing.assert_close(frequencies / rope.scale, expected, rtol=1e-5, atol=0)
    assert ours == pytest.approx(scale)


@given(base=BASES, context=st.sampled_from([4096, 131072]), asked=st.sampled_from([4096, 4097]))
def test_longrope_is_that_of_transformers(base: float, context: int, asked: int) -> None:
    config = Phi3Config(
        hidden_size=128,
        num_attention_heads=2,
        max_position_embeddings=context,
        original_max_position_embeddings=4096,
        rope_parameters={
            "rope_type": "longrope",
            "long_factor": [1.0 + i for i in range(32)],
            "short_factor": [1.0 + i / 32 for i in range(32)],
            "rope_theta": base,
            "original_max_position_embeddings": 4096,
        },
    )
    expected, scale = ROPE_INIT_FUNCTIONS["longrope"](config, "cpu", seq_len=asked)
    rope = replace(Rope.of(config.to_dict()), context_length=asked)
    frequencies, ours = rope.frequencies(base, 64)
    torch.testing.assert_close(frequencies, expected, rtol=1e-5, atol=0)
    assert ours == pytest.approx(scale)


def test_alpha_raises_the_base() -> None:
    """NTK scaling: the slowest frequency is alpha times slower, the fastest is as it was."""
    plain, _ = Rope().frequencies(1e4, 64)
    scaled, _ = Rope(alpha=3.0).frequencies(1e4, 64)
    assert scaled[0] == plain[0]
    assert float(plain[-1] / scaled[-1]) == pytest.approx(3.0, rel=1e-4)


FORMS: list[tuple[dict[str, Any], Rope]] = [
    ({}, Rope()),
    ({"rope_theta": 1000000}, Rope(base=1e6)),
    ({"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}}, Rope(base=5e5)),
    (
        {"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}},
        Rope(base=1e4, rotary_share=0.5),
    ),
    (
        {
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            }
        },
        Rope(kind="linear", base=1e6, local_base=1e4),
    ),
    ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, Rope(kind="dynamic")),
    (
        {"rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}},
        Rope(sections=[16, 24, 24]),
    ),
    (
        {"rope_parameters": {"rope_type": "default", "mrope_section": [16, 24, 24]}},
        Rope(sections=[16, 24, 24]),
    ),
]


@pytest.mark.parametrize(("config", "expected"), FORMS)
def test_both_forms_of_configurations_are_read(config: dict[str, Any], expected: Rope) -> None:
    rope = Rope.of(config)
    assert replace(rope, settings={}) == expected


def test_settings_of_the_kind_are_kept() -> None:
    scaling = {"type": "su", "long_factor": [2.0], "short_factor": [1.0]}
    config = {
        "rope_scaling": scaling,
        "max_position_embeddings": 8192,
        "original_max_position_embeddings": 4096,
    }
    rope = Rope.of(config)
    assert rope.kind == "longrope"
    assert rope.trained_context == rope.longest_context == 8192
    assert rope.settings["original_max_position_embeddings"] == 4096


def test_how_long_a_scaled_context_may_be() -> None:
    scaling = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    config = {"rope_scaling": scaling, "max_position_embeddings": 32768}
    assert Rope.of(config).longest_context == 131072
    config = {"rope_scaling": {**scaling, "type": "linear"}, "max_position_embeddings": 131072}
    assert Rope.of(config).longest_context == 131072


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"rope_scaling": {"type": "xpos"}}, "'xpos', which is not one of default, linear"),
    ({"rope_scaling": {"type": "linear"}}, "'linear' without factor"),
    ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "without low_freq_factor"),
    ({"rope_scaling": {"type": "longrope", "long_factor": 2.0}}, "without short_factor"),
    ({"rope_theta": "10000"}, "rope_theta '10000'"),
    ({"rope_theta": 0}, "rope_theta 0"),
    (
        {
            "rope_parameters": {
                "full_attention": {},
                "sliding_attention": {"rope_type": "yarn", "factor": 2.0},
            }
        },
        "scaled RoPE in layers with a sliding window",
    ),
]


@pytest.mark.parametrize(("config", "message"), REFUSED)
def test_what_cannot_be_computed_is_refused(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Rope.of(config)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)
NAMES = ("rope_type", "type", "factor", "rope_theta", "low_freq_factor", "long_factor")


@given(
    settings=st.dictionaries(
        st.sampled_from([*NAMES, "original_max_position_embeddings", "partial_rotary_factor"]),
        st.sampled_from(KINDS) | json_values,
    ),
    form=st.sampled_from(["rope_parameters", "rope_scaling"]),
)
def test_any_settings_are_read_or_refused(settings: dict[str, Any], form: str) -> None:
    try:
        rope = Rope.of({form: settings, "max_position_embeddings": 2048})
    except ValueError:
        return
    assert rope.longest_context >= 2048
    if rope.kind != "longrope":
        frequencies, scale = rope.frequencies(rope.base or 1e4, 8)
        assert frequencies.isfinite().all()
        assert scale > 0
