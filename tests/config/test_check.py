"""What only shows once the plugins are known."""

import os
import socket
from dataclasses import dataclass
from pathlib import Path

import pytest
from pydantic import BaseModel, ConfigDict, Field

from enginebay import Backend, BackendSettings, EngineBackend
from enginebay.config.load import load_config
from enginebay.config.problems import ConfigError
from enginebay.config.schema import Config, ModelConfig
from enginebay.contract.errors import BackendUnavailableError
from enginebay.contract.registers import BackendEntry
from enginebay.models.check_config import check_config, validated_options
from enginebay.models.files.model_folder import model_at
from enginebay.plugins import Plugin, Plugins
from enginebay.testing import ScriptedEngine
from tests.config.conftest import WriteConfig


class Options(BaseModel):
    model_config = ConfigDict(extra="forbid")

    device: str = "auto"
    layers: int = Field(default=0, ge=0)
    split: list[int] | str = "even"


@dataclass
class PlainOptions:
    layers: int = 0


def create(settings: BackendSettings) -> Backend:
    return EngineBackend(lambda: ScriptedEngine(["ok"]))


@pytest.fixture(scope="module")
def plugins() -> Plugins:
    plugins = Plugins()
    plugins.backends("mine", create, Options)
    plugins.backends("free", create)
    return plugins


def problems(path: Path, plugins: Plugins) -> list[str]:
    return [str(problem) for problem in check_config(load_config(path), plugins)]


def test_all_is_well(write: WriteConfig, plugins: Plugins) -> None:
    Path("own.jinja").write_text("{{ messages }}", encoding="utf-8")
    path = write(
        "models:\n"
        "- {name: a, backend: mine, path: ., options: {layers: 3}, chat_template: own.jinja}\n"
        "- {name: b, backend: free, path: 'http://x', options: {any: 1}, chat_template: chatml}\n"
        "- {name: c, backend: hf, path: ., reasoning: none, tools: hermes}\n"
    )
    assert problems(path, plugins) == []


def test_everything_wrong(write: WriteConfig, plugins: Plugins) -> None:
    # VLLM-2 VLLM-3
    path = write(
        "models:\n"
        "- name: a\n"
        "  backend: mien\n"
        "  path: nope\n"
        "  chat_template: chatm\n"
        "  reasoning: thikn\n"
        "  tools: zzz\n"
        "- name: b\n"
        "  backend: mine\n"
        "  path: .\n"
        "  options:\n"
        "    layers: -1\n"
        "    layer: 1\n"
        "    split: {}\n"
    )
    found = problems(path, plugins)
    folder = Path.cwd()
    assert found[0] == (
        "config.yml:3: models[0].backend: no backend 'mien' is installed; if a plugin "
        "provides it, install that plugin; did you mean 'mine'?"
    )
    assert found[1] == f"config.yml:4: models[0].path: there is no file or folder {folder / 'nope'}"
    assert found[2].startswith(f"config.yml:5: models[0].chat_template: there is no file {folder}")
    assert found[2].endswith("did you mean 'chatml'?")
    assert found[3].startswith("config.yml:6: models[0].reasoning: unknown format 'thikn'; did")
    assert found[4].startswith("config.yml:7: models[0].tools: unknown format 'zzz'; known: auto")
    assert found[5:] == [
        "config.yml:12: models[1].options.layers: must be greater than or equal to 0, not -1",
        "config.yml:13: models[1].options.layer: unknown key; did you mean 'layers'?",
        "config.yml:14: models[1].options.split: must be a list, such as [a, b] or text, not "
        "a mapping",
    ]


@pytest.mark.parametrize("kind", ["pipe", "device", "socket"])
def test_a_path_that_may_be_read_for_ever(write: WriteConfig, kind: str) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        if kind == "pipe":
            os.mkfifo("pipe")
        if kind == "socket":
            listening.bind("socket")
        special = "/dev/zero" if kind == "device" else str(Path.cwd() / kind)
        path = write(f"models:\n- name: a\n  backend: hf\n  path: {special}\n")
        assert problems(path, Plugins()) == [
            f"config.yml:4: models[0].path: {special} is a pipe, a device or a socket, not a file "
            "or folder"
        ]
        with pytest.raises(ConfigError, match="is a pipe, a device or a socket"):
            model_at(Path(special), Plugins())


def test_a_variable_is_named(
    write: WriteConfig, plugins: Plugins, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENGINEBAY_MODELS__0__BACKEND", "other")
    path = write("models:\n- {name: a, backend: mine, path: .}\n")
    assert problems(path, plugins)[0].startswith(
        "ENGINEBAY_MODELS__0__BACKEND: models[0].backend: no backend 'other' is installed"
    )


def test_plugins_that_would_have_had_the_backend(plugins: Plugins) -> None:
    broken = Plugins(blocked=["hf", "backends"])
    broken.found.append(Plugin("torn", "torn.py", error="ImportError: no x"))
    config = Config(models=[ModelConfig(name="a", backend="hf", path=".")])
    [problem] = check_config(config, broken)
    assert "the plugin 'hf' is blocked in the config" in problem.message
    config = Config(models=[ModelConfig(name="a", backend="other", path=".")])
    [problem] = check_config(config, broken)
    for name in ("hf", "llamacpp", "exllamav2"):
        assert f"the plugin '{name}' is blocked in the config" in problem.message
    assert "the plugin 'torn' could not be loaded (ImportError: no x)" in problem.message
    assert str(problem).startswith("models[0].backend: ")
    config = Config(models=[ModelConfig(name="a", backend="hf", path=".")])
    broken.found.append(Plugin("hf", "hf.py", error="ImportError: no y"))
    [problem] = check_config(config, broken)
    assert "the plugin 'hf' could not be loaded (ImportError: no y)" in problem.message
    assert "torn" not in problem.message


def test_an_address_without_its_scheme(write: WriteConfig, plugins: Plugins) -> None:
    path = write("models:\n- {name: a, backend: mine, path: 'gpu.lan:8000/v1'}\n")
    [problem] = problems(path, plugins)
    assert problem.endswith("gpu.lan:8000/v1; a URL begins with http:// or https://")


def test_a_windows_path_in_double_quotes(write: WriteConfig, plugins: Plugins) -> None:
    # EVE-5: \\n and \\t are escapes that YAML knows, so it finds nothing wrong.
    path = write('models:\n- {name: a, backend: mine, path: "C:\\new\\tables"}\n')
    [problem] = problems(path, plugins)
    assert problem.endswith(r"C:\new\tables'; in single quotes YAML leaves every \ as it is")


def test_validated_options() -> None:
    def model(**options: object) -> ModelConfig:
        return ModelConfig(name="a", backend="b", path=".", options=options)

    assert validated_options(model(), BackendEntry(create, Options)) == Options()
    assert validated_options(model(layers="3"), BackendEntry(create, Options)).layers == 3
    assert validated_options(model(layers=3), BackendEntry(create, PlainOptions)).layers == 3
    assert validated_options(model(any=3), BackendEntry(create)) == {"any": 3}
    with pytest.raises(BackendUnavailableError) as caught:
        validated_options(model(layer=3, device=5), BackendEntry(create, Options))
    assert "options.layer: unknown key; did you mean 'layers'?" in caught.value.message
    assert "options.device: must be text, not 5" in caught.value.message
