"""Sampling overrides: presets, forced and additive values, and TabbyAPI's routes for them."""

import math
from pathlib import Path
from typing import Any

import pytest

from enginebay import Backend
from enginebay.config.load import load_config
from enginebay.config.problems import ConfigError
from enginebay.contract.backend_settings import BackendSettings
from enginebay.contract.sampling_params import SamplingParams
from enginebay.contract.types import GenerationRequest, ModelInfo
from enginebay.models.check_config import check_config
from enginebay.testing import ScriptedEngine
from tests.support import Server, engine_backend, plugins_with, scripted_config, serve

USER = [{"role": "user", "content": "hi"}]
TABBY = """
# As TabbyAPI's sample preset has it
max_tokens:
  override: 150
  force: false
generate_window:
  override: 512
  force: false
stop:
  override: ["a"]
  force: False
  additive: True
banned_strings:
  override: []
  force: false
  additive: false
speculative_ngram:
  override: false
  force: false
top_k:
  override: 0
  force: True
typical:
  override: 0.5
  force: false
penalty_range:
  override: -1
  force: false
mirostat_mode:
  override: 0
  force: false
mirostat_tau:
  override: 1.5
  force: false
ban_eos_token:
  override: false
  force: false
logit_bias:
  override:
  force: false
  additive: false
cfg_scale:
  override: 1.0
  force: false
negative_prompt:
  override:
  force: false
loop_detect_window:
  override: 800
  force: false
"""


class Recorder(ScriptedEngine):
    """Honours every param, and remembers what it is asked for."""

    def __init__(self) -> None:
        super().__init__(["ok"])
        known = {name: getattr(self.info, name) for name in ModelInfo.__dataclass_fields__}
        self.info = ModelInfo(**known | {"unsupported": frozenset(), "vocab_size": 1000})
        self.asked: list[GenerationRequest] = []

    def add_request(self, request: GenerationRequest) -> None:
        self.asked.append(request)
        super().add_request(request)


class Asking:
    """A server and what its engine is asked for."""

    def __init__(self, server: Server, engine: Recorder) -> None:
        self.server, self.http, self.engine = server, server.http, engine

    def text(self, named: str | None = None, **body: Any) -> SamplingParams:
        """`named`: what the request asks for and does not get."""
        answer = self.http.post("/v1/completions", json={"prompt": "x", **body})
        assert answer.status_code == 200, answer.text
        assert answer.headers.get("x-unsupported-params") == named
        return self.engine.asked[-1].sampling

    def chat(self, named: str | None = None, **body: Any) -> SamplingParams:
        answer = self.http.post("/v1/chat/completions", json={"messages": USER, **body})
        assert answer.status_code == 200, answer.text
        assert answer.headers.get("x-unsupported-params") == named
        return self.engine.asked[-1].sampling

    def sources(self, **body: Any) -> dict[str, Any]:
        answer = self.http.post("/v1/chat/completions/explain", json={"messages": USER, **body})
        assert answer.status_code == 200, answer.text
        sampling = answer.json()["sampling"].items()
        return {k: (v["value"], v["source"]) for k, v in sampling if v["source"] != "default"}

    def switch(self, **body: Any) -> dict[str, Any]:
        answer = self.http.post("/v1/sampling/override/switch", json=body)
        assert answer.status_code == 200, answer.text
        result: dict[str, Any] = answer.json()
        return result

    def refused(self, **body: Any) -> dict[str, Any]:
        answer = self.http.post("/v1/sampling/override/switch", json=body)
        assert answer.status_code == 400, answer.text
        error: dict[str, Any] = answer.json()["error"]
        return error


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "sampler_overrides").mkdir()
    (tmp_path / "sampler_overrides" / "tabby.yml").write_text(TABBY, encoding="utf-8")
    (tmp_path / "sampler_overrides" / "cold.yaml").write_text("temperature: {override: 0}\n")
    (tmp_path / "secret.yml").write_text("temperature: {override: 0}\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def serving(**model: Any) -> Any:
    """A context in which a server runs whose engine is a `Recorder`."""
    engine = Recorder()
    served = serve(scripted_config(**model), plugins_with(scripted=engine_backend(lambda: engine)))

    class Context:
        def __enter__(self) -> Asking:
            return Asking(served.__enter__(), engine)

        def __exit__(self, *error: Any) -> None:
            served.__exit__(*error)

    return Context()


def test_a_preset_of_the_config(folder: Path) -> None:
    with serving(sampling_preset="tabby", sampling={"temperature": 0.7, "top_k": 9}) as ask:
        for asked in (ask.text, ask.chat):
            params = asked()
            assert (params.max_tokens, params.stop, params.top_k) == (150, ("a",), 0)
            assert (params.typical_p, params.temperature) == (0.5, 0.7)
            params = asked("top_k", max_tokens=5, stop=["b", "a"], top_k=30, typical_p=0.9)
            assert (params.max_tokens, params.stop, params.top_k) == (5, ("b", "a"), 0)
            assert params.typical_p == 0.9
        assert ask.sources(top_k=30, stop="b", temperature=0.5) == {
            "max_tokens": (150, "preset"),
            "stop": (["b", "a"], "additive"),
            "top_k": (0, "forced"),
            "typical_p": (0.5, "preset"),
            "penalty_last_n": (-1, "preset"),
            "mirostat": (0, "preset"),
            "ignore_eos": (False, "preset"),
            "banned_strings": ([], "preset"),
            "loop_detect_window": (800, "preset"),
            "temperature": (0.5, "request"),
        }


def test_entries_of_the_config_itself() -> None:
    sampling = {
        "temperature": {"override": 0.5},
        "top_p": {"override": 0.9, "force": True},
        "stop": {"override": ["x"], "additive": True},
        "min_p": 0.1,
    }
    with serving(sampling=sampling) as ask:
        params = ask.text("top_p", top_p=0.3, stop="y")
        assert (params.temperature, params.top_p, params.min_p) == (0.5, 0.9, 0.1)
        assert params.stop == ("y", "x")
        sources = ask.sources(top_p=0.3)
        assert sources["temperature"] == (0.5, "config")
        assert sources["top_p"] == (0.9, "forced")
        assert sources["stop"] == (["x"], "additive")
        # what is forced stays so beside a preset that only has a default for it
        ask.switch(overrides={"top_p": {"override": 0.2}, "stop": {"override": ["z"]}})
        assert ask.text("top_p", top_p=0.3).top_p == 0.9
        assert ask.text(top_p=0.9).top_p == 0.9
        ask.switch(overrides={"top_p": {"override": 0.2, "force": True}})
        assert ask.text("top_p", top_p=0.3).top_p == 0.2


def test_additive_values_are_joined_to_those_of_the_config() -> None:
    with serving(sampling={"stop": ["A"]}) as ask:
        added = {"stop": {"override": ["B"], "additive": True}}
        ask.switch(overrides=added)
        assert ask.text().stop == ("A", "B")
        assert ask.text(stop="C").stop == ("C", "B")


@pytest.mark.parametrize("prefix", ["/v1", ""])
def test_routes(folder: Path, prefix: str) -> None:
    with serving() as ask:
        listed = ask.http.get(f"{prefix}/sampling/overrides").json()
        assert listed == {"selected_preset": None, "overrides": {}, "presets": ["cold", "tabby"]}
        switch = f"{prefix}/sampling/override/switch"
        assert ask.http.post(switch, json={"preset": "tabby"}).status_code == 200
        listed = ask.http.get(f"{prefix}/sampling/override/list").json()
        assert listed["selected_preset"] == "tabby"
        assert listed["overrides"]["top_k"] == {"override": 0, "force": True}
        assert "logit_bias" not in listed["overrides"]
        assert ask.text("top_k", top_k=30).top_k == 0
        # TabbyAPI's own example
        example = {"overrides": {"top_p": {"override": 1.5, "force": False}}}
        assert ask.http.post(switch, json=example).status_code == 200
        assert ask.text(top_k=30).top_k == 30
        assert ask.text().top_p == 1
        assert ask.http.get(f"{prefix}/sampling/overrides").json()["selected_preset"] is None
        unloaded = ask.http.post(f"{prefix}/sampling/override/unload")
        assert unloaded.json()["overrides"] == {}


def test_unloading_goes_back_to_what_the_config_says_without_a_preset(folder: Path) -> None:
    with serving(sampling_preset="cold", sampling={"temperature": 0.7}) as ask:
        assert ask.text().temperature == 0
        ask.http.post("/v1/sampling/override/unload", json={"model": "scripted"})
        assert ask.text().temperature == 0.7


@pytest.mark.parametrize(
    ("overrides", "body", "expected", "named"),
    [
        # falsy values are forced, too
        ({"top_k": {"override": 0, "force": True}}, {"top_k": 5}, {"top_k": 0}, "top_k"),
        ({"temperature": {"override": 0, "force": True}}, {"temperature": 1},
         {"temperature": 0}, "temperature"),
        ({"seed": {"override": -1, "force": True}}, {"seed": 5}, {"seed": None}, "seed"),
        ({"stop": {"override": [], "force": True}}, {"stop": "x"}, {"stop": ()}, "stop"),
        ({"ban_eos_token": {"override": False, "force": True}}, {"ignore_eos": True},
         {"ignore_eos": False}, "ignore_eos"),
        # a forced temperature is no range of temperatures
        ({"temperature": {"override": 0.5, "force": True}}, {"min_temp": 0, "max_temp": 2},
         {"temperature": 0.5, "dynatemp_range": 0}, "max_temp, min_temp"),
        ({"min_temp": {"override": 0.5}, "max_temp": {"override": 1.5}}, {"temperature": 3},
         {"temperature": 1, "dynatemp_range": 0.5}, "temperature"),
        # lists and biases are joined
        ({"banned_tokens": {"override": "5, 6", "additive": True}},
         {"custom_token_bans": "7", "logit_bias": {"5": 1, "8": 2}},
         {"logit_bias": {5: -math.inf, 6: -math.inf, 7: -math.inf, 8: 2}}, None),
        ({"banned_tokens": {"override": [5], "force": True}},
         {"banned_tokens": [7], "logit_bias": {"8": 2}},
         {"logit_bias": {5: -math.inf, 8: 2}}, "banned_tokens"),
        ({"logit_bias": {"override": {"5": 1, "6": 1}, "additive": True}},
         {"logit_bias": {"6": 2}}, {"logit_bias": {5: 1, 6: 1}}, "logit_bias"),
        ({"logit_bias": {"override": {"5": 1}, "additive": True}}, {},
         {"logit_bias": {5: 1}}, None),
        ({"banned_tokens": {"override": [], "additive": True}}, {}, {"logit_bias": {}}, None),
        ({"banned_tokens": {"override": [5], "additive": True}}, {},
         {"logit_bias": {5: -math.inf}}, None),
        ({"banned_strings": {"override": "x", "additive": True}}, {"banned_strings": ["y"]},
         {"banned_strings": ("y", "x")}, None),
        ({"allowed_tokens": {"override": [5], "additive": True}}, {"allowed_token_ids": [6]},
         {"allowed_token_ids": (6, 5)}, None),
        # additive means nothing for numbers, which TabbyAPI passes over
        ({"top_k": {"override": 5, "additive": True}}, {"top_k": 9}, {"top_k": 9}, None),
        # a value that means off leaves the choice to the server
        ({"seed": {"override": 5}}, {"seed": -1}, {"seed": 5}, None),
        ({"max_tokens": {"override": 9000}}, {}, {"max_tokens": 9000}, None),
        ({"max_length": {"override": 7, "force": True}}, {"max_tokens": 9},
         {"max_tokens": 7}, "max_tokens"),
        # what no engine here knows
        ({"negative_prompt": {"override": "bad"}, "cfg_scale": {"override": 2}}, {}, {}, None),
    ],
)  # fmt: skip
def test_what_overrides_mean(
    overrides: dict[str, Any], body: dict[str, Any], expected: dict[str, Any], named: str | None
) -> None:
    # FIX-4
    with serving() as ask:
        ask.switch(overrides=overrides)
        for params in (ask.text(named, **body), ask.chat(named, **body)):
            assert {name: getattr(params, name) for name in expected} == expected
    if named:
        with serving(server={"strict_params": True}) as ask:
            ask.switch(overrides=overrides)
            refused = ask.http.post("/v1/completions", json={"prompt": "x", **body})
            assert refused.status_code == 400
            assert refused.json()["error"]["param"] == named.split(", ")[0]
            ask.text()


def test_bos_of_completions(folder: Path) -> None:
    class WithBos(Recorder):
        def tokenize(self, text: str, *, add_special_tokens: bool) -> list[int]:
            return [1] * add_special_tokens + super().tokenize(text, add_special_tokens=False)

    engine = WithBos()
    create = plugins_with(scripted=engine_backend(lambda: engine))
    with serve(scripted_config(), create) as server:
        ask = Asking(server, engine)
        for override, sent, expected in (
            ({"override": False}, None, (120,)),
            ({"override": False}, True, (1, 120)),
            ({"override": False, "force": True}, True, (120,)),
            ({"override": True, "force": True}, False, (1, 120)),
        ):
            ask.switch(overrides={"add_bos_token": override})
            ask.text("add_bos_token" if "force" in override else None, add_bos_token=sent)
            assert engine.asked[-1].prompt_token_ids == expected


def test_each_model_has_its_own(folder: Path) -> None:
    engines = {"one": Recorder(), "two": Recorder()}

    def create(settings: BackendSettings) -> Backend:
        return engine_backend(lambda: engines[settings.name])(settings)

    config = scripted_config()
    entry = config.models[0]
    config.models = [
        entry.model_copy(update={"name": name, "sampling_preset": preset})
        for name, preset in (("one", "cold"), ("two", None))
    ]
    with serve(config, plugins_with(scripted=create)) as server:

        def temperatures() -> list[float]:
            asked = []
            for name, engine in engines.items():
                server.http.post("/v1/completions", json={"prompt": "x", "model": name})
                asked.append(engine.asked[-1].sampling.temperature)
            return asked

        switch = "/v1/sampling/override/switch"
        assert temperatures() == [0, 1]
        body = {"model": "two", "overrides": {"temperature": {"override": 2}}}
        assert server.http.post(switch, json=body).status_code == 200
        assert temperatures() == [0, 2]
        listed = server.http.get("/v1/sampling/overrides", params={"model": "two"}).json()
        assert listed["overrides"] == body["overrides"]
        assert server.http.post(switch, json={"preset": "tabby"}).status_code == 200
        assert temperatures() == [1, 1]
        models = server.app.state.services.models
        added = models.add(entry.model_copy(update={"name": "three"}))
        assert added.preset.name == "tabby", "also of models that come later"
        server.http.post("/v1/sampling/override/unload", json={"model": "one"})
        listed = server.http.get("/v1/sampling/overrides", params={"model": "two"}).json()
        assert listed["selected_preset"] == "tabby"
        listed = server.http.get("/v1/sampling/overrides", params={"model": "one"}).json()
        assert listed["selected_preset"] is None


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        ({}, "preset", "send the name of a preset, or overrides"),
        ({"preset": "other"}, "preset", "there is no preset 'other'; available: cold, tabby"),
        ({"preset": "../secret"}, "preset", "there is no preset"),
        ({"preset": "/etc/passwd"}, "preset", "there is no preset"),
        ({"preset": 3}, "preset", "string"),
        ({"overrides": []}, "overrides", "an object"),
        ({"overrides": {"top_k": 5}}, "overrides.top_k", "must be a mapping"),
        ({"overrides": {"topk": {"override": 5}}}, "overrides.topk", "did you mean 'top_k'?"),
        ({"overrides": {"top_k": {"override": "x"}}}, "overrides.top_k.override",
         "must be a whole number, not 'x'"),
        ({"overrides": {"top_k": {"override": 5, "forse": True}}}, "overrides.top_k.forse",
         "did you mean 'force'?"),
        ({"overrides": {"top_k": {"override": 5, "force": "x"}}}, "overrides.top_k.force",
         "must be true or false, not 'x'"),
        ({"overrides": {"max_tokens": {"override": 0.5}}}, "overrides.max_tokens.override",
         "must be a whole number"),
        ({"overrides": {"min_temp": {"override": 2}, "max_temp": {"override": 1}}},
         "overrides.min_temp", "min_temp is more than max_temp"),
        ({"overrides": {"banned_tokens": {"override": [1000]}}}, "banned_tokens",
         "this model's are 0 to 999"),
    ],
)  # fmt: skip
def test_overrides_that_are_none(
    folder: Path, body: dict[str, Any], param: str | None, message: str
) -> None:
    with serving(sampling_preset="cold") as ask:
        error = ask.refused(**body)
        assert error["param"] == param
        assert message in error["message"]
        assert ask.text(temperature=None).temperature == 0, "nothing has changed"


def test_a_model_that_is_not_there() -> None:
    with serving() as ask:
        body = {"model": "other", "overrides": {}}
        assert ask.http.post("/v1/sampling/override/switch", json=body).status_code == 404


def write(folder: Path, preset: str, name: str = "mine") -> Path:
    """A config whose model has a preset, and the preset."""
    (folder / "sampler_overrides" / "mine.yml").write_text(preset, encoding="utf-8")
    config = folder / "config.yml"
    model = "{name: a, backend: scripted, path: ., sampling_preset: %s}"
    config.write_text(f"models:\n- {model % name}\n", encoding="utf-8")
    return config


@pytest.mark.parametrize(
    ("preset", "problem"),
    [
        ("top_k:\n  override: x\n", "mine.yml:2: top_k.override: must be a whole number, not 'x'"),
        ("top_k:\n  override: 5\ntopp:\n  override: 1\n", "mine.yml:3: topp: unknown sampling"),
        ("top_k:\n  override: 5\n  forced: true\n", "mine.yml:3: top_k.forced: unknown key"),
        ("top_k: 5\n", "mine.yml:1: top_k: must be a mapping of override, force, additive"),
        (
            "top_k:\n  override: 5\ntop_k:\n  override: 6\n",
            "mine.yml:3: top_k: is already set on",
        ),
        ("top_k:\n\toverride: 5\n", "mine.yml:2: column 1: the line is indented with a tab"),
        ("", "mine.yml: the file is empty; it must name sampling params"),
        ("5: {override: 1}\n", "mine.yml:1: 5: unknown sampling param"),
    ],
)
def test_mistakes_in_files_are_told_with_their_line(
    folder: Path, preset: str, problem: str
) -> None:
    config = load_config(write(folder, preset))
    plugins = plugins_with(scripted=engine_backend(Recorder))
    problems = [str(each) for each in check_config(config, plugins)]
    assert len(problems) == 1
    assert problem in problems[0]
    with serve(config, plugins) as server:
        refused = server.http.post("/v1/completions", json={"prompt": "x"})
        assert refused.status_code == 503
        assert problem in refused.json()["error"]["message"]


def test_a_file_that_is_not_there(folder: Path) -> None:
    config = load_config(write(folder, "top_k: {override: 5}\n", "mime"))
    [problem] = check_config(config, plugins_with(scripted=engine_backend(Recorder)))
    assert ":2: models[0].sampling_preset" in str(problem)
    assert "did you mean 'mine'?" in problem.message


@pytest.mark.parametrize(
    ("entry", "key", "message"),
    [
        ("{override: hot}", "temperature.override", "must be a number, not 'hot'"),
        ("{force: true}", "temperature.override", "is missing"),
        ("{override: 1, forced: true}", "temperature.forced", "unknown key"),
        ("{override: 1, additive: true}", "temperature", "additive is for lists"),
        ("hot", "temperature", "must be a number, not 'hot'"),
    ],
)
def test_mistakes_in_entries_of_the_config(
    tmp_path: Path, entry: str, key: str, message: str
) -> None:
    path = tmp_path / "config.yml"
    text = "models:\n- name: a\n  backend: b\n  path: p\n  sampling:\n    temperature: "
    path.write_text(f"{text}{entry}\n", encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    [problem] = caught.value.problems
    assert problem.key == f"models[0].sampling.{key}"
    assert problem.line == 6
    assert message in problem.message


def test_a_preset_with_tokens_that_the_model_does_not_have(folder: Path) -> None:
    config = load_config(write(folder, "banned_tokens: {override: [5000]}\n"))
    with serve(config, plugins_with(scripted=engine_backend(Recorder))) as server:
        health = server.http.get("/health").json()
        assert "banned_tokens has the token id 5000" in health["models"]["a"]["error"]


def test_what_has_no_effect_is_logged(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    with serving(sampling_preset="tabby"):
        assert "model scripted: generate_window has no effect here" in caplog.messages
