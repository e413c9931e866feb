"""The folder of models that can be loaded by name."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginebay.config.schema import Config
from enginebay.contract.errors import InvalidRequestError, ModelNotFoundError
from enginebay.models.catalog import Loadable
from enginebay.models.files.model_folder import ModelFolder
from enginebay.models.loading.memory import size_of_files
from enginebay.models.registry import Models
from enginebay.plugins import Plugins
from tests.support import DEMO_MODEL, plugins_with


@pytest.fixture(scope="module")
def plugins() -> Plugins:
    return Plugins()


def test_what_is_in_it(tmp_path: Path, plugins: Plugins) -> None:
    for name in ("x.gguf", "notes.txt", "_old.gguf", ".part.gguf"):
        (tmp_path / name).touch()
    (tmp_path / "demo").symlink_to(DEMO_MODEL, target_is_directory=True)
    (tmp_path / "empty").mkdir()
    folder = ModelFolder(tmp_path, plugins)
    assert folder.names() == ["demo", "x.gguf"]
    config = folder.config("demo")
    assert (config.backend, config.path) == ("hf", str(tmp_path / "demo"))
    assert folder.config("empty", "llamacpp").backend == "llamacpp"
    with pytest.raises(InvalidRequestError, match=r"no backend recognises .*empty.*name one as"):
        folder.config("empty")


def test_endings_in_capitals(tmp_path: Path, plugins: Plugins) -> None:
    (tmp_path / "Mine.GGUF").write_bytes(b"12345")
    models = ModelFolder(tmp_path, plugins).models()
    assert [(m.name, m.backend, m.aliases) for m in models.values()] == [
        ("Mine.GGUF", "llamacpp", ("Mine",))
    ]
    assert size_of_files(str(tmp_path / "Mine.GGUF")) == size_of_files(str(tmp_path)) == 5


def test_a_folder_that_is_not_there(tmp_path: Path, plugins: Plugins) -> None:
    folder = ModelFolder(tmp_path / "models", plugins)
    assert folder.names() == []
    with pytest.raises(ModelNotFoundError, match="has no model"):
        folder.config("x")


def test_a_backend_that_cannot_tell(tmp_path: Path) -> None:
    def serves(path: Path) -> bool:
        raise OSError("no")

    (tmp_path / "x").touch()
    plugins = plugins_with()
    plugins.backends("odd", lambda settings: None, serves=serves)  # type: ignore[arg-type,return-value]
    assert ModelFolder(tmp_path, plugins).names() == []


@given(st.text() | st.sampled_from(["..", "../a", "/etc/passwd", "a/../..", "\0", "x\\..\\y"]))
def test_nothing_outside_can_be_named(plugins: Plugins, name: str) -> None:
    here = Path(__file__).parent
    try:
        path = ModelFolder(here, plugins).path(name)
    except ModelNotFoundError:
        return
    assert path in list(here.iterdir())


def test_a_relative_folder_starts_at_the_config(tmp_path: Path, plugins: Plugins) -> None:
    config = Config.model_validate({"server": {"model_dir": str(tmp_path)}})
    (tmp_path / "y.gguf").touch()
    models = Models(config, plugins, lambda *_: None)
    assert Loadable(config, plugins, models).folder.names() == ["y.gguf"]


def test_files_of_gguf_models(tmp_path: Path, plugins: Plugins) -> None:
    # MOD-1: a split model is one, by its first part; mmproj files are none
    files = (
        *("a.gguf", "mmproj-a.gguf", "s-00001-of-00002.gguf", "s-00002-of-00002.gguf"),
        *("one/x.gguf", "one/mmproj-x.gguf", "owner/two/y-Q4.gguf", "owner/two/y-Q8.gguf"),
        *("owner/split/Q4/m-00001-of-00002.gguf", "owner/split/Q4/m-00002-of-00002.gguf"),
        *("both/config.json", "both/w.gguf", "1/2/3/4/5/far.gguf"),
        *("parts/w.gguf", "parts/.cache/enginebay/abc.part"),
    )
    for file in files:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    folder = ModelFolder(tmp_path, plugins)
    expected = {
        "a.gguf": ("a",),
        "both": (),
        "one": (),
        "owner/split/Q4": (),
        "owner/two/y-Q4.gguf": ("owner/two/y-Q4",),
        "owner/two/y-Q8.gguf": ("owner/two/y-Q8",),
        "s-00001-of-00002.gguf": ("s",),
    }
    assert {model.name: model.aliases for model in folder.models().values()} == expected
    assert {model.backend for model in folder.models().values()} == {"llamacpp"}
    (tmp_path / "parts/.cache/enginebay/abc.part").unlink()  # the download has ended
    assert "parts" in folder.names()
    (tmp_path / "s.yml").write_text("reasoning_budget: 3\n")
    (tmp_path / "one" / "enginebay.yml").write_text("reasoning_budget: 4\n")
    assert folder.config("s-00001-of-00002.gguf").reasoning_budget == 3
    assert folder.config("one").reasoning_budget == 4


def test_a_folder_of_transformers_is_one_model(tmp_path: Path, plugins: Plugins) -> None:
    for file in ("config.json", "model.safetensors", "1_Pooling/config.json", "w.gguf"):
        (tmp_path / "m" / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "m" / file).touch()
    folder = ModelFolder(tmp_path, plugins)
    assert [(m.name, m.backend) for m in folder.models().values()] == [("m", "hf")]


def test_it_is_only_read_again_when_it_has_changed(tmp_path: Path) -> None:
    asked: list[str] = []

    def serves(path: Path) -> bool:
        asked.append(path.name)
        return path.suffix == ".toy"

    plugins = plugins_with()
    plugins.backends("toys", lambda settings: None, serves=serves)  # type: ignore[arg-type,return-value]
    (tmp_path / "sub").mkdir()
    (tmp_path / "a.toy").touch()
    for path in (tmp_path / "a.toy", tmp_path / "sub", tmp_path):
        os.utime(path, (1e9, 1e9))
    folder = ModelFolder(tmp_path, plugins)
    found = folder.models()
    asked.clear()
    assert folder.models() is found
    assert asked == []
    (tmp_path / "sub" / "b.toy").touch()
    assert folder.names() == ["a.toy", "sub/b.toy"]
    (tmp_path / "a.toy").unlink()
    assert folder.names() == ["sub/b.toy"]
    (tmp_path / "sub" / "b.yml").write_text("reasoning_budget: 3\n")
    assert folder.config("sub/b.toy").reasoning_budget == 3
    (tmp_path / "sub" / "b.yml").write_text("reasoning_budget: 4\n")
    assert folder.config("sub/b.toy").reasoning_budget == 4


def test_links_and_what_is_no_file(tmp_path: Path, plugins: Plugins) -> None:
    here, away = tmp_path / "models", tmp_path / "disk"
    (here / "inner").mkdir(parents=True)
    (here / "a.gguf").touch()
    (here / "inner" / "all").symlink_to(here, target_is_directory=True)
    (here / "itself.gguf").symlink_to("itself.gguf")
    os.mkfifo(here / "pipe.gguf")  # to read it is to wait for ever
    (here / "away.gguf").symlink_to(away / "b.gguf")
    (here / "away").symlink_to(away, target_is_directory=True)
    (here / "deep").mkdir()
    (here / "deep" / "config.json").write_text("[" * 100_000)
    past = 1_000_000_000
    for folder in (here, here / "inner", here / "deep"):
        os.utime(folder, (past, past))
    folder = ModelFolder(here, plugins)
    assert folder.names() == ["a.gguf", "deep"]
    away.mkdir()  # as when a disk is mounted
    (away / "b.gguf").touch()
    assert folder.names() == ["a.gguf", "away", "away.gguf", "deep"]
