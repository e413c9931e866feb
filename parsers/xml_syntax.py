"""How tool calls look whose arguments stand between tags, one by one."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Parameter:
    """`start`, value, `end`.

    `start` has a hole `{key}`; without one, the value is all of the arguments. A hole `{string}`
    says whether the value is text: `true` or `string`. `margin`: a character that templates write
    between the tags and the value, which is no part of it.
    """

    start: str
    end: str
    margin: str = ""


@dataclass(frozen=True, slots=True)
class XmlSyntax:
    """`block`, calls, `block_end`, where a call is `call`, parameters, `call_end`.

    Tags are written as in `tag_patterns`; the one of a call has a hole `{name}`. Without a
    `block`, calls stand by themselves. `may_lack_block`: models forget it. `entities`: names and
    keys are escaped as in XML. `spaces`: what models write between tags, one of these.
    `one_a_block`: they write a block for each call. `names_types`: a hole `{string}` holds the
    name of the type.
    """

    call: str
    call_end: str
    parameters: tuple[Parameter, ...]
    block: str = ""
    block_end: str = ""
    may_lack_block: bool = False
    entities: bool = False
    spaces: tuple[str, ...] = ("\n",)
    one_a_block: bool = False
    names_types: bool = False
