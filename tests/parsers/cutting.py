"""What the parser tests share: feeding text in pieces, and parts in a form that can be compared."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence

from hypothesis import strategies as st

from enginebay import (
    ContentDelta,
    Parser,
    Part,
    ReasoningDelta,
    ReasoningFormat,
    ToolCallDelta,
    ToolFormat,
)

Joined = list[tuple[object, ...]]
MakeParser = Callable[[], Parser]


class Pipe(Parser):
    """Reasoning parser, then tool parser: the way a collector joins them."""

    def __init__(self, reasoning: ReasoningFormat, tools: ToolFormat, *, inside: bool) -> None:
        self.reasoning = reasoning.parser(inside=inside, spans=tools.spans)
        self.tools = tools.parser()

    def feed(self, text: str) -> list[Part]:
        return list(self._through(self.reasoning.feed(text)))

    def finish(self) -> list[Part]:
        return [*self._through(self.reasoning.finish()), *self.tools.finish()]

    def _through(self, parts: Iterable[Part]) -> Iterator[Part]:
        for part in parts:
            if isinstance(part, ContentDelta):
                yield from self.tools.feed(part.text)
            else:
                yield part


def run(make: MakeParser, pieces: Iterable[str]) -> Joined:
    parser = make()
    outputs = [*map(parser.feed, pieces), parser.finish()]
    if not isinstance(parser, Pipe):
        for parts in outputs:
            assert_neighbours_joined(parts)
    return joined(itertools.chain.from_iterable(outputs))


def assert_neighbours_joined(parts: list[Part]) -> None:
    """Within one `feed`, neighbours of one kind come as one part; only a name stands alone."""
    for a, b in itertools.pairwise(parts):
        if isinstance(a, ToolCallDelta) and isinstance(b, ToolCallDelta):
            assert a.index != b.index or a.name is not None, (a, b)
        else:
            assert type(a) is not type(b), (a, b)
    assert all(part != ContentDelta("") and part != ReasoningDelta("") for part in parts)


def joined(parts: Iterable[Part]) -> Joined:
    """`("content", text)`, `("reasoning", text)`, `("call", index, name, arguments)`.

    The id of a call stands behind its arguments, if the model has written one. A call that is torn
    by thought goes on behind it.
    """
    result: Joined = []
    for part in parts:
        match part:
            case ToolCallDelta(index, name, arguments, id):
                if name is None:
                    at = len(result) - 1
                    while at > 0 and result[at][0] == "reasoning":
                        at -= 1
                    call = result[at] if result else ()
                    assert call[:2] == ("call", index), "arguments before the name"
                    assert id is None, "an id behind the name"
                    result[at] = (*call[:3], f"{call[3]}{arguments}", *call[4:])
                else:
                    ids = () if id is None else (id,)
                    result.append(("call", index, name, arguments, *ids))
            case ContentDelta(text):
                _append(result, "content", text)
            case ReasoningDelta(text):
                _append(result, "reasoning", text)
    return result


def _append(result: Joined, kind: str, text: str) -> None:
    if result and result[-1][0] == kind:
        result[-1] = (kind, f"{result[-1][1]}{text}")
    else:
        result.append((kind, text))


def every_cut(text: str) -> Iterator[Sequence[str]]:
    """Whole, character by character, every single cut, and every two cuts of a short text."""
    yield [text]
    yield list(text)
    yield ["", *itertools.chain.from_iterable((char, "") for char in text)]
    for at in range(1, len(text)):
        yield [text[:at], text[at:]]
    if len(text) <= 48:
        for a, b in itertools.combinations(range(1, len(text)), 2):
            yield [text[:a], text[a:b], text[b:]]


def same_however_cut(make: MakeParser, text: str) -> Joined:
    """Asserts that every cut gives the same parts, and returns them."""
    whole = run(make, [text])
    for pieces in every_cut(text):
        assert run(make, pieces) == whole, pieces
    return whole


@st.composite
def cut(draw: st.DrawFn, texts: st.SearchStrategy[str]) -> list[str]:
    """A text in pieces."""
    text = draw(texts)
    ends = draw(st.lists(st.integers(0, len(text)), max_size=12).map(sorted))
    return [text[a:b] for a, b in itertools.pairwise([0, *ends, len(text)])]


def content_of(parts: Joined) -> str:
    return text_of(parts, "content")


def text_of(parts: Joined, kind: str) -> str:
    return "".join(str(part[1]) for part in parts if part[0] == kind)


def calls_of(parts: Joined) -> list[tuple[object, ...]]:
    return [part[1:] for part in parts if part[0] == "call"]
