"""The hooks that a plugin may implement, and when each is called.

Plain `def` without defaults or keyword-only parameters: pluggy does not see those.
"""

from collections.abc import AsyncGenerator

import pluggy

from enginebay.contract.backend import Backend
from enginebay.contract.formats import ReasoningFormat, ToolFormat
from enginebay.contract.registers import BackendRegister, Register
from enginebay.contract.routes import RouteRegister
from enginebay.contract.types import Delta, GenerationRequest
from enginebay.contract.wing import Wing

hookspec = pluggy.HookspecMarker("enginebay")
hookimpl = pluggy.HookimplMarker("enginebay")


@hookspec
def register_backends(register: BackendRegister) -> None:
    """Called once at start: `register(name, create)` makes `backend: name` valid in the config.

    `create(settings)` is called later, when a model of that backend is loaded; import the engine
    library there, not here. A third argument, a pydantic class, validates the model's `options`;
    `requires` names the modules that will be imported, `serves` tells which paths hold its models,
    `estimate` what memory one of them will take.
    """


@hookspec
def register_parsers(reasoning: Register[ReasoningFormat], tools: Register[ToolFormat]) -> None:
    """Called once at start: `reasoning(name, format)` and `tools(name, format)`.

    `auto` in the config picks the first registered format that matches the chat template.
    """


@hookspec
def register_routes(register: RouteRegister) -> None:
    """Called once at start: `register(method, path, handler)` adds a route to the server.

    `async def handler(request)` gets a `RouteRequest`, which can run chats, completions and
    embeddings, and returns a value that is written as JSON, or a `RouteResponse`. Keys, limits, the
    log, metrics and errors are those of every route. The server's own routes come first.
    """


@hookspec
def register_wings(register: Register[Wing]) -> None:
    """Called once at start: `register(name, wing)` adds an optional part of the server.

    For packages of Enginebay itself. Other plugins add routes with `register_routes`.
    """


@hookspec(firstresult=True)
def generate(backend: Backend, request: GenerationRequest) -> AsyncGenerator[Delta, None] | None:
    """Called once per request, on the event loop; the first result that is not None is used.

    The built-in implementation comes last and returns `backend.generate(request)`. Replace it, or
    wrap it (`@hookimpl(wrapper=True)`) to observe, cache or meter the stream. Never an `async def`
    with `yield`: that is never None, so it would claim every request.
    """
