"""Names and values of sampling fields that clients of other servers send."""

import math
from typing import Any

import pytest

from enginebay.chat.schemas.generation_request import GenerationBody
from enginebay.contract.errors import InvalidRequestError
from enginebay.contract.sampling_params import SamplingParams
from tests.conftest import ServeScripted


def params(**body: Any) -> SamplingParams:
    return SamplingParams(**GenerationBody.model_validate(body).sampling_fields())


@pytest.mark.parametrize(
    ("name", "value", "field"),
    [
        ("max_length", 5, "max_tokens"),
        ("min_length", 5, "min_tokens"),
        ("num_predict", 5, "max_tokens"),
        ("stop_sequence", ["x"], "stop"),
        ("ban_eos_token", True, "ignore_eos"),
        ("allowed_tokens", [5, 6], "allowed_token_ids"),
        ("allowed_token_ids", "5, 6", "allowed_token_ids"),
        ("rep_pen", 1.5, "repetition_penalty"),
        ("typical", 0.5, "typical_p"),
        ("nsigma", 1.5, "top_n_sigma"),
        ("penalty_range", 5, "penalty_last_n"),
        ("repetition_range", 5, "penalty_last_n"),
        ("repetition_penalty_range", 5, "penalty_last_n"),
        ("rep_pen_range", 5, "penalty_last_n"),
        ("repeat_last_n", 5, "penalty_last_n"),
        ("dry_range", 5, "dry_penalty_last_n"),
        ("mirostat_mode", 1, "mirostat"),
        ("temp_exponent", 2.0, "dynatemp_exponent"),
        ("temperature_last", True, "temperature_last"),
        ("tfs_z", 0.5, "tfs"),
        ("banned_strings", ["x", "y"], "banned_strings"),
    ],
)
def test_other_names(name: str, value: Any, field: str) -> None:
    expected = tuple(value) if isinstance(value, list) else value
    expected = (5, 6) if value == "5, 6" else expected
    assert getattr(params(**{name: value}), field) == expected
    body = GenerationBody.model_validate({name: value})
    assert body.unknown_fields() == []


# `logprobs` is a number in one API and a switch in the other, a budget of thought the chat's alone,
# a constraint has many names, and a chat's formats have their marks.
OF_ONE_API = {"logprobs", "reasoning_budget", "constraint", "format_marks", "stop_scope"}


@pytest.mark.parametrize("field", sorted(SamplingParams.__dataclass_fields__.keys() - OF_ONE_API))
def test_every_param_has_its_own_name_on_the_wire(field: str) -> None:
    assert GenerationBody.model_validate({field: None}).model_extra == {}
    assert field in GenerationBody.model_fields


# What SillyTavern sends in its TabbyAPI mode when nothing is switched on.
NEUTRAL = {
    "typical_p": 1, "typical": 1, "min_p": 0, "repetition_penalty": 1, "rep_pen": 1,
    "repeat_penalty": 1, "frequency_penalty": 0, "presence_penalty": 0, "top_k": 0, "top_p": 1,
    "min_tokens": 0, "dynatemp_exponent": 2, "dynatemp_range": 0, "dry_allowed_length": 4,
    "dry_multiplier": 0, "dry_base": 2, "dry_sequence_breakers": '["x"]', "dry_penalty_last_n": 0,
    "mirostat_mode": 0, "mirostat": 0, "mirostat_tau": 4, "mirostat_eta": 0.2, "seed": -1,
    "top_n_sigma": -1, "xtc_threshold": 0.2, "xtc_probability": 0, "rep_pen_range": 0,
    "repetition_penalty_range": 0, "repeat_last_n": 0, "temperature_last": False,
    "adaptive_target": -0.01, "adaptive_decay": 0.5, "grammar_string": "", "logit_bias": {},
    "ban_eos_token": False, "ignore_eos": False, "stop": [], "smoothing_factor": 0, "top_a": 0,
    "tfs": 1, "tfs_z": 0, "skew": 0, "banned_strings": [], "token_healing": False,
}  # fmt: skip


def test_neutral_values_are_neutral() -> None:
    assert params(**NEUTRAL) == SamplingParams()


def test_a_backend_that_can_do_nothing_still_honours_neutral_values(
    serve_scripted: ServeScripted,
) -> None:
    server = serve_scripted(["ok"], server={"strict_params": True})
    body = {"prompt": "x", "max_tokens": 5, **NEUTRAL}
    response = server.http.post("/v1/completions", json=body)
    assert response.status_code == 200, response.text
    assert "x-unsupported-params" not in response.headers


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (["\n", "x"], ("\n", "x")),
        ('["\\n", "x"]', ("\n", "x")),
        ('"\\n", "x"', ("\n", "x")),
        ("[]", SamplingParams().dry_sequence_breakers),
        ("", SamplingParams().dry_sequence_breakers),
        ([], SamplingParams().dry_sequence_breakers),
    ],
)
def test_sequence_breakers(sent: Any, expected: tuple[str, ...]) -> None:
    assert params(dry_multiplier=1, dry_sequence_breakers=sent).dry_sequence_breakers == expected


@pytest.mark.parametrize(
    ("body", "temperature", "range_"),
    [
        ({"min_temp": 0.5, "max_temp": 1.5}, 1.0, 0.5),
        ({"dynatemp_low": 0, "dynatemp_high": 3, "temperature": 0.7}, 1.5, 1.5),
        ({"max_temp": 2}, 1.5, 0.5),
        ({"min_temp": 1, "max_temp": 1, "temperature": 0.7}, 0.7, 0.0),
        ({"min_temp": 0.5, "max_temp": 1.5, "temperature": 0}, 0.0, 0.0),
        ({"dynatemp_range": 0.25, "temperature": 0.7}, 0.7, 0.25),
        ({"dynamic_temperature": False, "min_temp": 0, "max_temp": 3, "temperature": 0.7}, 0.7, 0),
        ({"dynamic_temperature": True, "min_temp": 0, "max_temp": 3}, 1.5, 1.5),
    ],
)
def test_dynamic_temperature(body: dict[str, Any], temperature: float, range_: float) -> None:
    chosen = params(**body)
    assert (chosen.temperature, chosen.dynatemp_range) == (temperature, range_)


def test_temperatures_the_wrong_way_round() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        params(min_temp=2, max_temp=1)
    assert caught.value.param == "min_temp"


def test_mirostat_as_tabbyapi_has_it() -> None:
    assert params(mirostat=True).mirostat == 2
    assert params(mirostat=False).mirostat == 0


@pytest.mark.parametrize("sent", [[5, 6], "5,6", " [5, 6] ", "5, 6,"])
@pytest.mark.parametrize("name", ["banned_tokens", "custom_token_bans"])
def test_token_bans(name: str, sent: Any) -> None:
    chosen = params(**{name: sent, "logit_bias": {"5": 3, "7": 1}})
    assert chosen.logit_bias == {5: -math.inf, 6: -math.inf, 7: 1}
    assert params(**{name: type(sent)()}) == SamplingParams()
