"""llguidance and xgrammar behind one interface, as far as they can be imported.

xgrammar is installed beside the peers, without its dependencies: torch, transformers and numpy are
those of this Python.
"""

import json
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Json = Any
Mask = NDArray[np.int32]
XGRAMMAR = Path(__file__).parent / ".peers" / "xgrammar"
XGRAMMAR_PACKAGES = ("xgrammar==0.2.8", "apache-tvm-ffi==0.1.15.post2")


class RefusedError(Exception):
    """The engine does not compile this schema."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The bytes of each token; `end` ends a text, `special` tokens stand for no text."""

    tokens: Sequence[bytes]
    end: int
    special: Sequence[int]
    encode: Callable[[str], list[int]]

    @classmethod
    def of_bytes(cls) -> "Vocabulary":
        tokens = [*(bytes([byte]) for byte in range(256)), b"<end>"]
        return cls(tokens, 256, [256], lambda text: list(text.encode()))


class Matcher(Protocol):
    """Where a text stands in a grammar."""

    def fill(self, mask: Mask) -> None:
        """Set a bit for each token that may come next."""

    def accept(self, token: int) -> bool: ...

    def may_end(self) -> bool: ...


class Compiled(Protocol):
    def matcher(self) -> Matcher:
        """A new one at the start of the grammar."""


class Engine(ABC):
    """A grammar engine for one vocabulary. Building it is what a server does once for a model."""

    name: str
    package: str

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary

    @classmethod
    def version(cls) -> str:
        return version(cls.package)

    def mask(self) -> Mask:
        return np.zeros((len(self.vocabulary.tokens) + 31) // 32, dtype=np.int32)

    @abstractmethod
    def schema(self, schema: Json) -> Compiled:
        """Compile a JSON schema, from nothing. The draft's meaning, any JSON whitespace."""

    @abstractmethod
    def triggered(self, trigger: str, schema: Json, end: str) -> Compiled:
        """Compile free text, in which a value of the schema and `end` follow each trigger."""


class Llguidance(Engine):
    name = package = "llguidance"
    escapes: str | None = None
    """The letters that may follow a backslash; None for what it does by default."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        from llguidance import LLTokenizer, TokenizerWrapper

        super().__init__(vocabulary)
        self._tokenizer = LLTokenizer(TokenizerWrapper(_Tokens(vocabulary)))

    def schema(self, schema: Json) -> Compiled:
        from llguidance import LLMatcher

        options: Json = {"json_allowed_escapes": self.escapes} if self.escapes else None
        if isinstance(schema, bool):  # there is no place for options in these
            schema = {"allOf": [schema]}
        grammar = LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=options)
        return self._compile(grammar)

    def triggered(self, trigger: str, schema: Json, end: str) -> Compiled:
        call = f"call: %json {json.dumps(schema)}\n"
        text = f"start: (open call {json.dumps(end)})* TEXT\nopen[lazy]: TEXT {json.dumps(trigger)}"
        return self._compile(f"%llguidance {{}}\n{text}\nTEXT: /(.|\\n)*/\n{call}")

    def _compile(self, grammar: str) -> Compiled:
        from llguidance import LLMatcher

        matcher = LLMatcher(self._tokenizer, grammar, log_level=0)
        if matcher.is_error():
            raise RefusedError(matcher.get_error())
        return _LlguidanceCompiled(matcher)


class PlainLlguidance(Llguidance):
    """llguidance with one spelling for each string: without `\\u`."""

    name = "llguidance, no \\u"
    escapes = '"\\bfnrt'


class _Tokens:
    """What `TokenizerWrapper` asks of a tokenizer.

    Where the grammar leaves one continuation, the mask has only the token that encoding gives.
    """

    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.tokens = vocabulary.tokens
        self.eos_token_id = vocabulary.end
        self.special_token_ids = vocabulary.special
        self._encode = vocabulary.encode

    def __call__(self, text: str) -> list[int]:
        return self._encode(text)


class _LlguidanceCompiled:
    def __init__(self, matcher: Any) -> None:
        self._start = matcher

    def matcher(self) -> Matcher:
        return _LlguidanceMatcher(self._start.deep_copy())


class _LlguidanceMatcher:
    def __init__(self, matcher: Any) -> None:
        self._matcher = matcher

    def fill(self, mask: Mask) -> None:
        self._matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)

    def accept(self, token: int) -> bool:
        # A token that does not fit is no error here, as it would be in consume_token.
        return bool(self._matcher.try_consume_tokens([token]))

    def may_end(self) -> bool:
        return bool(self._matcher.is_accepting())


class Xgrammar(Engine):
    name = package = "xgrammar"

    def __init__(self, vocabulary: Vocabulary) -> None:
        import xgrammar

        super().__init__(vocabulary)
        info = xgrammar.TokenizerInfo(list(vocabulary.tokens), stop_token_ids=[vocabulary.end])
        self._compiler = xgrammar.GrammarCompiler(info, cache_enabled=False)

    def schema(self, schema: Json) -> Compiled:
        try:
            compiled = self._compiler.compile_json_schema(json.dumps(schema), strict_mode=False)
        except (RuntimeError, ValueError) as error:
            raise RefusedError(str(error)) from error
        return _XgrammarCompiled(compiled)

    def triggered(self, trigger: str, schema: Json, end: str) -> Compiled:
        content = {"type": "json_schema", "json_schema": schema}
        tag = {"type": "tag", "begin": trigger, "content": content, "end": end}
        text = {"type": "triggered_tags", "triggers": [trigger], "tags": [tag]}
        tags = {"type": "structural_tag", "format": text}
        return _XgrammarCompiled(self._compiler.compile_structural_tag(tags))


class _XgrammarCompiled:
    def __init__(self, compiled: Any) -> None:
        self._compiled = compiled

    def matcher(self) -> Matcher:
        import xgrammar

        return _XgrammarMatcher(xgrammar.GrammarMatcher(self._compiled))


class _XgrammarMatcher:
    def __init__(self, matcher: Any) -> None:
        self._matcher = matcher

    def fill(self, mask: Mask) -> None:
        if not self._matcher.fill_next_token_bitmask(mask[None]):
            mask.fill(-1)

    def accept(self, token: int) -> bool:
        return bool(self._matcher.accept_token(token))

    def may_end(self) -> bool:
        return bool(self._matcher.is_completed())


def engines() -> list[type[Engine]]:
    """Those that can be imported, after xgrammar has been installed."""
    if not XGRAMMAR.is_dir():
        command = [sys.executable, "-m", "pip", "install", "--no-deps", "--target", str(XGRAMMAR)]
        subprocess.run([*command, *XGRAMMAR_PACKAGES], check=True)
    if XGRAMMAR.is_dir() and str(XGRAMMAR) not in sys.path:
        sys.path.append(str(XGRAMMAR))
    return [
        engine for engine in (Llguidance, PlainLlguidance, Xgrammar) if _importable(engine.package)
    ]


def _importable(package: str) -> bool:
    try:
        version(package)
    except ImportError:
        return False
    return True
