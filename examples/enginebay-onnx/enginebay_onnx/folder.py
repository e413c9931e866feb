"""What lies beside a model.onnx: onnxruntime-genai's description of it, tokenizer, defaults.

https://onnxruntime.ai/docs/genai/reference/config.html describes `genai_config.json`.
"""

import json
from collections.abc import Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from enginebay import BackendUnavailableError, InvalidRequestError

Json = dict[str, Any]
_DEFAULTS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
_SPECIAL = ("bos_token", "eos_token", "pad_token", "unk_token")


class Folder:
    """A folder that onnxruntime-genai's model builder wrote."""

    def __init__(self, path: str) -> None:
        """`BackendUnavailableError` for one that is none, or that cannot be read."""
        self.path = Path(path)
        if not (self.path / "genai_config.json").is_file():
            raise self.unavailable(
                "there is no genai_config.json in it; convert a transformers folder with "
                "`python -m enginebay_onnx.convert SOURCE TARGET` and give the target"
            )
        try:
            self.model: Json = self.read("genai_config.json")["model"]
            self.decoder: Json = self.model["decoder"]
            self.context_length = int(self.model["context_length"])
            self.tokenizer = Tokenizer.from_file(str(self.path / "tokenizer.json"))
        except BackendUnavailableError:
            raise
        except Exception as error:  # tokenizers raises nothing more specific
            raise self.unavailable(f"it cannot be read: {error!r}") from error
        self._plain = Tokenizer.from_str(self.tokenizer.to_str())
        self._plain.encode_special_tokens = True
        for tokenizer in (self.tokenizer, self._plain):
            tokenizer.no_truncation()
            tokenizer.no_padding()
        self.tokenizer_config = self.read("tokenizer_config.json")
        self.generation_config = self.read("generation_config.json")
        self.token_text = cache(lambda token_id: self.decode([token_id]))

    def read(self, name: str) -> Json:
        """A JSON object; empty if there is no such file."""
        file = self.path / name
        try:
            content = json.loads(file.read_text("utf-8")) if file.is_file() else {}
        except (OSError, ValueError) as error:
            raise self.unavailable(f"{name} is damaged: {error}") from error
        if not isinstance(content, dict):
            raise self.unavailable(f"{name} is damaged: no JSON object")
        return content

    def unavailable(self, reason: str) -> BackendUnavailableError:
        """An error about this model."""
        return BackendUnavailableError(f"cannot load the model in {self.path}: {reason}")

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Token ids; special tokens written in the text are recognised."""
        return _encode(self.tokenizer, text, add_special_tokens)

    def encode_plain(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """The same, but what looks like a special token is plain text."""
        return _encode(self._plain, text, add_special_tokens)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text, special tokens written out."""
        return self.tokenizer.decode(list(token_ids), skip_special_tokens=False)

    @cached_property
    def end_token_ids(self) -> frozenset[int]:
        """Every token that ends an answer by any of the model's files."""
        named = [self.model.get("eos_token_id"), self.generation_config.get("eos_token_id")]
        named.append(self.tokenizer.token_to_id(self.special_tokens.get("eos_token", "")))
        lists = [ids if isinstance(ids, list) else [ids] for ids in named]
        return frozenset(i for ids in lists for i in ids if i is not None)

    @cached_property
    def special_token_ids(self) -> frozenset[int]:
        """Tokens that are no text of their own."""
        added = self.tokenizer.get_added_tokens_decoder()
        return frozenset(token_id for token_id, token in added.items() if token.special)

    @property
    def special_tokens(self) -> dict[str, str]:
        """The tokens that chat templates name, as text."""
        named = {name: self.tokenizer_config.get(name) for name in _SPECIAL}
        texts = {k: v.get("content") if isinstance(v, dict) else v for k, v in named.items()}
        return {name: text for name, text in texts.items() if text is not None}

    @property
    def chat_templates(self) -> dict[str, str]:
        """Jinja sources by name; that without a name is called `default`."""
        kept = self.tokenizer_config.get("chat_template") or {}
        if isinstance(kept, str):
            kept = {"default": kept}
        elif isinstance(kept, list):
            kept = {entry["name"]: entry["template"] for entry in kept}
        file = self.path / "chat_template.jinja"
        return kept | ({"default": file.read_text("utf-8")} if file.is_file() else {})

    @property
    def defaults(self) -> Json:
        """Sampling params that the model's author wrote down."""
        said = {name: self.generation_config.get(name) for name in _DEFAULTS}
        defaults = {name: value for name, value in said.items() if value is not None}
        if self.generation_config.get("do_sample") is False:
            defaults["temperature"] = 0.0
        return defaults


def _encode(tokenizer: Tokenizer, text: str, add_special_tokens: bool) -> list[int]:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequestError(f"the text is not valid Unicode: {error}") from error
    ids: list[int] = tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
    return ids
