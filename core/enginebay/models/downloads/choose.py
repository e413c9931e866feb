"""Which files of a repository make one model: told by their names, as publishers choose them."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Literal

from enginebay.contract.errors import InvalidRequestError
from enginebay.models.downloads.hub import RemoteFile
from enginebay.models.downloads.quants import (
    ORDER,
    bare,
    is_quant,
    model_words,
    preference,
    quant_of,
    spelled,
)

_PART = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})")
_PIECE = re.compile(r"\.gguf[.-](part\d+of\d+|split-[a-z])$", re.IGNORECASE)
_GGUF_NAME = re.compile(r"[-_.]gguf$", re.IGNORECASE)
_ADAPTER = ("adapter_config.json", "adapter_model.safetensors")
_MMPROJ_ORDER = ("F16", "BF16", "Q8_0", "F32")
_NO_MODEL = re.compile(r"mmproj|^(imatrix|ggml-vocab|mtp-)|imatrix$")
"""Of the names of GGUF files beside a model: `mtp-` is a drafter, which does not run alone."""

_OTHER_FORMATS = (
    *(".gguf", ".pth", ".pt", ".ckpt", ".h5", ".msgpack", ".ot", ".onnx", ".onnx_data", ".tflite"),
    *(".mlmodel", ".xml", ".npz", ".nemo", ".data"),
    *(".png", ".jpg", ".jpeg", ".gif", ".webp", ".svg", ".mp4", ".pdf"),
)
"""What transformers does not read beside `.safetensors` or `.bin`, and what people look at."""

_OTHER_FOLDERS = re.compile(
    r"original|onnx|openvino|coreml|metal|figures|assets|runs|checkpoint-\d+|global_step\d+"
)
_BINARY = re.compile(r"pytorch_model(-\d+-of-\d+)?\.bin")
_FOREIGN = re.compile(r"(?<![a-z0-9])(?:exl3|mlx)(?![a-z0-9])", re.IGNORECASE)

Form = Literal["gguf", "folder", "mmproj", "adapter"]
"""What a backend is given as a path: of a model, a GGUF file or a folder of files; the GGUF file
that makes one see or hear; a LoRA, as PEFT saves it."""


@dataclass(frozen=True, slots=True)
class Choice:
    """One model of a repository.

    `name` is what it is chosen by: its quant, where that is enough. `path`: where the model is in
    the folder of its files, "" for that folder.
    """

    name: str
    files: tuple[RemoteFile, ...]
    path: str

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)

    def __str__(self) -> str:
        return f"{self.name} ({size_text(self.size)})"


def choices(repo_id: str, files: Iterable[RemoteFile], form: Form | None = None) -> list[Choice]:
    """The models of a repository in this form, or in any; the recommended one first.

    A folder is a checkpoint as transformers has it, or all files, if it has to be one.
    """
    there = [file for file in files if not file.name.startswith(".")]
    if form == "mmproj":
        return _projectors(there)
    if form == "adapter":
        return _adapter(there)
    found = [] if form == "folder" else _gguf_models(there)
    if form == "folder" or (form is None and not _FOREIGN.search(repo_id)):
        found += _checkpoint(there)
    others = tuple(file for file in there if not _is_gguf(file))
    if form == "folder" and not found and any(file.large for file in others):
        found = [Choice("all files", others, "")]
    return sorted(found, key=rank)


def choose(
    repo_id: str, files: Iterable[RemoteFile], quant: str = "", form: Form | None = None
) -> Choice:
    """The model of that quant, or the recommended one. Names may be in any case.

    `InvalidRequestError`, with all that there is, if none or several are meant.
    """
    files = list(files)
    found = choices(repo_id, files, form)
    if not found:
        raise InvalidRequestError(_nothing(repo_id, files, form), param="repo_id")
    if quant:
        meant = [each for each in found if spelled(each.name) == spelled(quant)]
        meant = meant or [each for each in found if bare(each.name) == spelled(quant)]
        meant = meant or [each for each in found if spelled(quant) in _spellings(each)]
        problem = f"{repo_id} has {'several' if meant else 'no'} {quant!r}"
    else:
        meant = [each for each in found if rank(each)[0] == rank(found[0])[0]]
        if form == "mmproj":
            meant = (
                found
                if len({frozenset(model_words(each.name)) for each in found}) > 1
                else found[:1]
            )
        elif is_quant(found[0].name):
            meant = meant[:1]
        problem = f"{repo_id} has several models"
    if len(meant) == 1:
        return meant[0]
    raise InvalidRequestError(
        f"{problem}; name one after a colon, as in {repo_id}:{found[0].name}; "
        f"there are {', '.join(map(str, found))}",
        param="quant",
    )


def rank(choice: Choice) -> tuple[int, bool, str]:
    """Lower is what is rather recommended."""
    quant = choice.name if choice.name in ORDER else quant_of(choice.name)
    return *preference(quant), choice.name


def folder_name(repo_id: str, choice: Choice, revision: str | None) -> str:
    """What a download of this model is stored as: the repository's name, and which of it."""
    name = repo_id.rpartition("/")[2]
    if choice.path:
        name = _GGUF_NAME.sub("", name)
        own = PurePosixPath(choice.name).name
        if own.lower().startswith(name.lower()):
            return own
        return name if name.lower().endswith(own.lower()) else f"{name}-{own}"
    return f"{name}-{revision.replace('/', '-')}" if revision else name


def size_text(count: int) -> str:
    """Bytes for people."""
    return f"{count / 1e9:.2f} GB" if count >= 10_000_000 else f"{count:,} bytes"


def _gguf_models(files: Sequence[RemoteFile]) -> list[Choice]:
    all_gguf = [file for file in files if _is_gguf(file)]
    projectors = [file for file in all_gguf if _is_projector(file)]
    complete = _complete(file for file in all_gguf if not _is_beside(file))
    quants = {stem: quant_of(stem) for stem in sorted(complete)}
    alone = len({frozenset(model_words(stem)) for stem in complete}) == 1
    return [
        Choice(
            quant if quant and [*quants.values()].count(quant) == 1 else stem,
            _flat((*complete[stem], *_projector(stem, projectors, alone=alone))),
            PurePosixPath(complete[stem][0].name).name,
        )
        for stem, quant in quants.items()
    ]


def _is_beside(file: RemoteFile) -> bool:
    """Whether a GGUF file is none of a model: drafters may be in a folder of their own."""
    path = PurePosixPath(file.name.lower())
    return bool(_NO_MODEL.search(path.stem)) or "mtp" in path.parts[:-1]


def _complete(files: Iterable[RemoteFile]) -> dict[str, list[RemoteFile]]:
    """Each model's file, or all its parts in order, by what their names begin with.

    It is the whole file, where there are both; parts without all others are left out.
    """
    sets: dict[tuple[str, int], list[RemoteFile]] = {}
    for file in sorted(files, key=lambda file: file.name):
        sets.setdefault(_stem_and_parts(file), []).append(file)
    ordered = sorted(sets.items(), key=lambda item: item[0], reverse=True)
    return {stem: parts for (stem, count), parts in ordered if len(parts) == count}


def _flat(files: Iterable[RemoteFile]) -> tuple[RemoteFile, ...]:
    """Beside each other in one folder, as the engine wants them."""
    return tuple(replace(file, stored_as=PurePosixPath(file.name).name) for file in files)


def _projectors(files: Sequence[RemoteFile]) -> list[Choice]:
    """Those that could be a model's `mmproj`, the most exact one of use first."""
    return [
        Choice(_stem(file), _flat([file]), PurePosixPath(file.name).name)
        for file in sorted(files, key=lambda file: _exactness(_stem(file)))
        if _is_gguf(file) and _is_projector(file)
    ]


def _adapter(files: Sequence[RemoteFile]) -> list[Choice]:
    """The LoRA of a repository, without what its training left beside it."""
    own = tuple(file for file in files if file.name in _ADAPTER)
    return [Choice("lora", own, "")] if len(own) == len(_ADAPTER) else []


def _stem(file: RemoteFile) -> str:
    return str(PurePosixPath(file.name).with_suffix(""))


def _stem_and_parts(file: RemoteFile) -> tuple[str, int]:
    stem = _stem(file)
    part = _PART.fullmatch(stem)
    if part is None:
        return stem, 1
    number, count = int(part["number"]), int(part["count"])
    return (part["stem"], count) if 1 <= number <= count else (stem, 0)  # 0: never complete


def _projector(
    stem: str, projectors: Sequence[RemoteFile], *, alone: bool
) -> tuple[RemoteFile, ...]:
    """The file that makes the model of that stem see or hear, the most exact one of use."""
    stems = {_stem(each): each for each in projectors}
    fitting = [each for each in stems if alone or model_words(each) <= model_words(stem)]

    def order(name: str) -> tuple[bool, int, str]:
        beside = PurePosixPath(name).parent == PurePosixPath(stem).parent
        return not beside, *_exactness(name)

    return (stems[min(fitting, key=order)],) if fitting else ()


def _exactness(stem: str) -> tuple[int, str]:
    """Lower is what is rather used of several projectors."""
    quant = quant_of(PurePosixPath(stem).name)
    known = _MMPROJ_ORDER.index(quant) if quant in _MMPROJ_ORDER else len(_MMPROJ_ORDER)
    return known, stem


def _checkpoint(files: Sequence[RemoteFile]) -> list[Choice]:
    """The checkpoint for transformers, without what it has twice."""
    names = {file.name for file in files}
    tensors = [file for file in files if file.name.endswith(".safetensors")]
    weights = [file for file in tensors if "/" not in file.name and not _is_no_weights(file.name)]
    top = {part.name for parts in _complete(weights).values() for part in parts}
    pytorch = _complete(file for file in files if _BINARY.fullmatch(file.name))
    binary = {part.name for parts in pytorch.values() for part in parts}
    if not (top or binary) or not names & {"config.json", "modules.json"}:
        return []
    read = [PurePosixPath(file.name) for file in tensors if "/" in file.name or file.name in top]
    with_tensors = {path.parent for path in read if not _is_no_weights(path.name)}

    def belongs(file: RemoteFile) -> bool:
        path = PurePosixPath(file.name)
        if path.suffix.lower() in _OTHER_FORMATS or _is_no_weights(path.name):
            return False
        if any(map(_OTHER_FOLDERS.fullmatch, path.parts[:-1])):
            return False
        if file in tensors and "/" not in file.name:
            return file.name in top
        if _BINARY.fullmatch(file.name) and file.name not in binary:
            return False
        twice = path.suffix == ".bin" and path.parent in with_tensors
        return not twice and path.name != "training_args.bin"

    wanted = tuple(file for file in files if belongs(file))
    return [Choice("safetensors" if top else "pytorch", wanted, "")]


def _is_no_weights(name: str) -> bool:
    """Whether it is a LoRA's, or has the weights again as their publisher's own code names them."""
    return name.startswith("consolidated") or name in _ADAPTER


def _nothing(repo_id: str, files: Sequence[RemoteFile], form: Form | None) -> str:
    if form == "mmproj":
        return f"{repo_id} has no mmproj file, which would make a model see or hear"
    if form == "adapter":
        return f"{repo_id} is no LoRA as PEFT saves it: it lacks one of {', '.join(_ADAPTER)}"
    if any(file.name == "adapter_config.json" for file in files):
        return f"{repo_id} is a LoRA: `enginebay download {repo_id} --lora` gets it"
    if any(_PIECE.search(file.name) for file in files):
        return (
            f"{repo_id} has GGUF files in pieces that llama.cpp does not read: download them, "
            "join them with `cat`, and name the file that comes of it"
        )
    if form == "gguf":
        return f"{repo_id} has no GGUF file of a model, which this backend needs"
    if _FOREIGN.search(repo_id):
        return f"{repo_id} has weights of a kind that no engine here loads (EXL3, MLX)"
    return (
        f"{repo_id} has no model that an engine here loads: no .gguf file, and no config.json with "
        "*.safetensors"
    )


def _spellings(choice: Choice) -> set[str]:
    """Other names of a model: of its file, with its folder or without."""
    stem, _ = _stem_and_parts(choice.files[0])
    names = {stem, PurePosixPath(stem).name, choice.files[0].name, choice.path}
    return {spelled(name) for name in names} | {bare(quant_of(stem))}


def _is_gguf(file: RemoteFile) -> bool:
    return file.name.lower().endswith(".gguf")


def _is_projector(file: RemoteFile) -> bool:
    return "mmproj" in PurePosixPath(file.name).name.lower()
