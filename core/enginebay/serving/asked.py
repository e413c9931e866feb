"""Requests of other APIs, as requests of OpenAI's; and what their clients call the fields."""

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from enginebay.chat.schemas.generation_request import GenerationBody
from enginebay.contract.errors import ServingError

Body = TypeVar("Body", bound=GenerationBody)

_STEP = re.compile(r"[.\[]")
_PATH = re.compile(r"\b[a-z]+(?:_[a-z]+)*(?:\.\w+|\[\d+\])*")


@dataclass(frozen=True, slots=True)
class Names:
    """What the fields of a chat or completion request are called in the API of the client.

    `places`: by paths such as `messages[2].content`, of which the longest one counts; what is
    deeper keeps the rest of its path.
    """

    places: Mapping[str, str] = field(default_factory=dict)

    def of(self, path: str) -> str:
        """The client's name of a field, or of a place in one."""
        for known in _with_parents(path):
            if known in self.places:
                return self.places[known] + path[len(known) :]
        return path

    def each(self, paths: Iterable[str]) -> tuple[str, ...]:
        """The names of several, each one once."""
        return tuple(dict.fromkeys(map(self.of, paths)))

    def _of_path(self, word: str) -> str:
        return self.of(word) if any(sign in word for sign in "_.[") else word

    @contextmanager
    def in_errors(self) -> Iterator[None]:
        """Errors that the block raises speak of the client's fields."""
        try:
            yield
        except ServingError as error:
            self.rename(error)
            raise

    def rename(self, error: ServingError) -> None:
        """Have an error speak of the client's fields: its `param`, and paths in its message.

        Words of the message that are fields, too (`tools`), stay, unless it begins with the param,
        or has it behind a colon.
        """
        if not self.places:
            return
        param, error.param = error.param, error.param and self.of(error.param)
        rest = error.message
        begins = param is not None and rest.startswith(param)
        if begins:
            rest = rest.removeprefix(param or "")
        rest = _PATH.sub(lambda found: self._of_path(found[0]), rest)
        if param is not None:
            rest = re.sub(rf"(?<=: ){re.escape(param)}\b", lambda _: self.of(param), rest)
        error.message = f"{error.param}{rest}" if begins else rest


def _with_parents(path: str) -> Iterator[str]:
    """A path, and the paths of what it is in, the longest first."""
    yield path
    ends = [found.start() for found in _STEP.finditer(path)]
    yield from (path[:end] for end in reversed(ends))


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked(Generic[Body]):
    """What a request asks for: `body`, and the client's `names` of its fields.

    The names include those that the body was sent with, where a field has several.
    `ignored`: fields of the client's API that have no effect and are not in `body`, by their names.
    With `prompt_only` nothing is generated: the prompt is read, and so cached.
    """

    body: Body
    names: Names = field(default_factory=Names)
    ignored: tuple[str, ...] = ()
    prompt_only: bool = False

    def __post_init__(self) -> None:
        if sent := self.body.sent_names:
            object.__setattr__(self, "names", Names({**sent, **self.names.places}))
