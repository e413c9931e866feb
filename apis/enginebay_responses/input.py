"""The items of a request: what it refers to, and how its own are kept."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from enginebay.config.neutral_values import asks_for_nothing
from enginebay.contract.errors import (
    InvalidRequestError,
    PreviousResponseNotFoundError,
    ResponseNotFoundError,
    UnsupportedParameterError,
)
from enginebay_responses.item_bodies import (
    ITEM,
    HostedItem,
    Item,
    ItemReference,
    MessageItem,
)
from enginebay_responses.request_bodies import ResponsesRequest
from enginebay_responses.store.store import ResponseStore, StoredResponse

_PREFIXES = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
}
_NO_EFFECT = frozenset(("agent", "async", "caller", "created_by", "internal_chat_message_metadata"))
"""Keys that clients copy from what OpenAI's servers send."""


def new_id(kind: str) -> str:
    """A unique id for an item of this type."""
    return f"{_PREFIXES.get(kind, 'item')}_{uuid4().hex}"


NO_COMPACTION = (
    "this server does not compact conversations. Send an ordinary request that asks for a summary, "
    "as Codex does for a provider in its config"
)


@dataclass(frozen=True, slots=True)
class Placed:
    """An item, where in the request it is said, and whether it is the request's own."""

    item: Item
    place: str
    own: bool = True


async def all_items(
    body: ResponsesRequest, store: ResponseStore | None, owner: str | None
) -> list[Placed]:
    """The items of the answers before this request, and its own behind them.

    Those that are only referred to are what they refer to.
    """
    before = await _chain(body.previous_response_id, store, owner)
    items = [
        Placed(ITEM.validate_python(item), "previous_response_id", own=False)
        for stored in before
        for item in (*stored.input, *stored.response["output"])
    ]
    if isinstance(body.input, str) or not (body.input or items):
        return [*items, Placed(MessageItem(role="user", content=body.input or ""), "input")]
    referred = await _referred(body.input, store, owner)
    for position, item in enumerate(body.input):
        item = referred[item.id] if isinstance(item, ItemReference) else item
        if item.type == "compaction_trigger":  # an ordinary answer would end the client's turn
            raise UnsupportedParameterError(NO_COMPACTION, param=f"input[{position}]")
        items.append(Placed(item, f"input[{position}]"))
    return items


async def _chain(
    id: str | None, store: ResponseStore | None, owner: str | None
) -> list[StoredResponse]:
    if id is None:
        return []
    if store is None:
        raise InvalidRequestError(
            "this server stores no responses: send all items as input", param="previous_response_id"
        )
    chain = await store.chain(id, owner)
    if chain is None:
        raise PreviousResponseNotFoundError(
            f"there is no previous response with the id {id[:100]!r}", param="previous_response_id"
        )
    return chain


async def _referred(
    items: Sequence[Item], store: ResponseStore | None, owner: str | None
) -> dict[str, Item]:
    """The stored items that others refer to, by id; each at most once, however large it is."""
    places: dict[str, str] = {}
    for position, item in enumerate(items):
        if isinstance(item, ItemReference):
            place = f"input[{position}].id"
            if places.setdefault(item.id, place) != place:
                raise InvalidRequestError(
                    f"the item with the id {item.id[:100]!r} is in the input twice", param=place
                )
    found = await store.items(places, owner) if store and places else {}
    for id, place in places.items():
        if id not in found:
            raise ResponseNotFoundError(
                f"there is no stored item with the id {id[:100]!r}", param=place
            )
    return {id: ITEM.validate_python(item) for id, item in found.items()}


def unread(items: Sequence[Placed]) -> list[str]:
    """Places of own items that mean nothing here, and of unknown keys, of each the first one."""
    names: list[str] = []
    known = set(_NO_EFFECT)
    for placed in items:
        if isinstance(placed.item, HostedItem):
            names.append(placed.place)
            continue
        for key, value in (placed.item.model_extra or {}).items():
            if key not in known and not asks_for_nothing(key, value):
                known.add(key)
                names.append(f"{placed.place}.{key}")
    return names


def kept_form(item: Item) -> dict[str, Any]:
    """An item as it is listed, with an id; a message's content is a list of parts."""
    sent = item.model_dump(exclude_unset=True)
    kind = item.type
    form = {**sent, "id": item.id or new_id(kind), "type": kind}
    if isinstance(item, MessageItem):
        form["status"] = item.status or "completed"
        if isinstance(item.content, str):
            part = "output_text" if item.role == "assistant" else "input_text"
            form["content"] = [{"type": part, "text": item.content}]
            if part == "output_text":
                form["content"][0]["annotations"] = []
    return form
