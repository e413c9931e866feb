"""Everything a plugin author imports.

    from enginebay import hookimpl

    @hookimpl
    def register_backends(register):
        register("mine", create)

`docs/guides/plugins.md` shows a whole backend; `core.testing.check_backend` tells whether it keeps
its promises.
"""

from core.contract.backend import Backend as Backend
from core.contract.chat import Chat as Chat
from core.contract.engine import Engine as Engine
from core.contract.errors import AuthenticationError as AuthenticationError
from core.contract.errors import BackendUnavailableError as BackendUnavailableError
from core.contract.errors import ContextLengthExceededError as ContextLengthExceededError
from core.contract.errors import EngineDeadError as EngineDeadError
from core.contract.errors import InvalidRequestError as InvalidRequestError
from core.contract.errors import ModelNotFoundError as ModelNotFoundError
from core.contract.errors import ModelUnloadedError as ModelUnloadedError
from core.contract.errors import QueueFullError as QueueFullError
from core.contract.errors import RequestTooLargeError as RequestTooLargeError
from core.contract.errors import SchemaError as SchemaError
from core.contract.errors import ServingError as ServingError
from core.contract.errors import UnsupportedParameterError as UnsupportedParameterError
from core.contract.formats import AnswerMarks as AnswerMarks
from core.contract.formats import CallGrammar as CallGrammar
from core.contract.formats import Parser as Parser
from core.contract.formats import ReasoningFormat as ReasoningFormat
from core.contract.formats import ReasoningParser as ReasoningParser
from core.contract.formats import Schemas as Schemas
from core.contract.formats import Span as Span
from core.contract.formats import ThoughtMarks as ThoughtMarks
from core.contract.formats import ToolFormat as ToolFormat
from core.contract.grammar import Case as Case
from core.contract.grammar import Free as Free
from core.contract.grammar import Grammar as Grammar
from core.contract.grammar import Json as Json
from core.contract.grammar import Pattern as Pattern
from core.contract.grammar import Repeat as Repeat
from core.contract.grammar import Text as Text
from core.contract.grammar import Until as Until
from core.contract.grammar import UpTo as UpTo
from core.contract.grammar import choice as choice
from core.contract.grammar import json_value as json_value
from core.contract.grammar import optional as optional
from core.contract.grammar import sequence as sequence
from core.contract.hookspecs import hookimpl as hookimpl
from core.contract.registers import BackendRegister as BackendRegister
from core.contract.registers import Register as Register
from core.contract.sampling_params import ReasoningBudget as ReasoningBudget
from core.contract.sampling_params import SamplingParams as SamplingParams
from core.contract.types import BackendSettings as BackendSettings
from core.contract.types import ContentDelta as ContentDelta
from core.contract.types import Delta as Delta
from core.contract.types import EngineStats as EngineStats
from core.contract.types import GenerationRequest as GenerationRequest
from core.contract.types import Lora as Lora
from core.contract.types import ModelInfo as ModelInfo
from core.contract.types import Part as Part
from core.contract.types import ReasoningDelta as ReasoningDelta
from core.contract.types import RefusalDelta as RefusalDelta
from core.contract.types import ReportProgress as ReportProgress
from core.contract.types import TokenCounts as TokenCounts
from core.contract.types import TokenLogprob as TokenLogprob
from core.contract.types import ToolCallDelta as ToolCallDelta
from core.contract.types import TopLogprob as TopLogprob
from core.engine.backend import EngineBackend as EngineBackend
from core.engine.batching.choice import ChoiceState as ChoiceState
from core.engine.batching.drafts import Drafter as Drafter
from core.engine.batching.drafts import PromptLookup as PromptLookup
from core.engine.batching.engine import BatchingEngine as BatchingEngine
from core.engine.batching.limits import RequestLimits as RequestLimits
from core.engine.batching.numpy_runner import NumpyRunner as NumpyRunner
from core.engine.batching.numpy_runner import Rows as Rows
from core.engine.batching.runner import Chunk as Chunk
from core.engine.batching.runner import MemoryFullError as MemoryFullError
from core.engine.batching.runner import Runner as Runner
from core.engine.batching.runner import RunnerMemory as RunnerMemory
from core.engine.batching.runner import Sampled as Sampled
from core.engine.batching.scheduler import BatchLimits as BatchLimits
from core.engine.batching.slots import common_prefix as common_prefix
from core.engine.batching.text_engine import AdapterStore as AdapterStore
from core.engine.batching.text_engine import TextEngine as TextEngine
from core.engine.batching.tokenizing import Tokenizer as Tokenizer
from core.engine.batching.tokenizing import TokenizingEngine as TokenizingEngine
from core.engine.completion import Completion as Completion
from core.engine.completion import TokensToText as TokensToText
from core.engine.detokenizer import Detokenizer as Detokenizer
from core.engine.reasoning_budget import BudgetWatch as BudgetWatch
from core.engine.sampler.draw import seeded_random as seeded_random
from core.engine.sampler.logits import Mask as Mask
from core.engine.sampler.logits import Row as Row
from core.engine.sampler.logprobs import RowLogprobs as RowLogprobs
from core.engine.sampler.row_sampler import RowSampler as RowSampler
from core.engine.sampler.row_sampler import is_plain as is_plain
from core.engine.stop_strings import StopStrings as StopStrings
from core.grammar.compiler import GrammarCompiler as GrammarCompiler
from core.grammar.compiler import Masks as Masks
from core.grammar.compiler import Matcher as Matcher
from core.grammar.compiler import allowed_tokens as allowed_tokens
from core.grammar.constraint import Constraint as Constraint
from core.grammar.constraint import fill_masks as fill_masks
from core.grammar.subschema import subschema as subschema
from core.grammar.vocabulary import Vocabulary as Vocabulary
