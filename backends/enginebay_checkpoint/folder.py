"""A model folder, checked for completeness before anything big is imported or read."""

import json
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from enginebay import BackendUnavailableError, leads_outside

_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
    "vocab.txt",
    "spiece.model",
    "tekken.json",
)
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".onnx", ".onnx_data")
"""Files that may be links to anywhere: nothing in them is shown to clients."""


class StoredTensor(NamedTuple):
    """A tensor of a file: `format` as safetensors writes it, such as `BF16`."""

    name: str
    format: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Checkpoint:
    """The files of one model. Every error is a `BackendUnavailableError` that names the path."""

    path: Path

    def check(self) -> None:
        """Raise for what is missing or damaged; reads the headers of the weights only."""
        if not self.path.exists():
            raise self.unavailable(
                "there is no such folder; give the path of a downloaded model "
                "(hf download NAME --local-dir FOLDER)"
            )
        if not self.path.is_dir():
            other = (
                ", or use the backend llamacpp for it"
                if self.path.suffix.lower() == ".gguf"
                else ""
            )
            raise self.unavailable(f"this is a file; give the whole folder of the model{other}")
        if not (self.path / "config.json").is_file():
            if gguf := next(self.path.glob("*.[gG][gG][uU][fF]"), None):
                raise self.unavailable(
                    "the folder has GGUF files but no config.json; use the backend llamacpp, with "
                    f"one of them as path ({gguf.name})"
                )
            raise self.unavailable(
                "the folder has no config.json, so it is not a transformers model"
            )
        if not any((self.path / name).is_file() for name in _TOKENIZER_FILES):
            raise self.unavailable(
                "the folder has no tokenizer (tokenizer.json); copy it from the original model"
            )
        if not self.weight_files:
            raise self.unavailable(
                "the folder has no weights (*.safetensors); the download is not complete"
            )
        for file in self.weight_files:
            if not file.is_file():
                raise self.unavailable(f"{file.name} is missing; the download is not complete")
        self.check_links()
        _ = self.config, self.generation_config, self.tensors

    def check_links(self) -> None:
        """Raise for links to files outside, whose text would be a template or tokens of the model.

        Weights may be links. The folder may be one itself, also to a download in the cache of
        Hugging Face.
        """
        for above, folders, files in os.walk(self.path):
            for path in (Path(above, name) for name in (*folders, *files)):
                if path.is_symlink() and not path.name.lower().endswith(_WEIGHTS):
                    self.require_inside(path.relative_to(self.path))

    def require_inside(self, name: str | Path) -> None:
        """Raise if this path in the folder leads to a file or folder outside."""
        path = self.path / name
        if path.exists() and leads_outside(path, self.path):
            raise self.unavailable(
                f"{name} leads to a file or folder outside; copy that into the folder of the model"
            )

    @cached_property
    def config(self) -> dict[str, Any]:
        """`config.json`."""
        return self.read_json("config.json")

    @cached_property
    def generation_config(self) -> dict[str, Any]:
        """`generation_config.json`, empty if there is none."""
        name = "generation_config.json"
        return self.read_json(name) if (self.path / name).is_file() else {}

    @cached_property
    def weight_files(self) -> list[Path]:
        """The files that transformers will read the weights from."""
        for kind in ("model.safetensors", "pytorch_model.bin"):
            if (self.path / kind).is_file():
                return [self.path / kind]
            if (self.path / f"{kind}.index.json").is_file():
                shards = self.read_json(f"{kind}.index.json").get("weight_map", {})
                if outside := [name for name in shards.values() if _is_outside(str(name))]:
                    raise self.unavailable(
                        f"{kind}.index.json names a file outside the folder: {outside[0]}"
                    )
                return [self.path / name for name in sorted(set(shards.values()))]
        return []

    @cached_property
    def stored(self) -> list[StoredTensor]:
        """Every stored tensor; empty for a checkpoint that is not in safetensors."""
        files = [file for file in self.weight_files if file.suffix == ".safetensors"]
        return [tensor for file in files for tensor in self.read_header(file)]

    @property
    def tensors(self) -> list[tuple[str, int]]:
        """Number format and element count of every stored tensor."""
        return [(tensor.format, prod(tensor.shape)) for tensor in self.stored]

    @property
    def architecture(self) -> str:
        """What the model calls itself."""
        return ", ".join(self.config.get("architectures") or ["this architecture"])

    @property
    def stored_bytes(self) -> int:
        """Size of the weights on disk."""
        return sum(file.stat().st_size for file in self.weight_files)

    def unavailable(self, reason: str) -> BackendUnavailableError:
        """An error about this model."""
        return BackendUnavailableError(f"cannot load the model in {self.path}: {reason}")

    def damaged(self, file: Path, detail: object) -> BackendUnavailableError:
        """An error about a file that cannot be read."""
        return self.unavailable(f"{file.name} is damaged ({detail}); download it again")

    def read_json(self, name: str) -> dict[str, Any]:
        """The object in a file of the folder."""
        content = self._content(name)
        if not isinstance(content, dict):
            raise self.damaged(self.path / name, "not a JSON object")
        return content

    def read_json_objects(self, name: str) -> list[dict[str, Any]]:
        """The list of objects in a file of the folder."""
        content = self._content(name)
        if not isinstance(content, list) or not all(isinstance(item, dict) for item in content):
            raise self.damaged(self.path / name, "not a list of JSON objects")
        return content

    def _content(self, name: str) -> Any:
        file = self.path / name
        self.require_inside(name)
        try:
            return json.loads(file.read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise self.damaged(file, error) from error

    def read_header(self, file: Path) -> Iterator[StoredTensor]:
        """The tensors of a file in safetensors."""
        # https://huggingface.co/docs/safetensors: 8 bytes of length, a JSON header, the data.
        try:
            with file.open("rb") as stream:
                (length,) = struct.unpack("<Q", stream.read(8))
                size = file.stat().st_size
                if length > size:
                    raise ValueError("the file is cut off inside its header")
                header = json.loads(stream.read(length))
            header.pop("__metadata__", None)
            ends = (entry["data_offsets"][1] for entry in header.values())
            end = 8 + length + max(ends, default=0)
            if size != end:
                raise ValueError(f"it has {size} bytes instead of {end}")
            yield from [
                StoredTensor(name, entry["dtype"], tuple(entry["shape"]))
                for name, entry in header.items()
            ]
        except (OSError, ValueError, KeyError, TypeError, AttributeError, struct.error) as error:
            raise self.damaged(file, error) from error


def _is_outside(name: str) -> bool:
    """Whether a path in a folder is one of another folder, links aside."""
    return Path(name).is_absolute() or ".." in Path(name).parts
