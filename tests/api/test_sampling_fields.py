"""Every field of the one table, in a request, in `config.yml` and in a preset."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from enginebay import Backend
from enginebay.chat.schemas.generation_request import GenerationBody
from enginebay.config.load import load_config
from enginebay.config.problems import ConfigError
from enginebay.config.sampling_fields import SamplingFields
from enginebay.config.schema import Config
from enginebay.config.walk import schema_at
from enginebay.contract.backend_settings import BackendSettings
from enginebay.contract.sampling_params import SamplingParams
from enginebay.models.overrides import Overrides
from tests.api.test_overrides import Recorder
from tests.support import engine_backend, plugins_with, scripted_config, serve

FIELDS = list(SamplingFields.model_fields)
SCHEMA = Config.model_json_schema()


def described(name: str) -> dict[str, Any]:
    return dict(schema_at(SCHEMA, ("models", 0, "sampling", name)))


def good(name: str) -> Any:
    """A value of a field that is not the one an engine takes by itself."""
    field = described(name)
    match field["type"]:
        case "boolean":
            return name != "skip_special_tokens"
        case "array":
            items = field["items"].get("anyOf", [field["items"]])
            return ["x"] if items[0]["type"] == "string" else [5]
        case "object":
            return {"5": 1}
        case "integer":
            return min(3, field.get("maximum", 3))
    return 1.5 if name == "max_temp" else max(field.get("minimum", 0), 0) + 0.3


def bad(name: str) -> Any:
    """A value that a field cannot have; some take any negative number for off."""
    field = described(name)
    match field["type"]:
        case "boolean" | "object":
            return "maybe"
        case "array":
            return {"x": 1}
    highest = field.get("exclusiveMaximum", field.get("maximum", 0) + 1)
    return highest if {"maximum", "exclusiveMaximum"} & field.keys() else field["minimum"] - 5


class Engines:
    """A server with a model for each field, which is its default there, and one without any."""

    def __init__(self) -> None:
        self.engines: dict[str, Recorder] = {}
        entry = scripted_config().models[0].model_dump()
        models = [{**entry, "name": name, "sampling": {name: good(name)}} for name in FIELDS]
        self.config = Config.model_validate({"models": [{**entry, "name": "plain"}, *models]})

    def create(self, settings: BackendSettings) -> Backend:
        engine = self.engines[settings.name] = Recorder()
        return engine_backend(lambda: engine)(settings)


@pytest.fixture(scope="module")
def asked() -> Iterator[Any]:
    """What the engine of a model is asked for by a request."""
    engines = Engines()
    with serve(engines.config, plugins_with(scripted=engines.create)) as server:

        def ask(model: str, **body: Any) -> SamplingParams:
            sent = {"model": model, "prompt": "x", **body}
            answer = server.http.post("/v1/completions", json=sent)
            assert answer.status_code == 200, answer.text
            return engines.engines[model].asked[-1].sampling

        yield ask


@pytest.mark.parametrize("name", FIELDS)
def test_a_default_of_the_config_reaches_the_engine(name: str, asked: Any) -> None:
    by_config, by_request = asked(name), asked("plain", **{name: good(name)})
    assert by_config == by_request
    # One only says whether two others apply, and one is no concern of engines.
    if name not in ("dynamic_temperature", "max_seconds"):
        assert by_config != asked("plain")


@pytest.mark.parametrize("name", FIELDS)
def test_a_preset_sets_it_like_a_request(name: str) -> None:
    preset = Overrides({name: {"override": good(name)}})
    sent = GenerationBody.model_validate({name: good(name)})
    assert preset.applied_to(GenerationBody(), {}).sampling_fields() == sent.sampling_fields()


@pytest.mark.parametrize("name", FIELDS)
def test_a_wrong_value_in_the_config_is_told_with_its_line(name: str, tmp_path: Path) -> None:
    path = tmp_path / "config.yml"
    head = "models:\n- name: a\n  backend: b\n  path: p\n  sampling:\n"
    path.write_text(f"{head}    {name}: {json.dumps(bad(name))}\n", encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    [problem] = caught.value.problems
    assert str(problem).startswith(f"{path}:6: models[0].sampling.{name}: ")


@pytest.fixture(scope="module")
def refused() -> Iterator[Any]:
    """The error for a request."""
    with serve(scripted_config(), plugins_with(scripted=engine_backend(Recorder))) as server:

        def ask(**body: Any) -> Any:
            answer = server.http.post("/v1/completions", json={"prompt": "x", **body})
            assert answer.status_code == 400, answer.text
            return answer.json()["error"]

        yield ask


@pytest.mark.parametrize("name", FIELDS)
def test_a_wrong_value_in_a_request_is_an_error(name: str, refused: Any) -> None:
    assert refused(**{name: bad(name)})["param"].partition("[")[0] == name


@pytest.mark.parametrize("name", FIELDS)
def test_it_is_described_in_the_schema_of_requests(name: str) -> None:
    schema = GenerationBody.model_json_schema(by_alias=False)["properties"][name]
    assert schema["description"] == described(name)["description"]


@pytest.mark.parametrize(
    ("defaults", "body", "expected"),
    [
        ({"temperature": 0}, {"min_temp": 0.5, "max_temp": 1.5}, (1, 0.5)),
        ({"min_temp": 0.5, "max_temp": 1.5}, {"temperature": 0.3}, (0.3, 0)),
        ({"min_temp": 0.5, "max_temp": 1.5}, {"max_temp": 2.5}, (1.5, 1)),
        ({"min_temp": 0.5, "max_temp": 1.5}, {"dynamic_temperature": False}, (1, 0)),
        ({"dynatemp_range": 0.5}, {"temperature": 0.7}, (0.7, 0.5)),
    ],
)
def test_a_temperature_and_a_range_of_them_are_one_choice(
    defaults: dict[str, Any], body: dict[str, Any], expected: tuple[float, float]
) -> None:
    asked = GenerationBody.model_validate(body).with_defaults(SamplingFields(**defaults))
    params = SamplingParams(**asked.sampling_fields())
    assert (params.temperature, params.dynatemp_range) == expected


def test_bans_and_biases_of_the_config_and_of_a_request_count_together() -> None:
    asked = GenerationBody.model_validate({"logit_bias": {"5": 1}})
    chosen = asked.with_defaults(SamplingFields(banned_tokens=[7])).sampling_fields()
    assert chosen == {"logit_bias": {5: 1, 7: float("-inf")}}


def test_a_detail_of_a_sampler_counts_for_requests_that_switch_it_on() -> None:
    defaults = SamplingFields(dry_multiplier=0, dry_base=2)
    on = GenerationBody.model_validate({"dry_multiplier": 1}).with_defaults(defaults)
    assert on.sampling_fields() == {"dry_multiplier": 1, "dry_base": 2}
    assert GenerationBody().with_defaults(defaults).sampling_fields() == {"dry_multiplier": 0}


@pytest.mark.parametrize(
    ("sampling", "problem"),
    [
        ("min_temp: 2\n    max_temp: 1", "6: models[0].sampling.min_temp: min_temp is more than"),
        ("{banned_tokens: [5], allowed_token_ids: [5]}", "5: models[0].sampling.allowed_token_ids"),
        ("logit_bias: {a: 1}", "6: models[0].sampling.logit_bias: 'a' is not a token id"),
        ("seed: {override: 1, force: maybe}", "6: models[0].sampling.seed.force: must be true or"),
    ],
)
def test_fields_of_the_config_that_contradict(sampling: str, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "config.yml"
    head = "models:\n- name: a\n  backend: b\n  path: p\n  sampling:"
    space = " " if sampling.startswith("{") else "\n    "
    path.write_text(f"{head}{space}{sampling}\n", encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert str(caught.value).startswith(f"{path}:{problem}")


def test_a_config_with_tokens_that_the_model_does_not_have() -> None:
    config = scripted_config(sampling={"banned_tokens": {"override": [5000], "force": True}})
    with serve(config, plugins_with(scripted=engine_backend(Recorder))) as server:
        error = server.http.get("/health").json()["models"]["scripted"]["error"]
        assert "`sampling` in the config cannot be used: banned_tokens has the token id" in error


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"repetition_penalty_range": 0, "repetition_penalty": 1.1}, "repetition_penalty_range"),
        ({"rep_pen_range": 0, "rep_pen": 1.1}, "rep_pen_range"),
        ({"repeat_last_n": 0, "presence_penalty": 0.5}, "repeat_last_n"),
        ({"penalty_last_n": 0, "frequency_penalty": 0.5}, "penalty_last_n"),
        ({"dry_range": 0, "dry_multiplier": 0.8}, "dry_range"),
        ({"repetition_penalty_range": 0, "repetition_penalty": 1}, None),
        ({"repetition_penalty_range": 0}, None),
        ({"repetition_penalty_range": 5, "repetition_penalty": 1.1}, None),
        ({"dry_penalty_last_n": 0, "dry_multiplier": 0, "dry_base": 1.75}, None),
    ],
)
def test_a_window_without_tokens_that_turns_a_penalty_off_is_named(
    fields: dict[str, Any], named: str | None
) -> None:
    # EVE-8
    with serve(scripted_config(), plugins_with(scripted=engine_backend(Recorder))) as server:
        for path, body in (
            ("/v1/completions", {"prompt": "x"}),
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}),
        ):
            answer = server.http.post(path, json={**body, **fields})
            assert answer.headers.get("X-Unsupported-Params") == named
