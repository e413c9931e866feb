"""Values: defaults, file, variables, flags."""

from pathlib import Path

import pytest

from enginebay.config.load import load_config
from enginebay.config.schema import Config, SamplingDefaults, resolved_path
from enginebay.config.wing_sections import whole_config
from enginebay.contract.sampling_params import SamplingParams
from tests.config.conftest import WriteConfig

MODEL = "models: [{name: a, backend: b, path: p}]\n"


def test_defaults(write: WriteConfig) -> None:
    config = load_config(write(MODEL))
    assert config.server.port == 5000
    assert config.server.api_keys == []
    assert config.models[0].reasoning == "auto"
    assert config.plugins.folder == "plugins"


def test_the_default_file_is_in_the_current_folder(write: WriteConfig) -> None:
    write(MODEL)
    config = load_config(None)
    assert config.models[0].name == "a"
    assert config.base == Path.cwd()


def test_relative_paths_start_at_the_file(tmp_path: Path) -> None:
    folder = tmp_path / "etc"
    folder.mkdir()
    (folder / "my.yml").write_text(MODEL, encoding="utf-8")
    config = load_config(Path("etc/my.yml"))
    assert config.base == folder
    assert resolved_path("models/x", config.base) == str(folder / "models" / "x")
    assert resolved_path("/models/x", config.base) == str(Path("/models/x"))
    assert resolved_path("http://host/x", config.base) == "http://host/x"
    assert resolved_path("~/x", config.base) == str(Path.home() / "x")


def test_a_config_made_in_code_starts_at_the_current_folder() -> None:
    assert Config().base == Path.cwd()
    assert Config().origins.where(("server",)) == ""


def test_flags_over_variables_over_the_file(
    write: WriteConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write("server: {host: 1.1.1.1, port: 1, log_level: error}\n")
    monkeypatch.setenv("ENGINEBAY_SERVER__PORT", "2")
    monkeypatch.setenv("ENGINEBAY_SERVER__LOG_LEVEL", "debug")
    config = load_config(path, {"server.log_level": "warning"})
    assert config.server.host == "1.1.1.1"
    assert config.server.port == 2
    assert config.server.log_level == "warning"
    where = config.origins.where
    assert where(("server", "host")) == "config.yml line 1"
    assert where(("server", "port")) == "ENGINEBAY_SERVER__PORT"
    assert where(("server", "log_level")) == "--log-level"


@pytest.mark.parametrize("text", ["one,two", " one , two ,", '["one", "two"]'])
def test_lists_in_variables(write: WriteConfig, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("ENGINEBAY_SERVER__API_KEYS", text)
    keys = load_config(write("server: {api_keys: [x]}")).server.api_keys
    assert [key.get_secret_value() for key in keys] == ["one", "two"]


def test_variables_for_models(write: WriteConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    # LF-29 LF-33
    monkeypatch.setenv("ENGINEBAY_MODELS__0__PATH", "elsewhere")
    monkeypatch.setenv("ENGINEBAY_MODELS__0__SAMPLING__TOP_K", "7")
    monkeypatch.setenv("ENGINEBAY_MODELS__0__OPTIONS__MAX_BATCH_SIZE", "2")
    monkeypatch.setenv("ENGINEBAY_MODELS__1__NAME", "second")
    monkeypatch.setenv("ENGINEBAY_MODELS__1__BACKEND", "b")
    monkeypatch.setenv("ENGINEBAY_MODELS__1__PATH", "p")
    monkeypatch.setenv("ENGINEBAY_MODELS__1__OPTIONS", '{"layers": 3}')
    first, second = load_config(write(MODEL)).models
    assert (first.path, first.sampling.top_k) == ("elsewhere", 7)
    assert first.options == {"max_batch_size": "2"}  # a number once its backend reads it
    assert (second.name, second.options) == ("second", {"layers": 3})


def test_a_variable_reaches_one_of_two_that_share_an_alias(
    write: WriteConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(
        "models:\n- &m {name: a, backend: b, path: p, sampling: {top_k: 1}}\n- {<<: *m, name: c}\n"
    )
    monkeypatch.setenv("ENGINEBAY_MODELS__1__SAMPLING__TOP_K", "2")
    assert [model.sampling.top_k for model in load_config(path).models] == [1, 2]


def test_variables_that_mean_no_key(write: WriteConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kubernetes sets the first two for a service named enginebay; compose files the last."""
    monkeypatch.setenv("ENGINEBAY_PORT", "tcp://10.0.0.1:80")
    monkeypatch.setenv("ENGINEBAY_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("ENGINEBAY_SERVER__PORT", "")
    assert load_config(write("server: {port: 7}")).server.port == 7


def test_keys_without_a_value_are_not_set(write: WriteConfig) -> None:
    config = load_config(write("server:\nmodels:\nplugins:\n  folder:\n"))
    assert config.model_dump() == whole_config()().model_dump()


def test_a_byte_order_mark_is_no_matter(tmp_path: Path) -> None:
    path = tmp_path / "bom.yml"
    path.write_bytes(b"\xef\xbb\xbfserver: {port: 7}")
    assert load_config(path).server.port == 7


def test_keys_do_not_show(write: WriteConfig) -> None:
    assert "hidden" not in repr(load_config(write("server: {api_keys: [hidden]}")))


def test_sampling_as_params() -> None:
    assert SamplingDefaults().params == {}
    params = SamplingDefaults(temperature=0, stop=["x", "y"]).params
    assert params == {"temperature": 0, "stop": ("x", "y")}
    assert SamplingParams(**params).stop == ("x", "y")
