"""Parts of answers: their texts, and how they are joined."""

from collections.abc import Iterable

from enginebay.contract.types import ContentDelta, Part, ReasoningDelta, TokenLogprob, ToolCallDelta


def text_of(part: Part) -> str:
    """The text of a part; of a call's the JSON text of its arguments."""
    return part.arguments if isinstance(part, ToolCallDelta) else part.text


def content_of(parts: Iterable[Part]) -> str:
    """The text of the content among these parts."""
    return "".join(part.text for part in parts if isinstance(part, ContentDelta))


def attach_logprobs(parts: list[Part], logprobs: tuple[TokenLogprob, ...]) -> list[Part]:
    """Give `logprobs` to the last part that is content; the list is changed, and returned."""
    for i in range(len(parts) - 1, -1, -1):
        part = parts[i]
        if logprobs and isinstance(part, ContentDelta):
            parts[i] = ContentDelta(part.text, part.logprobs + logprobs)
            break
    return parts


def joined(parts: list[Part]) -> list[Part]:
    """These parts, with adjacent ones of the same kind as one."""
    if len(parts) < 2:
        return parts
    result: list[Part] = []
    for part in parts:
        last = result[-1] if result else None
        match last, part:
            case ContentDelta(a, before), ContentDelta(b, logprobs):
                result[-1] = ContentDelta(a + b, before + logprobs)
            case ReasoningDelta(a), ReasoningDelta(b):
                result[-1] = ReasoningDelta(a + b)
            case ToolCallDelta(i, name, a, id), ToolCallDelta(j, None, b) if i == j:
                result[-1] = ToolCallDelta(i, name, a + b, id)
            case _:
                result.append(part)
    return result
