"""Argument types from a function's JSON Schema, for parsers and grammars."""
