"""What a backend loads, before there are any files: told by their names."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from enginebay.config.problems import ConfigError
from enginebay.models.downloads import Choice, Form
from enginebay.models.files.model_folder import model_at
from enginebay.plugins import Plugins


def form_of(backend: str, plugins: Plugins) -> Form:
    """Whether a backend is given a GGUF file as the path of a model, or a folder."""
    entry = plugins.backends.get(backend)
    with _folder_of(["model.gguf"]) as folder, suppress(Exception):  # of a plugin's own code
        if entry and entry.serves and entry.serves(folder):
            return "gguf"
    return "folder"


def backend_of(choice: Choice, plugins: Plugins, config_json: bytes = b"") -> str | None:
    """The first backend that would recognise a model of a hub; None if none does.

    `config_json`: the content of the file of that name, where it is known.
    """
    names = [file.stored_as or file.name for file in choice.files]
    with _folder_of(names, config_json) as folder, suppress(ConfigError):
        return model_at(folder, plugins).backend
    return None


@contextmanager
def _folder_of(names: Iterable[str], config_json: bytes = b"") -> Iterator[Path]:
    """A folder of empty files of these names, since backends look at files."""
    with TemporaryDirectory(prefix="enginebay-") as created:
        folder = Path(created)
        for name in names:
            if "/" not in name and name not in ("", ".", ".."):
                (folder / name).write_bytes(config_json if name == "config.json" else b"")
        yield folder
