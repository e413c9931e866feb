"""The folder of models that can be loaded by name."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.config.schema import Config
from core.contract.errors import InvalidRequestError, ModelNotFoundError
from core.models.catalog import Loadable
from core.models.model_folder import ModelFolder
from core.models.registry import Models
from core.plugins import Plugins
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
