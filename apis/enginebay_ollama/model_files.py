"""What the files of a model say of it, without its weights being read."""

import hashlib
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

from enginebay.config.paths import leads_outside
from enginebay.contract.errors import encodable
from enginebay.models.files.gguf_header import gguf_header
from enginebay.models.loading.memory import weight_files

logger = logging.getLogger(__name__)

_FILE_TYPES = (
    *("F32", "F16", "Q4_0", "Q4_1", "", "", "", "Q8_0", "Q5_0", "Q5_1", "Q2_K", "Q3_K_S"),
    *("Q3_K_M", "Q3_K_L", "Q4_K_S", "Q4_K_M", "Q5_K_S", "Q5_K_M", "Q6_K", "IQ2_XXS", "IQ2_XS"),
    *("Q2_K_S", "IQ3_XS", "IQ3_XXS", "IQ1_S", "IQ4_NL", "IQ3_S", "IQ3_M", "IQ2_S", "IQ2_M"),
    *("IQ4_XS", "IQ1_M", "BF16", "", "", "", "TQ1_0", "TQ2_0", "MXFP4"),
)
"""llama.cpp's names of `general.file_type`."""

_DTYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "float64": "F64"}
_WRITES = ("ForCausalLM", "ForConditionalGeneration", "LMHeadModel")
_LONGEST_HEADER = 100_000_000  # as safetensors has it
_RERANKS = 4
"""`pooling_type` of a GGUF model that reranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFacts:
    """What is not known is empty, or None.

    `values` are GGUF's metadata. `templates` are chat templates by name.
    """

    format: str = ""
    family: str = ""
    quantization: str = ""
    parameters: int | None = None
    context_length: int | None = None
    embedding_length: int | None = None
    generates: bool = False
    embeds: bool = False
    license: str = ""
    templates: Mapping[str, str] = field(default_factory=dict)
    values: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Stamp:
    """The files of a model's weights as they are now: names, sizes, and times in nanoseconds."""

    files: tuple[tuple[Path, int, int], ...]

    @property
    def size(self) -> int:
        """Bytes of all of them."""
        return sum(size for _, size, _ in self.files)

    @property
    def modified(self) -> float | None:
        """When the last one was written; None without any."""
        return max((time for *_, time in self.files), default=0) / 1e9 or None

    def digest(self, *more: str) -> str:
        """64 hex digits that stay the same as long as these files do."""
        told = [(file.name, size, time) for file, size, time in self.files]
        return hashlib.sha256(json.dumps([told, more]).encode()).hexdigest()


def stamp(path: str) -> Stamp:
    """The files of the model at a path. Blocks briefly."""
    found = ((file, file.stat()) for file in weight_files(path))
    return Stamp(tuple((file, stat.st_size, stat.st_mtime_ns) for file, stat in found))


def file_facts(path: str, files: Stamp) -> FileFacts:
    """What these files of the model at a path say; nothing if they cannot be read.

    Blocks: a GGUF file has its vocabulary in front.
    """
    weights = [file for file, *_ in files.files]
    gguf = [file for file in weights if file.suffix.lower() == ".gguf"]
    gguf = [file for file in gguf if "mmproj" not in file.name.lower()]
    try:
        if gguf:
            return _of_gguf(gguf)
        if (Path(path) / "config.json").is_file():
            return _of_folder(Path(path), weights)
    except Exception as error:  # anything may be in them
        logger.warning("%s: its files tell nothing: %r", path, error)
    return FileFacts()


def _of_gguf(files: Sequence[Path]) -> FileFacts:
    """Of a file, or of the parts of one; with several models in a folder it is the first."""
    parts = [file for file in files if file.stem.rpartition("-of-")[1]] or files[:1]
    headers = [gguf_header(file) for file in parts]
    values = headers[0].values
    family = _text(values.get("general.architecture"))
    pooling = values.get(f"{family}.pooling_type")
    generates = not pooling and values.get(f"{family}.attention.causal") is not False
    templates = {"default": _text(values.get("tokenizer.chat_template"))}
    for name in values.get("tokenizer.chat_templates") or ():
        templates[str(name)] = _text(values.get(f"tokenizer.chat_template.{name}"))
    return FileFacts(
        format="gguf",
        family=family,
        quantization=_file_type(values.get("general.file_type")),
        parameters=sum(header.parameters for header in headers),
        context_length=_number(values.get(f"{family}.context_length")),
        embedding_length=_number(values.get(f"{family}.embedding_length")),
        generates=generates,
        embeds=not generates and pooling != _RERANKS,
        license=_text(values.get("general.license")),
        templates={name: text for name, text in templates.items() if text},
        values={
            name: value
            for name, value in values.items()
            if value is not None and not name.startswith("tokenizer.")
        },
    )


def _file_type(number: Any) -> str:
    known = isinstance(number, int) and 0 <= number < len(_FILE_TYPES)
    return _FILE_TYPES[number] if known else ""


def _of_folder(folder: Path, weights: Sequence[Path]) -> FileFacts:
    config = _json(folder, "config.json")
    inner = config.get("text_config")
    text = {**config, **inner} if isinstance(inner, dict) else config
    quantized = config.get("quantization_config")
    if isinstance(quantized, dict):
        quantization = _text(quantized.get("quant_method")).upper()
    else:
        quantization = _DTYPES.get(_text(config.get("dtype") or config.get("torch_dtype")), "")
    tensors = [file for file in weights if file.suffix == ".safetensors"]
    architectures = config.get("architectures")
    kind = _text(architectures[0]) if isinstance(architectures, list) and architectures else ""
    embeds = (folder / "modules.json").is_file()  # of sentence-transformers
    return FileFacts(
        format="safetensors" if tensors else "",
        family=_text(config.get("model_type")),
        quantization=quantization,
        parameters=_parameters(tensors),
        context_length=_number(text.get("max_position_embeddings")),
        embedding_length=_number(text.get("hidden_size")),
        generates=kind.endswith(_WRITES) and not embeds,
        embeds=embeds,
        templates=_templates(folder),
    )


def _parameters(files: Sequence[Path]) -> int | None:
    """How many weights there are; None where some are packed."""
    shapes = [tensor for file in files for tensor in _tensors(file)]
    if not shapes or not all(dtype in ("F64", "F32", "F16", "BF16") for dtype, _ in shapes):
        return None
    return sum(prod(shape) for _, shape in shapes)


def _tensors(file: Path) -> Iterator[tuple[str, list[int]]]:
    """Types and shapes: https://huggingface.co/docs/safetensors/index#format."""
    with file.open("rb") as content:
        length = int.from_bytes(content.read(8), "little")
        if length > _LONGEST_HEADER:
            raise ValueError(f"{file} is not a safetensors file")
        header = json.loads(content.read(length))
    for name, tensor in header.items():
        if name != "__metadata__":
            yield tensor["dtype"], tensor["shape"]


def _templates(folder: Path) -> dict[str, str]:
    if (folder / "chat_template.jinja").is_file():
        return {"default": _read(folder, "chat_template.jinja")}
    for name in ("chat_template.json", "tokenizer_config.json"):
        if not (folder / name).is_file():
            continue
        found = _json(folder, name).get("chat_template")
        if isinstance(found, str):
            return {"default": _text(found)}
        if isinstance(found, list):
            return {_text(each["name"]): _text(each["template"]) for each in found}
    return {}


def _json(folder: Path, name: str) -> dict[str, Any]:
    found = json.loads(_read(folder, name))
    if not isinstance(found, dict):
        raise ValueError(f"{folder / name} is no object")
    return found


def _read(folder: Path, name: str) -> str:
    """The text of a file, unless it is a link out of the model's folder: clients may see it."""
    if leads_outside(folder / name, folder):
        raise ValueError(f"{folder / name} leads to a file outside")
    return (folder / name).read_text(encoding="utf-8")


def _text(value: Any) -> str:
    return encodable(value) if isinstance(value, str) else ""


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) and value > 0 else None
