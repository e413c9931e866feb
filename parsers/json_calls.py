"""Tool calls that are JSON objects between tags."""

import re
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

from parsers.call import Call
from parsers.call_object import CallObject, Keys
from parsers.tagged_calls import TaggedCalls

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

    def _new_call(self) -> Call:
        keys = Keys(self.name_keys, self.argument_keys, self.id_keys, others=not self.bare)
        return CallObject(keys)
