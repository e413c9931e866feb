"""Answers of `/v1/responses`: events about one item after the other, or the response whole."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from time import time
from typing import Any
from uuid import uuid4

from pydantic_core import to_json

from enginebay.apis.compose_items import ItemComposer
from enginebay.apis.items import Item
from enginebay.chat.answer.composer import Frame
from enginebay.chat.schemas.chat_request import ChatCompletionRequest
from enginebay.chat.schemas.usage_bodies import Usage
from enginebay.contract.errors import ServingError
from enginebay.contract.types import ContentDelta, FinishReason, TokenLogprob
from enginebay.serving.answer import Planned
from enginebay_responses.answer_bodies import (
    IncompleteDetails,
    InputTokensDetails,
    OutputTokensDetails,
    ResponseError,
    ResponseObject,
    ResponseUsage,
    Status,
)
from enginebay_responses.items import (
    CallForm,
    CustomCallForm,
    ItemForm,
    TextForm,
    ThoughtForm,
)
from enginebay_responses.request import ReadRequest
from enginebay_responses.request_bodies import ResponsesRequest

Keep = Callable[[dict[str, Any]], None]
"""Stores a response."""

_ENDS: dict[FinishReason, tuple[Status, IncompleteDetails]] = {
    "length": ("incomplete", IncompleteDetails(reason="max_output_tokens")),
    "content_filter": ("incomplete", IncompleteDetails(reason="content_filter")),
    "abort": ("cancelled", IncompleteDetails(reason="cancelled")),
}

_ECHOED = (ResponseObject.model_fields.keys() & ResponsesRequest.model_fields.keys()) - {
    *("temperature", "top_p", "service_tier")
}
"""The fields of a request that its answer tells as they were sent."""


class ResponseComposer(ItemComposer):
    """A response to `request`, with this id; given to `keep` just before its end is told."""

    def __init__(
        self,
        id: str,
        planned: Planned[ChatCompletionRequest],
        request: ReadRequest,
        keep: Keep | None,
    ) -> None:
        super().__init__(id, planned.generation.counter, planned.logprob_form)
        self._tools = request.tools
        self._keep = keep
        self._response = _begun(id, planned, request, stored=keep is not None)
        body = request.body
        self._thoughts = ThoughtForm(
            summarizes=body.summarizes, seals=body.includes_encrypted_thought
        )
        self._forms: dict[int, ItemForm] = {}
        self._ids: list[str] = []
        self._events = 0
        self._error: ServingError | None = None

    def opening(self) -> Iterable[Frame]:
        response = self._response.model_dump()
        for kind in ("response.created", "response.in_progress"):
            yield self._event(kind, {"response": response})

    def opened(self, item: Item) -> Iterable[Frame]:
        form = self._form(item)
        begun = self._as_item(item, form, form.begun(item), "in_progress")
        yield self._event(
            "response.output_item.added", {"output_index": item.number, "item": begun}
        )
        for kind, fields in form.opens(item):
            yield self._item_event(item, kind, fields)

    def gained(
        self, item: Item, text: str, logprobs: Sequence[TokenLogprob], stamp: str | None = None
    ) -> Frame | None:
        delta = self._form(item).delta(text, logprobs)
        if delta is None:
            return None
        kind, fields = delta
        return _frame(kind, stamp or self.stamp(), {**self._place(item), **fields})

    def stamp(self) -> object:
        return self._next_number()

    def closed(self, item: Item) -> Iterable[Frame]:
        for kind, fields in self._form(item).closes(item):
            yield self._item_event(item, kind, fields)
        fields = {"output_index": item.number, "item": self._whole_item(item)}
        yield self._event("response.output_item.done", fields)

    def closing(self) -> Iterable[Frame]:
        response = self._ended()
        status = response["status"]
        kind = "incomplete" if status == "cancelled" else status
        yield self._event(f"response.{kind}", {"response": response})

    def ending(self) -> list[Frame]:
        return [*self._empty_message(), *super().ending()]

    def failed(self, error: ServingError) -> list[Frame]:
        self._error = error
        return super().ending()

    def whole_json(self) -> bytes:
        list(self._empty_message())
        return to_json(self._ended())

    def _empty_message(self) -> Iterator[Frame]:
        """Add the message that an answer has that says nothing."""
        if not self.items.all:
            yield from self._gained(self.items.add(ContentDelta("")))

    def _ended(self) -> dict[str, Any]:
        """The response as it ends, which is kept from now on."""
        end: dict[str, Any] = {
            "output": [self._whole_item(item) for item in self.items.all],
            "usage": _usage(self.counter.usage),
        }
        if self._error is not None:
            error = ResponseError(code="server_error", message=self._error.shown_message)
            end |= {"status": "failed", "error": error}
        elif self.finish_reason in _ENDS:
            status, details = _ENDS[self.finish_reason]
            end |= {"status": status, "incomplete_details": details}
        else:
            end |= {"status": "completed", "completed_at": int(time())}
        response = self._response.model_copy(update=end).model_dump()
        if self._keep:
            self._keep(response)
        return response

    def _form(self, item: Item) -> ItemForm:
        if item.number not in self._forms:
            self._forms[item.number] = self._new_form(item)
        return self._forms[item.number]

    def _new_form(self, item: Item) -> ItemForm:
        if item.kind == "reasoning":
            return self._thoughts
        if item.kind == "call":
            tool = self._tools.called(item.name)
            return CustomCallForm(tool) if tool.custom else CallForm(tool)
        return TextForm(self.form, refusal=item.kind == "refusal")

    def _whole_item(self, item: Item) -> dict[str, Any]:
        last = item is self.items.open
        cut = last and (self._error is not None or self.finish_reason in _ENDS)
        form = self._form(item)
        return self._as_item(item, form, form.whole(item), "incomplete" if cut else "completed")

    def _as_item(
        self, item: Item, form: ItemForm, fields: dict[str, Any], status: str
    ) -> dict[str, Any]:
        kind = fields["type"]
        known = {} if kind == "custom_tool_call" else {"status": status}
        return {"id": self._id_of(item, form), "type": kind, **known, **fields}

    def _id_of(self, item: Item, form: ItemForm) -> str:
        if item.number == len(self._ids):
            self._ids.append(f"{form.prefix}_{uuid4().hex}")
        return self._ids[item.number]

    def _place(self, item: Item) -> dict[str, Any]:
        return {"item_id": self._ids[item.number], "output_index": item.number}

    def _item_event(self, item: Item, kind: str, fields: dict[str, Any]) -> Frame:
        return self._event(kind, {**self._place(item), **fields})

    def _event(self, kind: str, fields: dict[str, Any]) -> Frame:
        return _frame(kind, self._next_number(), fields)

    def _next_number(self) -> int:
        self._events += 1
        return self._events - 1


def _frame(kind: str, number: object, fields: dict[str, Any]) -> Frame:
    return Frame(to_json({"type": kind, "sequence_number": number, **fields}), kind)


def _begun(
    id: str, planned: Planned[ChatCompletionRequest], request: ReadRequest, *, stored: bool
) -> ResponseObject:
    """The response before there is any answer: what was asked for, and what is used for it."""
    sent, params = request.sent, planned.plan.params.params
    as_sent = {name: sent[name] for name in _ECHOED & sent.keys()}
    reasoning = {"effort": None, "summary": None, **sent.get("reasoning", {})}
    text = {"format": {"type": "text"}, **sent.get("text", {})}
    own = {
        "id": id,
        "created_at": planned.head.created,
        "status": "in_progress",
        "model": request.body.model or planned.plan.model.name,
        "output": [],
        "frequency_penalty": params.frequency_penalty,
        "presence_penalty": params.presence_penalty,
        "reasoning": reasoning,
        "store": stored,
        "temperature": params.temperature,
        "text": text,
        "tools": sent.get("tools", []),
        "top_p": params.top_p,
        "metadata": sent.get("metadata", {}),
    }
    return ResponseObject.model_validate({**as_sent, **own})


def _usage(usage: Usage) -> ResponseUsage:
    return ResponseUsage(
        input_tokens=usage.prompt_tokens,
        input_tokens_details=InputTokensDetails(cached_tokens=usage.cached_tokens),
        output_tokens=usage.completion_tokens,
        output_tokens_details=OutputTokensDetails(reasoning_tokens=usage.reasoning_tokens or 0),
        total_tokens=usage.total_tokens,
    )
