"""For plugin authors' tests: a scripted engine, and checks of the contract."""

from enginebay.testing.check import check_backend
from enginebay.testing.probe import BrokenPromiseError
from enginebay.testing.scripted import ScriptedEngine
from enginebay.testing.scripted_chat import ScriptedChat

__all__ = ["BrokenPromiseError", "ScriptedChat", "ScriptedEngine", "check_backend"]
