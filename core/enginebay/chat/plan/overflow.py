"""A chat that is too long for its model: its oldest turns are left out until it fits."""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from enginebay.chat.plan.media_marks import MediaItem
from enginebay.chat.plan.media_tokens import tokenize_media
from enginebay.chat.plan.prompt import Prompt
from enginebay.chat.plan.prompt_tokens import CONTEXTS_READ
from enginebay.chat.plan.request_media import RequestMedia
from enginebay.chat.plan.uncut_tokens import uncut_prompt
from enginebay.chat.schemas.chat_request import ChatCompletionRequest
from enginebay.chat.schemas.messages import Message
from enginebay.config.schema import ModelConfig
from enginebay.contract.errors import ContextLengthExceededError, ServingError
from enginebay.contract.media import Media
from enginebay.models.served import ServedModel

logger = logging.getLogger(__name__)

_STAYING = ("system", "developer")
_CHARACTERS = 4  # a token, where nothing better is known
_GUESSES = 3  # before the rest is halved: a guess that is only a little off costs two

Render = Callable[[ChatCompletionRequest, RequestMedia], Awaitable[Prompt]]
"""Makes the prompt of a chat with these media."""


@dataclass(frozen=True, slots=True)
class FittingChat:
    """A chat that fits, or is as short as it gets; `dropped`: how many messages it is without."""

    body: ChatCompletionRequest
    prompt: Prompt
    dropped: int = 0


def drops_oldest(body: ChatCompletionRequest, config: ModelConfig) -> bool:
    """Whether the oldest turns of a chat that is too long go; else it is an error."""
    asked = body.drops_oldest
    return config.overflow == "drop_oldest" if asked is None else asked


def kept_for_answer(context_length: int, max_tokens: int | None) -> int:
    """The tokens that are kept for the answer: `max_tokens`, at most half of the context.

    A quarter of it where there is no such limit.
    """
    if max_tokens is None:
        return max(1, context_length // 4)
    return max(1, min(max_tokens, context_length // 2))


async def fitting_chat(
    body: ChatCompletionRequest,
    model: ServedModel,
    media: RequestMedia,
    render: Render,
    max_tokens: int | None,
) -> FittingChat:
    """The chat without its oldest turns, if all of them do not fit beside the answer.

    The prompt is rendered a few times, however many turns there are. Of media only those are
    decoded that stay, and the one that is too much.
    """
    length = model.info.context_length
    room = length - kept_for_answer(length, max_tokens)
    search = _Search(body, model, media, render, room)
    prompt = await search.prompt(0)
    if await search.fits(0):
        return FittingChat(body, prompt)
    groups = await search.fewest()
    gone = sum(map(len, search.groups[:groups]))
    if not gone:
        return FittingChat(body, prompt)
    shorter, _ = search.without(groups)
    logger.info(
        "%s: the oldest %d of %d messages are left out: the prompt had %s tokens, with room for %d",
        model.name,
        gone,
        len(body.messages),
        search.counts[0] or "far more",
        room,
    )
    return FittingChat(shorter, await search.prompt(groups), gone)


def droppable(messages: Sequence[Message]) -> list[list[int]]:
    """The positions of messages that may be left out, the oldest first: those of a group at once.

    A group is a message of the user and what follows it; behind the user's last message, calls with
    their results. Results never go without their calls, nor these without them. System messages,
    the user's last message and what comes last of all stay.
    """
    said = [at for at, each in enumerate(messages) if each.role == "user"]
    last = said[-1] if said else -1
    groups: list[list[int]] = []
    for at, message in enumerate(messages):
        if message.role in _STAYING or at == last:
            continue
        begins = message.role == "user" if at < last else message.role != "tool"
        if begins or not groups or groups[-1][0] < last < at:
            groups.append([at])
        else:
            groups[-1].append(at)
    if groups and groups[-1][0] > last:  # what is being answered, or gone on with
        groups.pop()
    return _with_results(messages, groups)


def _with_results(messages: Sequence[Message], groups: list[list[int]]) -> list[list[int]]:
    """The groups, joined where a call is in one and its result in another."""
    group_of = {at: number for number, group in enumerate(groups) for at in group}
    callers: dict[str, int] = {}
    joined = list(range(len(groups)))  # the last group that has to go with each
    staying = len(groups)
    for at, message in enumerate(messages):
        for call in message.tool_calls or ():
            callers[call.id or ""] = at
        caller = callers.get(message.tool_call_id or "")
        if message.role != "tool" or caller is None or caller not in group_of:
            continue
        number = group_of[caller]
        if at in group_of:
            joined[number] = max(joined[number], group_of[at])
        else:
            staying = min(staying, number)
    made: list[list[int]] = []
    number = 0
    while number < staying:
        end = number
        while (further := max(joined[number : end + 1])) > end:
            end = further
        if end >= staying:
            break
        made.append([at for group in groups[number : end + 1] for at in group])
        number = end + 1
    return made


class _Search:
    """Finds the fewest groups that have to go.

    `counts`: the tokens of the prompt without so many groups, or fewer than it has where it
    certainly does not fit; None for more than can be counted.
    """

    def __init__(
        self,
        body: ChatCompletionRequest,
        model: ServedModel,
        media: RequestMedia,
        render: Render,
        room: int,
    ) -> None:
        self.groups = droppable(body.messages)
        self.counts: dict[int, int | None] = {}
        self._body = body
        self._model = model
        self._media = media
        self._render = render
        self._room = room
        self._prompts: dict[int, Prompt] = {}
        self._sizes: dict[str, int] = {}  # tokens of media, by their keys
        sizes = [sum(_characters(body.messages[at]) for at in group) for group in self.groups]
        self._gone = [0, *accumulate(sizes)]  # characters

    async def fewest(self) -> int:
        """The fewest groups without which it fits; all of them if it never does."""
        low, high, tries = 0, len(self.groups), 0
        while high - low > 1:
            middle = self._guess(low) if tries < _GUESSES else (low + high) // 2
            middle = min(max(middle, low + 1), high - 1)
            if await self.fits(middle):
                high = middle
            else:
                low = middle
            tries += 1
        return high

    async def fits(self, groups: int) -> bool:
        """Whether there is room for the chat without so many of its oldest groups."""
        if groups not in self.counts:
            self.counts[groups] = await self._count(await self.prompt(groups))
        count = self.counts[groups]
        return count is not None and count <= self._room

    async def prompt(self, groups: int) -> Prompt:
        """The prompt of the chat without so many of its oldest groups."""
        if groups not in self._prompts:
            body, kept = self.without(groups)
            places = {f"messages[{at}]": f"messages[{was}]" for at, was in enumerate(kept)}
            try:
                prompt = await self._render(body, self._media_of(places))
            except ServingError as error:
                error.param = error.param and _renamed(error.param, places)
                raise
            self._prompts[groups] = replace(
                prompt,
                ignored=tuple(_renamed(name, places) for name in prompt.ignored),
                media_params=tuple(_renamed(name, places) for name in prompt.media_params),
            )
        return self._prompts[groups]

    def without(self, groups: int) -> tuple[ChatCompletionRequest, list[int]]:
        """The chat without so many groups, and where its messages were."""
        gone = {at for group in self.groups[:groups] for at in group}
        messages = self._body.messages
        kept = [at for at in range(len(messages)) if at not in gone]
        shorter = [messages[at] for at in kept]
        return (self._body.model_copy(update={"messages": shorter}) if gone else self._body), kept

    def _media_of(self, places: Mapping[str, str]) -> RequestMedia:
        """The media of messages that are now at other places."""
        now = {was: at for at, was in places.items()}
        items = self._media.items
        return RequestMedia(
            tuple(
                MediaItem(i.media, _renamed(i.param, now))
                for i in items
                if _message(i.param) in now
            ),
            tuple(_renamed(name, now) for name in self._media.ignored if _message(name) in now),
        )

    async def _count(self, prompt: Prompt) -> int | None:
        """Its tokens; of more than fit, as many as show that."""
        try:
            if not prompt.pieces:
                return len(await uncut_prompt(self._model, prompt, "messages"))
            texts = tuple(piece for piece in prompt.pieces if isinstance(piece, str))
            total = await self._tokens(replace(prompt, pieces=texts))
            items = [piece for piece in prompt.pieces if isinstance(piece, Media)]
            for item, param in zip(reversed(items), reversed(prompt.media_params), strict=True):
                if total > self._room:
                    break
                alone = replace(
                    prompt, pieces=(item,), media_params=(param,), add_special_tokens=False
                )
                if item.key not in self._sizes:
                    self._sizes[item.key] = await self._tokens(alone)
                total += self._sizes[item.key]
        except ContextLengthExceededError:
            return None
        return total

    async def _tokens(self, prompt: Prompt) -> int:
        tokenized = await tokenize_media(self._model, prompt, contexts=CONTEXTS_READ)
        return len(tokenized.token_ids)

    def _guess(self, low: int) -> int:
        """How many groups may have to go, by what is known without `low` of them."""
        count, whole = self.counts[low], self.counts[0]
        if count is None:
            text = sum(map(_characters, self._body.messages)) - self._gone[low]
            count, ratio = text // _CHARACTERS, 1 / _CHARACTERS
        elif low and whole:
            ratio = (whole - count) / max(1, self._gone[low])
        else:
            ratio = count / max(1, sum(map(_characters, self._body.messages)))
        enough = (
            number
            for number in range(low + 1, len(self.groups))
            if count - (self._gone[number] - self._gone[low]) * ratio <= self._room
        )
        return next(enough, len(self.groups))


_FRAME = 16  # characters that a template puts around a message, more or less


def _characters(message: Message) -> int:
    content = message.content or ""
    texts = [content] if isinstance(content, str) else [part.text or "" for part in content]
    texts += [call.function.arguments for call in message.tool_calls or ()]
    return _FRAME + sum(map(len, texts))


def _message(path: str) -> str:
    """The message that a path leads into."""
    return path.partition("]")[0] + "]"


def _renamed(path: str, places: Mapping[str, str]) -> str:
    """A path into a chat, as one into a chat whose messages are at other places."""
    message = _message(path)
    return places.get(message, message) + path[len(message) :] if path.startswith(message) else path
