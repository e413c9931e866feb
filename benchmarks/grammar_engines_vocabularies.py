"""Vocabularies of the sizes that models have: the demo model's, and two trained on the spot.

No large tokenizer comes with this repository, so a byte-level BPE of 128 Ki tokens is trained on
the Python sources that are installed, their docstrings and comments; the first 32 Ki tokens of it
are the other one, since BPE adds its tokens one after the other. It lies beside the peers.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer
from transformers.convert_slow_tokenizer import bytes_to_unicode

from benchmarks.grammar_engines_adapters import Vocabulary

DEMO = Path(__file__).parent.parent / "demo" / "model" / "tokenizer.json"
TRAINED = Path(__file__).parent / ".peers" / "vocabulary" / "tokenizer.json"
SIZES = {"32k": 32 * 1024, "128k": 128 * 1024}
CORPUS_CHARACTERS = 60_000_000
_END = "<|end|>"


def tokenizer(name: str) -> Tokenizer:
    """The tokenizer called demo, 32k or 128k."""
    if name == "demo":
        return Tokenizer.from_file(str(DEMO))
    if not TRAINED.exists():
        _train(max(SIZES.values()))
    described = json.loads(TRAINED.read_text(encoding="utf-8"))
    return Tokenizer.from_str(json.dumps(_shortened(described, SIZES[name])))


def vocabulary(made: Tokenizer) -> Vocabulary:
    """The bytes of a byte-level tokenizer's tokens."""
    byte_of = {character: byte for byte, character in bytes_to_unicode().items()}
    special = {i for i, token in made.get_added_tokens_decoder().items() if token.special}
    tokens = []
    for i in range(made.get_vocab_size()):
        token = made.id_to_token(i)
        plain = i in made.get_added_tokens_decoder()
        tokens.append(token.encode() if plain else bytes(byte_of[char] for char in token))
    end = next(i for i in sorted(special) if "end" in made.id_to_token(i))
    return Vocabulary(tokens, end, sorted(special), lambda text: made.encode(text).ids)


def _train(size: int) -> None:
    print(f"Training a vocabulary of {size} tokens", flush=True)
    made = Tokenizer(BPE())
    made.pre_tokenizer = ByteLevel(add_prefix_space=False)
    made.decoder = ByteLevelDecoder()
    alphabet = ByteLevel.alphabet()
    trainer = BpeTrainer(
        vocab_size=size,
        special_tokens=[_END],
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        max_token_length=32,
    )
    made.train_from_iterator(_corpus(), trainer)
    TRAINED.parent.mkdir(parents=True, exist_ok=True)
    made.save(str(TRAINED))


def _corpus() -> Iterator[str]:
    """Texts of the installed Python sources, in an order of their names."""
    left = CORPUS_CHARACTERS
    folders = sorted({Path(folder) for folder in sys.path if folder and Path(folder).is_dir()})
    for folder in folders:
        for path in sorted(folder.rglob("*.py")):
            text = path.read_text(encoding="utf-8", errors="ignore")
            yield text
            left -= len(text)
            if left < 0:
                return


def _shortened(described: dict[str, Any], size: int) -> dict[str, Any]:
    """The tokenizer with its first tokens only, and the merges that make them."""
    model = described["model"]
    vocab = {token: i for token, i in model["vocab"].items() if i < size}
    merges = [pair for pair in model["merges"] if "".join(pair) in vocab]
    return described | {"model": model | {"vocab": vocab, "merges": merges}}
