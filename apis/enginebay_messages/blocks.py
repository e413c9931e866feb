"""Blocks in the messages of Anthropic's Messages API: https://docs.claude.com/en/api/messages."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Discriminator, Field, Tag

from enginebay.apis.open_object import OpenObject
from enginebay.apis.type_of import type_of
from enginebay.config.field_types import Many, NullIsUnset

_HOSTED = frozenset(
    (
        *("server_tool_use", "mcp_tool_use", "mcp_tool_listing", "container_upload"),
        *("tool_reference", "tool_addition", "tool_removal", "fallback"),
    )
)


class Block(OpenObject):
    """What every block may have; `cache_control` has no effect, as prefixes are cached anyway."""

    type: str
    cache_control: Any = None


class ContentBlock(Block):
    """What a user, an answer or a tool says or shows."""


class TextBlock(ContentBlock):
    """A text. `citations` are those of an earlier answer."""

    type: Literal["text"] = "text"
    text: str
    citations: Any = None


class Base64Source(BaseModel):
    """Data in base64."""

    type: Literal["base64"]
    media_type: Annotated[str, Field(max_length=200, pattern=r"^[\w.+-]+/[\w.+-]+$")]
    data: Annotated[str, Field(min_length=1)]


class UrlSource(BaseModel):
    """Data at a URL."""

    type: Literal["url"]
    url: Annotated[str, Field(min_length=1)]


class TextSource(BaseModel):
    """Plain text."""

    type: Literal["text"]
    data: str


class FileSource(BaseModel):
    """A file that was uploaded before."""

    type: Literal["file"]
    file_id: str


class ImageBlock(ContentBlock):
    """A picture."""

    type: Literal["image"] = "image"
    source: Annotated[Base64Source | UrlSource | FileSource, Discriminator("type")]


class Citations(NullIsUnset):
    """Whether an answer is to say where it has something from."""

    enabled: bool = False


class ContentSource(BaseModel):
    """A document that is text and pictures."""

    type: Literal["content"]
    content: str | Many[Annotated[TextBlock | ImageBlock, Discriminator("type")]]


class CitedBlock(ContentBlock):
    """What an answer may cite."""

    citations: Citations | None = None

    @property
    def asks_for_citations(self) -> bool:
        """Whether the answer is to say what it has from here."""
        return self.citations is not None and self.citations.enabled


class DocumentBlock(CitedBlock):
    """A document; `context` is about it and not in it."""

    type: Literal["document"] = "document"
    source: Annotated[
        Base64Source | UrlSource | TextSource | ContentSource | FileSource, Discriminator("type")
    ]
    title: str | None = None
    context: str | None = None


class SearchResultBlock(CitedBlock):
    """What a search found."""

    type: Literal["search_result"] = "search_result"
    source: str
    title: str
    content: Many[TextBlock]


class ThinkingBlock(Block):
    """Thought of an earlier answer; `signature` means nothing here."""

    type: Literal["thinking"] = "thinking"
    thinking: str
    signature: Any = None


class RedactedThinkingBlock(Block):
    """Thought that only Anthropic can read."""

    type: Literal["redacted_thinking"] = "redacted_thinking"
    data: Any = None


class HostedBlock(Block):
    """What a tool of Anthropic's servers was asked, or answered."""


class ToolUseBlock(Block):
    """A call of a tool; `caller` says who called it, which here is always the model."""

    type: Literal["tool_use"] = "tool_use"
    id: Annotated[str, Field(min_length=1)]
    name: Annotated[str, Field(min_length=1)]
    input: dict[str, Any]
    caller: Any = None


def _kind(value: Any) -> str | None:
    kind = type_of(value)
    if not isinstance(kind, str):
        return None
    if kind in _HOSTED or (kind.endswith("_tool_result") and kind != "tool_result"):
        return "a hosted tool"
    return f"a block {kind}"


ResultBlock = Annotated[
    Annotated[TextBlock, Tag("a block text")]
    | Annotated[ImageBlock, Tag("a block image")]
    | Annotated[DocumentBlock, Tag("a block document")]
    | Annotated[SearchResultBlock, Tag("a block search_result")]
    | Annotated[HostedBlock, Tag("a hosted tool")],
    Discriminator(
        _kind,
        custom_error_type="block",
        custom_error_message="Input should be a block of the type 'text', 'image', 'document' or "
        "'search_result'",
    ),
]


class ToolResultBlock(Block):
    """What a call came to."""

    type: Literal["tool_result"] = "tool_result"
    tool_use_id: Annotated[str, Field(min_length=1)]
    content: str | Many[ResultBlock] | None = None
    is_error: bool | None = None


MessageBlock = Annotated[
    Annotated[TextBlock, Tag("a block text")]
    | Annotated[ImageBlock, Tag("a block image")]
    | Annotated[DocumentBlock, Tag("a block document")]
    | Annotated[SearchResultBlock, Tag("a block search_result")]
    | Annotated[ThinkingBlock, Tag("a block thinking")]
    | Annotated[RedactedThinkingBlock, Tag("a block redacted_thinking")]
    | Annotated[ToolUseBlock, Tag("a block tool_use")]
    | Annotated[ToolResultBlock, Tag("a block tool_result")]
    | Annotated[HostedBlock, Tag("a hosted tool")],
    Discriminator(
        _kind,
        custom_error_type="block",
        custom_error_message="Input should be a block of the type 'text', 'image', 'document', "
        "'search_result', 'thinking', 'redacted_thinking', 'tool_use' or 'tool_result'",
    ),
]


class InputMessage(OpenObject):
    """A message of the conversation so far."""

    role: Literal["user", "assistant", "system"]
    content: str | Many[MessageBlock]
