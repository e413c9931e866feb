"""GBNF, llama.cpp's notation for grammars, as the dialect of Lark that llguidance compiles.

https://github.com/ggml-org/llama.cpp/blob/master/grammars/README.md
"""

import json
import re
from collections.abc import Iterator, Mapping

from llguidance.gbnf_to_lark import (
    AlternativeNode,
    ASTNode,
    GbnfToLarkError,
    GrammarParser,
    LiteralNode,
    Position,
    RegexNode,
    RepetitionNode,
    RuleNode,
    RuleRefNode,
    SequenceNode,
)

_LITERAL = re.compile(r'"((?:\\.|[^"\\\r\n])*)"')
_CLASS = re.compile(r"\[(\^?)((?:\\.|[^\]\\\r\n])+)\]")
_CHARACTER = re.compile(
    r"\\x([0-9A-Fa-f]{2})|\\u([0-9A-Fa-f]{4})|\\U([0-9A-Fa-f]{8})|\\([\"\\\[\]nrt])|([^\\])"
)
_NAMED = {"n": "\n", "r": "\r", "t": "\t"}


def gbnf_to_lark(source: str) -> str:
    """A GBNF grammar as Lark. `ValueError` with line and column if it is not one.

    A grammar in GBNF is about characters, while a terminal here takes all the text that it matches,
    whatever must follow it. So a grammar without recursion becomes one terminal, which is fast; in
    any other each character is one.
    """
    try:
        rules = _Parser().parse(source)
        if "root" not in rules:
            raise ValueError("rule root is not defined")
        for name in [name for rule in rules.values() for name in _references(rule)]:
            if name not in rules:
                raise ValueError(f"{_place_of_name(source, name)}: rule {name} is not defined")
        return _Writer(rules).write()
    except GbnfToLarkError as error:
        reason = str(error).partition(" at line ")[0]
        if source[error.pos.pos :].startswith(("<", "!<")):
            reason = "tokens in a grammar are not supported"
        raise ValueError(f"{_place(source, error.pos.pos)}: {reason}") from None
    except RecursionError:
        raise ValueError("the grammar is nested too deeply") from None


class _Writer:
    """Writes rules in Lark, with one of its own for each group: groups in groups are limited."""

    def __init__(self, rules: Mapping[str, RuleNode]) -> None:
        self._rules = rules
        letters = "rg" if _recursive(rules) else "RG"  # terminals are in capitals
        self._group_letter = letters[1]
        self._names = {name: f"{letters[0]}{i}" for i, name in enumerate(rules)}
        self._groups: list[str] = []

    def write(self) -> str:
        lines = [f"{self._names[name]}: {self._lark(rule)}" for name, rule in self._rules.items()]
        return "\n".join([f"start: {self._names['root']}", *lines, *self._groups, ""])

    def _lark(self, node: ASTNode) -> str:
        match node:
            case RuleNode():
                return self._lark(node.alternatives)
            case AlternativeNode(alternatives=[only]) | SequenceNode(nodes=[only]):
                return self._lark(only)
            case AlternativeNode():
                return self._group(" | ".join(map(self._lark, node.alternatives)))
            case SequenceNode():
                return " ".join(map(self._lark, node.nodes)) or '""'
            case RepetitionNode():
                most = "" if node.max_times is None else node.max_times
                return f"{self._group(self._lark(node.node))}{{{node.min_times},{most}}}"
            case RuleRefNode():
                return self._names[node.name]
            case RegexNode(rx="."):
                return "/(?s:.)/"
            case _:
                return str(node)

    def _group(self, body: str) -> str:
        name = f"{self._group_letter}{len(self._groups)}"
        self._groups.append(f"{name}: {body}")
        return name


def _recursive(rules: Mapping[str, RuleNode]) -> bool:
    """Whether a rule leads to itself."""
    left = {name: set(_references(rule)) & rules.keys() for name, rule in rules.items()}
    while ends := {name for name, references in left.items() if not references}:
        left = {name: left[name] - ends for name in left.keys() - ends}
    return bool(left)


def _references(node: ASTNode) -> Iterator[str]:
    if isinstance(node, RuleRefNode):
        yield node.name
    for child in node.children():
        yield from _references(child)


class _Parser(GrammarParser):
    """Reads escapes for the characters they stand for, and no rule twice."""

    def __init__(self) -> None:
        super().__init__()
        self._names: set[str] = set()

    def _parse_rule(self, pos: Position) -> tuple[RuleNode, Position]:
        rule, behind = super()._parse_rule(pos)
        if rule.name in self._names:
            raise GbnfToLarkError(pos, f"rule {rule.name} is defined twice")
        self._names.add(rule.name)
        return rule, behind

    def _parse_literal(self, pos: Position) -> tuple[ASTNode, Position]:
        found = _LITERAL.match(pos.text, pos.pos)
        if not found:
            raise GbnfToLarkError(pos, "a literal that is not closed on its line")
        characters = _characters(found[1], pos.advance())
        nodes: list[ASTNode] = [LiteralNode(json.dumps(text)[1:-1]) for text, _ in characters]
        return SequenceNode(nodes), Position(pos.text, found.end())

    def _parse_char_class(self, pos: Position) -> tuple[ASTNode, Position]:
        found = _CLASS.match(pos.text, pos.pos)
        if not found:
            raise GbnfToLarkError(pos, "an empty or unclosed character class")
        characters = _characters(found[2], pos.advance(1 + len(found[1])))
        last = len(characters) - 1
        items = [
            "-" if text == "-" and not escaped and 0 < i < last else f"\\x{{{ord(text):X}}}"
            for i, (text, escaped) in enumerate(characters)
        ]
        return RegexNode(f"[{found[1]}{''.join(items)}]"), Position(pos.text, found.end())


def _characters(text: str, pos: Position) -> list[tuple[str, bool]]:
    """The characters that a literal or a class holds, and whether they were escaped."""
    characters, at = [], 0
    while at < len(text):
        found = _CHARACTER.match(text, at)
        number = found and (found[1] or found[2] or found[3])
        if not found or (number and int(number, 16) > 0x10FFFF):
            raise GbnfToLarkError(pos.advance(at), f"an unknown escape: {text[at : at + 2]}")
        plain = _NAMED.get(found[4] or "", found[4] or found[5])
        characters.append((chr(int(number, 16)) if number else plain, not found[5]))
        at = found.end()
    return characters


def _place_of_name(source: str, name: str) -> str:
    """Where the name of a rule first stands, other than in texts and comments."""
    others = f"{_LITERAL.pattern}|{_CLASS.pattern}|#.*"
    found = re.finditer(rf"{others}|(?<![\w-])(?P<name>{re.escape(name)})(?![\w-])", source)
    return _place(source, next(each.start() for each in found if each["name"]))


def _place(source: str, at: int) -> str:
    before = source[:at]
    return f"line {before.count(chr(10)) + 1}, column {at - before.rfind(chr(10))}"
