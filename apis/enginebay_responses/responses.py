"""Responses: answered, counted, found again."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal
from uuid import uuid4

from enginebay.chat.answer.running import RunningRequest
from enginebay.contract.errors import InvalidRequestError, ResponseNotFoundError
from enginebay.serving.answer import Answer
from enginebay.serving.serving import CountedPrompt, Serving
from enginebay_responses.answer_bodies import InputItemList
from enginebay_responses.composer import Keep, ResponseComposer
from enginebay_responses.request import ReadRequest, read_request
from enginebay_responses.request_bodies import ResponsesRequest
from enginebay_responses.store.store import ResponseStore, StoredResponse


@dataclass(frozen=True, slots=True)
class Responses:
    """Responses of a server, kept in `store` if there is one.

    Nobody finds what another API key has asked for.
    """

    serving: Serving
    store: ResponseStore | None

    async def read(self, body: ResponsesRequest, running: RunningRequest) -> ReadRequest:
        """What a request comes to, with the answers that it goes on from."""
        return await read_request(body, self.store, running.key_name)

    async def answer(
        self, request: ReadRequest, running: RunningRequest
    ) -> Answer[ResponseComposer]:
        """The answer, which runs when it is read, and is kept when it has ended."""
        id = f"resp_{uuid4().hex}"
        planned = await self.serving.plan_chat(request.chat, running, id)
        return Answer(planned, ResponseComposer(id, planned, request, self._keep(request)))

    async def count(self, request: ReadRequest, running: RunningRequest) -> CountedPrompt:
        """The length of its prompt."""
        return await self.serving.count_prompt(request.chat, running)

    async def find(self, id: str, running: RunningRequest) -> StoredResponse:
        """A response by its id. `ResponseNotFoundError` if it is not kept, or is another key's."""
        found = await self.store.get(id, running.key_name) if self.store else None
        if found is None:
            raise _not_found(id)
        return found

    async def delete(self, id: str, running: RunningRequest) -> None:
        """Delete a response for good; answers that go on from it stay whole."""
        if not (self.store and await self.store.delete(id, running.key_name)):
            raise _not_found(id)

    def _keep(self, request: ReadRequest) -> Keep | None:
        store = self.store
        if store is None or not request.body.store:
            return None

        def keep(response: dict[str, Any]) -> None:
            store.put(
                StoredResponse(
                    id=response["id"],
                    owner=request.owner,
                    response=response,
                    input=list(request.input),
                    parent=request.body.previous_response_id,
                )
            )

        return keep


def page(
    items: Sequence[dict[str, Any]], order: Literal["asc", "desc"], limit: int, after: str | None
) -> InputItemList:
    """The next items of a list, in this order, behind the last one with the id `after`."""
    ordered = list(items) if order == "asc" else list(reversed(items))
    first = 0
    if after is not None:
        places = [at for at, item in enumerate(ordered) if item["id"] == after]
        if not places:
            raise InvalidRequestError(
                f"there is no input item with the id {after[:100]!r}", param="after"
            )
        first = places[-1] + 1
    data = ordered[first : first + limit]
    return InputItemList(
        data=data,
        first_id=data[0]["id"] if data else None,
        last_id=data[-1]["id"] if data else None,
        has_more=first + limit < len(ordered),
    )


def _not_found(id: str) -> ResponseNotFoundError:
    return ResponseNotFoundError(f"there is no response with the id {id[:100]!r}")
