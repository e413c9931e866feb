"""What `options` of the exllamav2 backend may say."""

from typing import Any

import pytest
from pydantic import ValidationError

from enginebay_exllamav2.options import ExLlamaV2Options
from tests.config.reference import rows
from tests.support import REPOSITORY


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"draft_model": "small", "prompt_lookup": 3}, "draft_model or prompt_lookup, not both"),
        ({"cache_tokens": 100, "context_length": 200}, "cache_tokens must be at least"),
        ({"gpu_split": [20], "autosplit_reserve": [96]}, "gpu_split or autosplit_reserve"),
        ({"gpu_split": []}, "gpu_split must give some GPU memory"),
        ({"gpu_split": [0, 0]}, "gpu_split must give some GPU memory"),
        ({"gpu_split": [-1]}, "greater than or equal to 0"),
        ({"rope_scale": 2, "rope_alpha": 2}, "rope_scale or rope_alpha, not both"),
        ({"rope_alpha": 2, "yarn_factor": 2}, "rope_alpha or yarn_factor, not both"),
        ({"yarn_orig_ctx": 4096}, "yarn_orig_ctx needs yarn_factor"),
        ({"prefill_tokens": 300}, "multiple of 256"),
        ({"prefill_tokens": 0}, "greater than or equal to 256"),
        ({"prompt_lookup": 8}, "less than or equal to 7"),
        ({"draft_tokens": 8}, "less than or equal to 7"),
        ({"cache_type": "fp8"}, "'f16', 'q8', 'q6' or 'q4'"),
        ({"max_seq_len": 4096}, "Extra inputs are not permitted"),
        ({"adapters": {"pirate": {"path": "p", "weight": 2}}}, "Extra inputs are not permitted"),
    ],
)
def test_what_cannot_be_meant_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        ExLlamaV2Options.of(options)


def test_options_may_be_missing_or_checked_already() -> None:
    default = ExLlamaV2Options()
    assert ExLlamaV2Options.of(None) == ExLlamaV2Options.of({}) == default
    assert ExLlamaV2Options.of(default) is default


@pytest.mark.parametrize(
    ("options", "tokens"),
    [
        ({}, 0),
        ({"draft_tokens": 6}, 0),
        ({"draft_model": "small", "draft_tokens": 6}, 6),
        ({"prompt_lookup": 3}, 3),
    ],
)
def test_how_many_tokens_are_guessed(options: dict[str, Any], tokens: int) -> None:
    assert ExLlamaV2Options.of(options).guessed_tokens == tokens


def test_the_reference_of_options_is_current() -> None:
    written = (
        (REPOSITORY / "docs" / "reference" / "configuration.md")
        .read_text(encoding="utf-8")
        .splitlines()
    )
    schema = ExLlamaV2Options.model_json_schema()
    assert [row for row in rows(schema) if row not in written] == []


def test_the_guide_speaks_of_every_option() -> None:
    guide = (REPOSITORY / "docs" / "guides" / "exllamav2.md").read_text(encoding="utf-8")
    assert [name for name in ExLlamaV2Options.model_fields if f"`{name}" not in guide] == []
