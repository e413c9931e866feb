"""For plugin authors' tests: an engine that says what it is told, and a check of the contract."""

from core.testing.check import check_backend
from core.testing.probe import BrokenPromiseError
from core.testing.scripted import ScriptedEngine

__all__ = ["BrokenPromiseError", "ScriptedEngine", "check_backend"]
