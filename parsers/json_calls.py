"""Tool calls that are JSON objects between tags."""

import json
import re
from dataclasses import KW_ONLY, dataclass, replace
from typing import ClassVar

from parsers.call import Call
from parsers.call_object import IN_FRONT, CallObject, Keys
from parsers.layout import Layout
from parsers.tagged_calls import TaggedCalls

_STRING = r'"(?:[^"\\]|\\(?s:.))*"'
_SCALAR = r'[^ \t\r\n"{\[,}\]][^ \t\r\n,}\]]*'
_BETWEEN = re.compile(r"[ \t\r\n,;\[\]}]*")
_BETWEEN_FENCED = re.compile(r"[ \t\r\n,;\[\]}`]*")


@dataclass(frozen=True)
class JsonCalls(TaggedCalls):
    """`start`, one or more objects or a list of them, `end`.

    `name_keys`, `argument_keys`, `id_keys`: how the members of an object may be called that are the
    name, the arguments and the id; the first one in the object counts. No name keys: an object's
    only key is the name. `fenced`: a code fence may close behind the objects.
    """

    _: KW_ONLY
    name_keys: tuple[str, ...] = ("name",)
    argument_keys: tuple[str, ...] = ("arguments", "parameters")
    id_keys: tuple[str, ...] = ()
    fenced: bool = False

    before: ClassVar[re.Pattern[str]] = re.compile(r"[ \t\r\n\[]*")
    begins_with: ClassVar[str] = "{"

    @property
    def between(self) -> re.Pattern[str]:
        """White space, and what stands between the objects of a list or behind one too many."""
        return _BETWEEN_FENCED if self.fenced else _BETWEEN

    @property
    def _layout(self) -> Layout:
        if self.layout.calls:
            return self.layout
        name = f'"{self.name_keys[0]}": ' if self.name_keys else ""
        arguments = f', "{self.argument_keys[0]}"' if self.name_keys else ""
        return replace(self.layout, calls=(f'{{{name}"$name"{arguments}: $arguments}}',))

    def _written_name(self, name: str) -> str:
        return json.dumps(name, ensure_ascii=False)[1:-1]

    def _bare_name(self, name: str) -> str:
        space = r"[ \t\r\n]*"
        others, names = "|".join(sorted(IN_FRONT)), "|".join(self.name_keys)
        other = f'"(?:{others})"{space}:{space}(?:{_STRING}|{_SCALAR}){space},{space}'
        written = re.escape(self._written_name(name))
        return (
            rf"[ \t\r\n\[]*\{{{space}(?:{other})*"
            rf'"(?:{names})"{space}:{space}"\s*{written}\s*"'
        )

    def _new_call(self) -> Call:
        keys = Keys(self.name_keys, self.argument_keys, self.id_keys, bare=self.bare)
        return CallObject(keys)
