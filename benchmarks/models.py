"""The models that are measured, each as a folder for transformers and as GGUF for llama.cpp.

No greedy answer of theirs ends early or holds half a character, so that every server makes the
same number of tokens and sends text with each: the rows of the output matrix that stand for other
tokens are zero.
"""

import importlib.util
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import environments
from demo.language_model import extract

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_DEMO = environments.ROOT / "demo" / "model"
_MADE = environments.FOLDER / "models"
_EMBEDDINGS = "model.embed_tokens.weight"
"""The output matrix too, in the models made here."""


_SIZES = {
    "100m": {  # 106 million weights
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "num_key_value_heads": 4,
    },
    "1b": {  # 0.98 billion, those of TinyLlama
        "hidden_size": 2048,
        "intermediate_size": 5632,
        "num_hidden_layers": 22,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
    },
}


@dataclass(frozen=True, slots=True)
class Model:
    """A model in both forms; `dtype` is the number format of the folder's when it is served."""

    name: str
    folder: Path
    gguf: Path
    dtype: str

    @property
    def context_length(self) -> int:
        """Tokens of prompt and answer that it can hold."""
        config: dict[str, Any] = json.loads((self.folder / "config.json").read_text("utf-8"))
        return int(config["max_position_embeddings"])


def find(name: str, dtype: str, gguf: Path | None = None) -> Model:
    """The model called `demo`, `100m` or `1b`, made if need be, or the one in a folder.

    A folder's GGUF is `gguf`, or is converted from it, which works for Llama models.
    """
    if name == "demo":
        folder = _make("demo", _edit_demo)
    elif name in _SIZES:
        folder = _make(name, partial(_initialize, _SIZES[name]))
    else:
        folder = Path(name).resolve()
        name = folder.name
    return Model(name, folder, gguf or _MADE / f"{name}-f16.gguf", dtype)


def ensure_gguf(model: Model) -> None:
    """Convert the model's folder to GGUF (f16), unless that has been done."""
    if not model.gguf.exists():
        _MADE.mkdir(parents=True, exist_ok=True)
        files = [str(model.folder), str(model.gguf), "--type", "f16"]
        here = importlib.util.find_spec("gguf")
        python = sys.executable if here else environments.tools()
        command = [str(python), "-m", "demo.to_gguf", *files]
        subprocess.run(command, cwd=environments.ROOT, check=True)


def _make(name: str, make: Any) -> Path:
    folder = _MADE / name
    if not (folder / "model.safetensors").exists():
        print(f"Making the model {name}", flush=True)
        _MADE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=_MADE) as unfinished:
            made = Path(unfinished) / name
            extract(_DEMO, made)
            make(made)
            made.replace(folder)
    return folder


def _edit_demo(folder: Path) -> None:
    """The demo's language model, unable to end an answer."""
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    tokenizer = _tokenizer(folder)
    weights[_EMBEDDINGS][tokenizer.all_special_ids] = 0
    weights[_EMBEDDINGS][len(tokenizer) :] = 0
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def _initialize(sizes: dict[str, int], folder: Path) -> None:
    """A Llama of random weights with the demo model's tokenizer; large ones in float16."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = _tokenizer(folder)
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        **sizes,
        max_position_embeddings=8192,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = LlamaForCausalLM(config)
    words = {token_id for token, token_id in tokenizer.get_vocab().items() if _is_word(token)}
    others = [token_id for token_id in range(len(tokenizer)) if token_id not in words]
    with torch.no_grad():
        model.model.embed_tokens.weight[others] = 0
    large = model.num_parameters() > 500e6
    (model.half() if large else model).save_pretrained(folder)


def _is_word(token: str) -> bool:
    return token.removeprefix("Ġ").isascii() and token.removeprefix("Ġ").isalpha()


def _tokenizer(folder: Path) -> "PreTrainedTokenizerBase":
    from transformers import AutoTokenizer

    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(folder)
    return tokenizer
