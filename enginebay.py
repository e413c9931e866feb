"""Everything a plugin author imports.

    from enginebay import hookimpl

    @hookimpl
    def register_backends(register):
        register("mine", create)

`docs/plugins.md` shows a whole backend; `core.testing.check_backend` tells whether it keeps its
promises.
"""

from core.backend import Backend as Backend
from core.conversation import Chat as Chat
from core.engine import Engine as Engine
from core.engine import EngineBackend as EngineBackend
from core.engine.completion import Completion as Completion
from core.engine.completion import TokensToText as TokensToText
from core.errors import AuthenticationError as AuthenticationError
from core.errors import BackendUnavailableError as BackendUnavailableError
from core.errors import ContextLengthExceededError as ContextLengthExceededError
from core.errors import EngineDeadError as EngineDeadError
from core.errors import InvalidRequestError as InvalidRequestError
from core.errors import ModelNotFoundError as ModelNotFoundError
from core.errors import ModelUnloadedError as ModelUnloadedError
from core.errors import QueueFullError as QueueFullError
from core.errors import RequestTooLargeError as RequestTooLargeError
from core.errors import SchemaError as SchemaError
from core.errors import ServingError as ServingError
from core.errors import UnsupportedParameterError as UnsupportedParameterError
from core.grammar.compiler import GrammarCompiler as GrammarCompiler
from core.grammar.compiler import Masks as Masks
from core.grammar.compiler import Matcher as Matcher
from core.grammar.compiler import allowed_tokens as allowed_tokens
from core.grammar.constraint import Constraint as Constraint
from core.grammar.constraint import fill_masks as fill_masks
from core.grammar.expressions import Case as Case
from core.grammar.expressions import Free as Free
from core.grammar.expressions import Grammar as Grammar
from core.grammar.expressions import Json as Json
from core.grammar.expressions import Pattern as Pattern
from core.grammar.expressions import Repeat as Repeat
from core.grammar.expressions import Text as Text
from core.grammar.expressions import Until as Until
from core.grammar.expressions import UpTo as UpTo
from core.grammar.expressions import choice as choice
from core.grammar.expressions import json_value as json_value
from core.grammar.expressions import optional as optional
from core.grammar.expressions import sequence as sequence
from core.grammar.subschema import subschema as subschema
from core.grammar.vocabulary import Vocabulary as Vocabulary
from core.hookspecs import hookimpl as hookimpl
from core.parsing import AnswerMarks as AnswerMarks
from core.parsing import CallGrammar as CallGrammar
from core.parsing import Parser as Parser
from core.parsing import ReasoningFormat as ReasoningFormat
from core.parsing import ReasoningParser as ReasoningParser
from core.parsing import Schemas as Schemas
from core.parsing import Span as Span
from core.parsing import ThoughtMarks as ThoughtMarks
from core.parsing import ToolFormat as ToolFormat
from core.registers import BackendRegister as BackendRegister
from core.registers import Register as Register
from core.sampling_params import ReasoningBudget as ReasoningBudget
from core.sampling_params import SamplingParams as SamplingParams
from core.text.budget import BudgetWatch as BudgetWatch
from core.text.detokenizer import Detokenizer as Detokenizer
from core.text.stop import StopStrings as StopStrings
from core.types import BackendSettings as BackendSettings
from core.types import ContentDelta as ContentDelta
from core.types import Delta as Delta
from core.types import EngineStats as EngineStats
from core.types import GenerationRequest as GenerationRequest
from core.types import Lora as Lora
from core.types import ModelInfo as ModelInfo
from core.types import Part as Part
from core.types import ReasoningDelta as ReasoningDelta
from core.types import RefusalDelta as RefusalDelta
from core.types import ReportProgress as ReportProgress
from core.types import TokenCounts as TokenCounts
from core.types import TokenLogprob as TokenLogprob
from core.types import ToolCallDelta as ToolCallDelta
from core.types import TopLogprob as TopLogprob
