"""How tool calls look that are written in the manner of Python."""

from dataclasses import dataclass

from parsers.literal_scanner import PYTHON_QUOTES, Quote


@dataclass(frozen=True, slots=True)
class LiteralSyntax:
    """`start`, one or more calls or a list of them, `end`; a call is `call`, arguments, `closer`.

    `call` is written as in `tag_patterns`, with a hole `{function}`. `separator` stands between
    the name and the value of an argument. `may_be_bare`: a list of calls may also stand without
    the tags, if the answer begins with it. `list_start`, `between` and `list_end`: what models
    write around calls; with `one_a_block`, each stands between the tags by itself.
    """

    start: str
    end: str
    call: str = "{function}("
    closer: str = ")"
    separator: str = "="
    quotes: tuple[Quote, ...] = PYTHON_QUOTES
    may_be_bare: bool = False
    list_start: str = "["
    between: str = ", "
    list_end: str = "]"
    one_a_block: bool = False
