"""Real vocabularies: their tokenizers, the bytes of their tokens, and a tiny model for each."""

import base64
import json
import random
import re
import shutil
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.convert_slow_tokenizer import bytes_to_unicode

from enginebay_checkpoint.folder import Checkpoint
from enginebay_checkpoint.tokenizer import Tokenizer, load_tokenizer
from tests.llama_templates import llama_templates
from tests.real import artifacts

# Models have more rows than their tokenizers have tokens.
ROWS = {
    "qwen3": 151_936,
    "llama3_1": 128_256,
    "gemma3": 262_208,
    "deepseek_v3": 129_280,
    "gptoss": 201_088,
    "mistral": 131_072,
}
# The packages of these two contain no chat template.
TEMPLATES = {"gptoss": "openai-gpt-oss-120b", "mistral": "mistralai-Mistral-Nemo-Instruct-2407"}
BYTE_TOKEN = re.compile("<0x([0-9A-F]{2})>")
UNKNOWN = "\ufffd"


@dataclass(frozen=True)
class Vocabulary:
    """One of `artifacts.TOKENIZERS`, in a folder with its files."""

    name: str
    folder: Path

    @cached_property
    def ours(self) -> Tokenizer:
        """The tokenizer as the backend `hf` loads it."""
        return load_tokenizer(Checkpoint(self.folder))

    @cached_property
    def theirs(self) -> Any:
        """The tokenizer of transformers."""
        return AutoTokenizer.from_pretrained(self.folder)

    @cached_property
    def template(self) -> str | None:
        """The chat template: of the package, else of llama.cpp's sources."""
        own: str | None = self.theirs.chat_template
        return own or llama_templates().get(TEMPLATES.get(self.name, ""))

    @cached_property
    def token_bytes(self) -> dict[int, bytes]:
        """The bytes of each token, as the files of the tokenizer contain them."""
        added = {id: token.content for id, token in self.theirs.added_tokens_decoder.items()}
        if self.name == "mistral":
            content = json.loads((self.folder / "tekken.json").read_text(encoding="utf-8"))
            first = content["config"]["default_num_special_tokens"]
            ranks = content["vocab"][: content["config"]["default_vocab_size"] - first]
            found = {first + e["rank"]: base64.b64decode(e["token_bytes"]) for e in ranks}
        else:
            read = _sentencepiece if self.has_byte_fallback else _byte_level
            vocabulary = self.theirs.get_vocab().items()
            found = {id: read(text) for text, id in vocabulary if id not in added}
        if self.has_byte_fallback:
            return found | {id: _sentencepiece(text) for id, text in added.items()}
        return found | {id: text.encode() for id, text in added.items()}

    @property
    def has_byte_fallback(self) -> bool:
        """Whether its tokens are text, and bytes only where the text is in no token."""
        return self.name == "gemma3"

    @cached_property
    def partial(self) -> list[int]:
        """The tokens whose bytes are not whole characters."""
        return [
            id
            for id, own in sorted(self.token_bytes.items())
            if UNKNOWN in own.decode("utf-8", "replace")
        ]

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool = False) -> str:
        """The text by transformers."""
        return str(self.theirs.decode(token_ids, skip_special_tokens=skip_special_tokens))

    def check(self, text: str, token_ids: list[int], *, skip_special_tokens: bool = False) -> None:
        """Assert that this is the text of the tokens.

        With byte fallback, transformers' `decode` writes U+FFFD for every byte of a run of byte
        tokens that is not UTF-8, even for its whole characters. A stream has already sent such a
        character. So it may be there, and everything outside such a run is compared.
        """
        exact = self.decode(token_ids, skip_special_tokens=skip_special_tokens)
        if not self.has_byte_fallback or text == exact:
            assert text == exact
            return
        left_out = self.ours.special_token_ids if skip_special_tokens else frozenset()
        kept = (id for id in token_ids if id not in left_out)
        pattern = ""
        for is_byte, group in groupby(kept, lambda id: id in self._byte_tokens):
            run = b"".join(self.token_bytes[id] for id in group)
            pattern += _any_reading(run) if is_byte else re.escape(run.decode())
        assert re.fullmatch(pattern, text), f"{text!r} is not {exact!r}"

    @cached_property
    def _byte_tokens(self) -> frozenset[int]:
        vocabulary = self.theirs.get_vocab().items()
        return frozenset(id for text, id in vocabulary if BYTE_TOKEN.fullmatch(text))

    def sequences(self, count: int, longest: int) -> list[list[int]]:
        """Random tokens: of all kinds, mostly parts of characters, or of random Unicode text."""
        chance = random.Random(self.name)
        everything = sorted(self.token_bytes)
        made = []
        for number in range(count):
            length = chance.randint(1, longest)
            if number % 3 == 0:
                made.append(chance.choices(everything, k=length))
            elif number % 3 == 1:
                pools = chance.choices([self.partial, everything], [3, 1], k=length)
                made.append([chance.choice(pool) for pool in pools])
            else:
                made.append(self.ours.encode(_text(chance, length), add_special_tokens=False))
        return made


def tiny_model(vocabulary: Vocabulary, folder: Path) -> Path:
    """Save a model of random weights that has this vocabulary, and its chat template."""
    shutil.copytree(vocabulary.folder, folder)
    if vocabulary.template and not vocabulary.theirs.chat_template:
        (folder / "chat_template.jinja").write_text(vocabulary.template, encoding="utf-8")
    torch.manual_seed(1)
    config = AutoConfig.for_model(
        "llama",
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=4096,
        vocab_size=ROWS[vocabulary.name],
        tie_word_embeddings=True,
        bos_token_id=vocabulary.theirs.bos_token_id,
        eos_token_id=vocabulary.theirs.eos_token_id,
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


def _text(chance: random.Random, length: int) -> str:
    """Characters of all planes, and words."""
    ranges = [(0x20, 0x7E), (0xA0, 0x24F), (0x370, 0x6FF), (0x900, 0xDFF), (0x3040, 0x9FFF)]
    ranges += [(0xAC00, 0xD7A3), (0x1F300, 0x1FAFF), (0x20000, 0x2A6DF), (0xE000, 0xE0FF)]
    return "".join(chr(chance.randint(*chance.choice(ranges))) for _ in range(length))


def _any_reading(run: bytes) -> str:
    """A pattern of the text of a run of byte tokens."""
    read = run.decode("utf-8", "replace")
    if UNKNOWN not in read:
        return re.escape(read)
    return f"[{re.escape(read)}]{{1,{len(run)}}}"


def _byte_level(text: str) -> bytes:
    return bytes(_BYTES[character] for character in text)


_BYTES = {character: byte for byte, character in bytes_to_unicode().items()}


def _sentencepiece(text: str) -> bytes:
    if found := BYTE_TOKEN.fullmatch(text):
        return bytes.fromhex(found[1])
    return text.replace("▁", " ").encode()


def fetched(name: str) -> Vocabulary:
    """A vocabulary, downloaded if it is not in the cache."""
    return Vocabulary(name, artifacts.tokenizer(name))
