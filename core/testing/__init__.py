"""For plugin authors' tests: a scripted engine, and checks of the contract."""

from core.testing.check import check_backend
from core.testing.probe import BrokenPromiseError
from core.testing.scripted import ScriptedEngine
from core.testing.scripted_chat import ScriptedChat

__all__ = ["BrokenPromiseError", "ScriptedChat", "ScriptedEngine", "check_backend"]
