"""The oldest of a request's input left out, for it to fit."""

from collections.abc import Sequence
from dataclasses import replace

from core.apis.responses.response_request import ReadRequest, chat_names
from core.chat.answer.running import RunningRequest
from core.chat.plan.prompt_tokens import kept_tokens
from core.chat.plan.uncut_tokens import uncut_prompt
from core.chat.schemas.chat_request import ChatCompletionRequest
from core.chat.schemas.messages import Message
from core.contract.errors import ContextLengthExceededError
from core.contract.sampling_params import SamplingParams
from core.models.served import ServedModel
from core.serving.asked import Asked
from core.serving.serving import Serving

_STAYING = ("system", "developer")


async def fitted(
    serving: Serving, request: ReadRequest, running: RunningRequest
) -> tuple[Asked[ChatCompletionRequest], int]:
    """The chat without its oldest messages, if all of them do not fit; and the tokens left out.

    Instructions and the last message of the user stay, and results of calls with their calls.
    """
    asked = request.chat
    with asked.names.in_errors():
        model = await serving.leases.generating(running, asked.body.model)
        if model.info.chats:
            return replace(asked, ignored=(*asked.ignored, "truncation")), 0
        tokens = await _tokens(serving, asked.body, model)
        if tokens is not None and tokens < model.info.context_length:
            return asked, 0
        messages = asked.body.messages
        groups = droppable(messages)
        low, high = 0, len(groups)
        room = _room(asked.body, model)
        while low < high:
            middle = (low + high) // 2
            count = await _tokens(serving, _without(asked.body, groups[: middle + 1]), model)
            if count is not None and count <= room:
                high = middle
            else:
                low = middle + 1
        gone = groups[: low + 1]
        body = _without(asked.body, gone)
        left = await _tokens(serving, body, model)
        if left is None:
            return asked, 0  # which is too long as it is
        names = chat_names(request.history, _kept(len(messages), gone))
        return replace(asked, body=body, names=names), (tokens or left) - left


def droppable(messages: Sequence[Message]) -> list[range]:
    """The messages that may be left out, the oldest first: those of a range all at once.

    Whole turns up to the last message of the user, behind it calls with their results.
    """
    said = [at for at, each in enumerate(messages) if each.role == "user"]
    last = said[-1] if said else -1
    groups: list[range] = []
    begin = None
    for at, message in enumerate(messages):
        ends = at <= last and message.role == "user"
        ends |= at > last and message.role != "tool"
        if begin is not None and (ends or message.role in _STAYING):
            groups.append(range(begin, at))
            begin = None
        if begin is None and at != last and message.role not in _STAYING:
            begin = at
    return groups


def _kept(count: int, gone: Sequence[range]) -> list[int]:
    left_out = {at for group in gone for at in group}
    return [at for at in range(count) if at not in left_out]


def _without(body: ChatCompletionRequest, gone: Sequence[range]) -> ChatCompletionRequest:
    kept = _kept(len(body.messages), gone)
    return body.model_copy(update={"messages": [body.messages[at] for at in kept]})


async def _tokens(serving: Serving, body: ChatCompletionRequest, model: ServedModel) -> int | None:
    """How many a chat's prompt has; None for more than can be counted."""
    prompt = await serving.planner.prompt(body, model)
    try:
        return len(await uncut_prompt(model, prompt, "messages"))
    except ContextLengthExceededError:
        return None


def _room(body: ChatCompletionRequest, model: ServedModel) -> int:
    """The most tokens that leave enough for the answer."""
    cut = body.model_copy(update={"truncate_prompt_tokens": -1})
    return kept_tokens(cut, model, SamplingParams(max_tokens=body.max_tokens)) or 1
