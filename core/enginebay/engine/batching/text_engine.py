"""Shared base of text engines: check requests, tokenize, complete."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from enginebay.contract.errors import (
    BackendUnavailableError,
    InvalidRequestError,
    UnsupportedParameterError,
)
from enginebay.contract.grammar import Grammar
from enginebay.contract.types import GenerationRequest, Lora, ModelInfo
from enginebay.engine.batching.limits import RequestLimits
from enginebay.engine.batching.tokenizing import Tokenizer, TokenizingEngine
from enginebay.engine.completion import Completion, TokensToText
from enginebay.engine.special_tokens import SpecialTokens
from enginebay.grammar.compiler import GrammarCompiler
from enginebay.grammar.constraint import Constraint


class AdapterStore(Protocol):
    """The LoRA adapters of a model, on its engine thread.

    `load` raises a `BackendUnavailableError`, and changes nothing, if it cannot be read or does not
    fit the model.
    """

    @property
    def names(self) -> tuple[str, ...]: ...
    def load(self, name: str, loras: Sequence[Lora]) -> None: ...
    def unload(self, name: str) -> None: ...


class TextEngine(TokenizingEngine):
    """An engine with a tokenizer, and a compiler of grammars if its vocabulary allows one."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        info: ModelInfo,
        *,
        eos_token_ids: frozenset[int],
        compiler: GrammarCompiler | None,
        max_choices: int | None = None,
        adapters: AdapterStore | None = None,
    ) -> None:
        """`max_choices`: how many choices one request may have, None for no limit.

        `adapters`: None if none can be loaded at run time.
        """
        limits = RequestLimits(
            context_length=info.context_length,
            vocab_size=info.vocab_size,
            max_choices=max_choices,
            adapters=info.adapters,
            eos_token_ids=eos_token_ids,
        )
        super().__init__(tokenizer, limits)
        self.info = replace(info, constraints=compiler is not None)
        self._compiler = compiler
        self._adapters = adapters
        self._eos_token_ids = eos_token_ids
        self._special_tokens = SpecialTokens(
            self._special_token_ids | eos_token_ids, lambda token_id: tokenizer.decode((token_id,))
        )

    def compile(self, grammar: Grammar) -> float:
        return self._require_compiler().compile(grammar)

    def load_adapter(self, name: str, loras: Sequence[Lora]) -> None:
        if self._adapters is None:
            super().load_adapter(name, loras)
            return
        try:
            self._adapters.load(name, loras)
        except BackendUnavailableError as error:
            raise InvalidRequestError(error.message, param="loras") from error
        self._tell_adapters(self._adapters)

    def unload_adapter(self, name: str) -> None:
        if self._adapters is not None:
            self._adapters.unload(name)
            self._tell_adapters(self._adapters)

    def _tell_adapters(self, adapters: AdapterStore) -> None:
        self.info = replace(self.info, adapters=adapters.names)
        self._limits = replace(self._limits, adapters=adapters.names)

    def _new_completion(
        self,
        request: GenerationRequest,
        index: int,
        detokenizer: TokensToText,
        *,
        takes_back: bool = False,
    ) -> Completion:
        """A new choice, with its constraint."""
        return Completion(
            request,
            index,
            max_tokens=self._limits.max_tokens(request),
            eos_token_ids=self._eos_token_ids,
            special_tokens=self._special_tokens,
            detokenizer=detokenizer,
            constraint=self._new_constraint(request),
            takes_back=takes_back,
        )

    def _new_constraint(self, request: GenerationRequest) -> Constraint | None:
        grammar = request.sampling.constraint
        if grammar is None:
            return None
        return Constraint(self._require_compiler(), grammar, self._end_token_ids(request))

    def _end_token_ids(self, request: GenerationRequest) -> frozenset[int]:
        """The tokens that end a completion of this request."""
        params = request.sampling
        eos_token_ids = frozenset() if params.ignore_eos else self._eos_token_ids
        return eos_token_ids.union(params.stop_token_ids)

    def _require_compiler(self) -> GrammarCompiler:
        if self._compiler is None:
            raise UnsupportedParameterError(
                "this model's vocabulary does not support constrained decoding", param="constraint"
            )
        return self._compiler
