"""`enginebay config check` reports every mistake of every kind in one run (EVE-3)."""

from pathlib import Path

import pytest

from enginebay.config.load import load_valid_part
from enginebay.config.schema import Config
from tests.cli.conftest import Run

CONFIG = """
server:
  hots: localhost
  port: many
  tls_cert: no.pem
  keys_file: own.yml
models:
  - name: first
    reasonning: none
    backend: llamacpp
    path: nowhere.gguf
    tools: odd
    options: {context_lenght: 5, n_gpu_layers: x}
  - name: first
    backend: hf
    options: {dtyp: x}
  - 5
  - {name: last, backend: own, path: ., sampling: {temperature: hot}, chat_template: mine}
loading: {max_loaded_models: 0}
"""
BESIDE = "name: beside\nbackend: scripted\npath: .\nalias: [b]\noptions: {says: x}\n"
EXPECTED = """\
config.yml:3: server.hots: unknown key
config.yml:4: server.port: must be a whole number
config.yml:5: server.tls_cert: {here}/no.pem cannot be read
config.yml:9: models[0].reasonning: unknown key
config.yml:11: models[0].path: there is no file or folder
config.yml:12: models[0].tools: unknown format
config.yml:13: models[0].options.context_lenght: unknown key
config.yml:13: models[0].options.n_gpu_layers: unknown key
config.yml:14: models[1].name: models[0].name (config.yml line 8) is already 'first'
config.yml:14: models[1].path: is missing
config.yml:16: models[1].options.dtyp: unknown key
config.yml:17: models[2]: must be a mapping
config.yml:18: models[3].sampling.temperature: must be a number
config.yml:18: models[3].backend: no backend 'own' is installed
config.yml:18: models[3].chat_template: there is no file
config.yml:19: loading.max_loaded_models: must be greater than
models.d/more.yml:4: alias: unknown key
models.d/more.yml:5: options.says: unknown key
{here}/own.yml:1: keys[0].name: is missing
{here}/own.yml:1: keys[0].nmae: unknown key
the backend scripted needs no_such_library, which is not installed
"""
PLUGIN = """
from pydantic import BaseModel, ConfigDict

from enginebay import hookimpl


class Options(BaseModel):
    model_config = ConfigDict(extra="forbid")


@hookimpl
def register_backends(register):
    register("scripted", lambda settings: None, Options, requires=["no_such_library"])
"""


@pytest.mark.usefixtures("clean_place")
def test_all_of_them_at_once(run: Run) -> None:
    # EVE-3
    for folder in ("plugins", "models.d"):
        Path(folder).mkdir()
    Path("plugins/own.py").write_text(PLUGIN, encoding="utf-8")
    Path("config.yml").write_text(CONFIG, encoding="utf-8")
    Path("models.d/more.yml").write_text(BESIDE, encoding="utf-8")
    Path("own.yml").write_text("keys: [{nmae: x}]\n", encoding="utf-8")
    result = run("config", "check")
    assert (result.exit_code, result.stdout) == (2, "")
    expected = EXPECTED.format(here=Path.cwd()).splitlines()
    said = result.stderr.splitlines()
    assert [each[: len(line)] for each, line in zip(said, expected, strict=True)] == expected


@pytest.mark.usefixtures("clean_place")
@pytest.mark.parametrize(
    "text",
    [
        "models: {a: 1}",
        "models: [null, [], {}]",
        "server: []",
        "server: {api_keys: [1, {name: x}, {key: y}]}",
        "models: [{name: a, like: a}]",
        "models: [{name: a, like: b}, {name: b, like: a, load: x}]",
        "models: [{name: a, backend: b, path: p, cluster: {engines: x}}]\ncluster: {adress: x}",
        "models: [{name: [], backend: {}, path: 5, aliases: x, sampling: [], options: 7}]",
        "loading: {cache_ram: -1, cache_dir: 5}\nplugins: {folder: [x]}\nmodel: {model_name: x}",
    ],
)
def test_what_is_valid_is_read_whatever_else_is_wrong(text: str) -> None:
    Path("config.yml").write_text(text, encoding="utf-8")
    config, problems = load_valid_part(None)
    assert isinstance(config, Config)
    assert problems
