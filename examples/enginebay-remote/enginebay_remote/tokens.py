"""Text to tokens and back: by a tokenizer.json beside this server, or by the remote server."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from enginebay import BackendUnavailableError
from enginebay_remote.options import Server

_DEFAULTS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
_UNKNOWN_VOCAB = 2**31


class Tokens(Protocol):
    """A tokenizer, wherever it runs."""

    async def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Token ids of `text`, special tokens written in it recognised."""

    async def decode(self, token_ids: Sequence[int]) -> str:
        """Text of `token_ids`, special tokens written out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What this side knows of the model."""

    vocab_size: int = _UNKNOWN_VOCAB
    longest_token: int = 256
    chat_templates: Mapping[str, str] = field(default_factory=dict)
    special_tokens: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    end_token_id: int | None = None


class LocalTokens:
    """A tokenizer.json, read by the library tokenizers."""

    def __init__(self, path: Path) -> None:
        try:
            from tokenizers import Tokenizer
        except ImportError as error:
            raise BackendUnavailableError(
                "option `tokenizer` needs the library tokenizers: pip install tokenizers"
            ) from error
        file = path / "tokenizer.json" if path.is_dir() else path
        if not file.is_file():
            raise BackendUnavailableError(f"option `tokenizer`: there is no {file}")
        self._tokenizer: Tokenizer = Tokenizer.from_file(str(file))
        self._folder = file.parent

    async def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        encoding = await asyncio.to_thread(
            self._tokenizer.encode, text, add_special_tokens=add_special_tokens
        )
        return list(encoding.ids)

    async def decode(self, token_ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(token_ids), skip_special_tokens=False))

    def known(self) -> Known:
        """What lies beside the tokenizer, as models on the Hugging Face hub have it."""
        config = _read(self._folder / "tokenizer_config.json")
        generation = _read(self._folder / "generation_config.json")
        special = {
            name: text
            for name in ("bos_token", "eos_token", "pad_token", "unk_token")
            if (text := _text(config.get(name)))
        }
        ends = generation.get("eos_token_id")
        end = ends[0] if isinstance(ends, list) and ends else ends
        if not isinstance(end, int):
            end = self._tokenizer.token_to_id(special.get("eos_token", ""))
        vocabulary = self._tokenizer.get_vocab()
        return Known(
            vocab_size=max(vocabulary.values(), default=0) + 1,
            longest_token=max(map(len, vocabulary), default=1),
            chat_templates=self._chat_templates(config),
            special_tokens=special,
            defaults={name: generation[name] for name in _DEFAULTS if generation.get(name)},
            end_token_id=end,
        )

    def _chat_templates(self, config: Mapping[str, Any]) -> dict[str, str]:
        """By name; the usual one is `default`."""
        file = self._folder / "chat_template.jinja"
        if file.is_file():
            return {"default": file.read_text(encoding="utf-8")}
        templates = config.get("chat_template")
        if isinstance(templates, str):
            return {"default": templates}
        return {each["name"]: each["template"] for each in templates or ()}


class Posts(Protocol):
    """A server, or several that answer alike."""

    async def post(self, path: str, body: Any) -> Any:
        """The JSON that answers `body`."""


class RemoteTokens:
    """The server's own `/tokenize` and `/detokenize`, whose fields each server has named itself."""

    def __init__(self, http: Posts, server: Server, model: str) -> None:
        self._http = http
        self._llama = server == "llama-server"
        # Others may leave special tokens out, as SGLang does.
        self._always_whole = server in ("llama-server", "vllm", "enginebay")
        self._model = model
        self._texts: dict[int, str] = {}  # of single tokens, so no more than the vocabulary

    async def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        body: dict[str, Any] = (
            {"content": text, "add_special": add_special_tokens, "parse_special": True}
            if self._llama
            else {"model": self._model, "prompt": text, "add_special_tokens": add_special_tokens}
        )
        answer = await self._http.post("/tokenize", body)
        return list(answer["tokens"])

    async def decode(self, token_ids: Sequence[int]) -> str:
        if not token_ids:
            return ""
        if len(token_ids) > 1:
            return await self._decode(token_ids)
        if token_ids[0] not in self._texts:
            self._texts[token_ids[0]] = await self._decode(token_ids)
        return self._texts[token_ids[0]]

    async def _decode(self, token_ids: Sequence[int]) -> str:
        body: dict[str, Any] = {"tokens": list(token_ids)}
        if not self._llama:
            body["model"] = self._model
        if not self._always_whole:
            body["skip_special_tokens"] = False
        answer = await self._http.post("/detokenize", body)
        for name in ("prompt", "content", "text"):  # vLLM, llama-server, SGLang
            if name in answer:
                return str(answer[name])
        raise BackendUnavailableError("the remote server's /detokenize answers with no text")


def _read(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    content = json.loads(file.read_text(encoding="utf-8"))
    return content if isinstance(content, dict) else {}


def _text(token: Any) -> str | None:
    """A special token of `tokenizer_config.json`: its text, or an object with it."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None
