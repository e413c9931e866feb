"""A blocking engine, and the asynchronous backend that is made of it.

`contract` is what an engine's author writes, `backend` the event loop's side, `host` the loop that
drives the engine; `thread` and `process` are the two homes a host can have.
"""

from core.engine.backend import EngineBackend as EngineBackend
from core.engine.backoff import Backoff as Backoff
from core.engine.contract import Engine as Engine
