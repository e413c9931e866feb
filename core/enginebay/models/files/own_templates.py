"""The files in a model's folder from which engines read its chat templates."""

from collections.abc import Iterator, Mapping
from pathlib import Path

_FILES = ("chat_template.jinja", "chat_template.json", "tokenizer_config.json")
_MORE = "additional_chat_templates/*.jinja"


def own_templates(folder: Path) -> Mapping[Path, bytes]:
    """The content of each file; empty if this is no folder."""

    def files() -> Iterator[Path]:
        yield from filter(Path.is_file, (folder / name for name in _FILES))
        yield from folder.glob(_MORE)

    return {file: file.read_bytes() for file in files()}
