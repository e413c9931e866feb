"""Promise 11 of `check_backend`: an engine that breaks it is told so."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from enginebay import Delta, GenerationRequest, InvalidRequestError, Media, MediaPrompt, MediaSpan
from enginebay.testing import ScriptedEngine, check_backend
from enginebay.testing.media import sample
from enginebay.testing.probe import BrokenPromiseError


class Seeing(ScriptedEngine):
    def __init__(self) -> None:
        super().__init__(["some ", "words ", "to ", "say ", "again"], media=["image", "audio"])

    def tokenize_media(
        self, pieces: Sequence[str | Media], *, add_special_tokens: bool
    ) -> MediaPrompt:
        return self.changed(super().tokenize_media(pieces, add_special_tokens=add_special_tokens))

    def changed(self, prompt: MediaPrompt) -> MediaPrompt:
        return prompt


class Reversed(Seeing):
    def changed(self, prompt: MediaPrompt) -> MediaPrompt:
        return replace(prompt, spans=prompt.spans[::-1])


class Exchanged(Seeing):
    """The items are mixed up."""

    def changed(self, prompt: MediaPrompt) -> MediaPrompt:
        items = [span.media for span in reversed(prompt.spans)]
        spans = (replace(s, media=m) for s, m in zip(prompt.spans, items, strict=True))
        return replace(prompt, spans=tuple(spans))


class Empty(Seeing):
    def changed(self, prompt: MediaPrompt) -> MediaPrompt:
        return replace(prompt, spans=tuple(replace(span, tokens=0) for span in prompt.spans))


class TooLong(Seeing):
    def changed(self, prompt: MediaPrompt) -> MediaPrompt:
        return replace(prompt, token_ids=prompt.token_ids[: prompt.spans[-1].end - 1])


class Forgetful(Seeing):
    """Other tokens the second time."""

    times = 0

    def changed(self, prompt: MediaPrompt) -> MediaPrompt:
        self.times += 1
        return replace(prompt, token_ids=(*prompt.token_ids, self.times))


class Credulous(Seeing):
    """A placeholder in plain text stands for an item."""

    def changed(self, prompt: MediaPrompt) -> MediaPrompt:
        text = self.detokenize(prompt.token_ids)
        if "<image>" in text:
            span = MediaSpan(text.index("<image>"), 7, sample("image", 1))
            return replace(prompt, spans=(span,))
        return prompt


class Unnumbered(Seeing):
    """Does not say which item cannot be read."""

    def tokenize_media(
        self, pieces: Sequence[str | Media], *, add_special_tokens: bool
    ) -> MediaPrompt:
        try:
            return super().tokenize_media(pieces, add_special_tokens=add_special_tokens)
        except InvalidRequestError as error:
            raise InvalidRequestError(error.message) from error


class Lenient(Seeing):
    """Takes garbage."""

    def tokenize_media(
        self, pieces: Sequence[str | Media], *, add_special_tokens: bool
    ) -> MediaPrompt:
        good = [
            replace(piece, data=sample(piece.kind, 1).data)
            if isinstance(piece, Media) and piece.data == b"garbage"
            else piece
            for piece in pieces
        ]
        return super().tokenize_media(good, add_special_tokens=add_special_tokens)


class Confused(Seeing):
    """Finds every prompt with media in its cache."""

    def step(self) -> object:
        for request_id, item in super().step():
            if isinstance(item, Delta) and item.prefill_tokens:
                cached = item.prefill_tokens - 1
                item = replace(item, prefill_tokens=1, cached_tokens=cached)
            yield request_id, item


class Speaking(Seeing):
    """Says other words of an item where it is `wrong` about it, as each kind of it defines."""

    def add_request(self, request: GenerationRequest) -> None:
        wrong = bool(request.media) and self.wrong(request)
        self._script = lambda prompt, index: ["other words"] if wrong else ["some ", "words"]
        super().add_request(request)

    def wrong(self, request: GenerationRequest) -> bool:
        raise NotImplementedError


class Overwritten(Speaking):
    """What it keeps of an item is overwritten by the next one's."""

    def __init__(self) -> None:
        super().__init__()
        self.known: list[str] = []

    def wrong(self, request: GenerationRequest) -> bool:
        key = request.media[0].media.key
        wrong = key in self.known[:-1] and key != self.known[-1]
        self.known.append(key)
        return wrong


class Mixed(Speaking):
    """Gives a prompt the item of another that is running, for which it waits a while."""

    held = 0

    def wrong(self, request: GenerationRequest) -> bool:
        self.held = 100
        return any(c.request.media not in ((), request.media) for c in self._choices)

    def step(self) -> object:
        self.held -= 1
        return () if self.held > 0 else super().step()


async def test_a_scripted_engine_keeps_it() -> None:
    await check_backend(Seeing)


@pytest.mark.parametrize(
    ("create", "words"),
    [
        (Reversed, "the one before|another's end|in order"),
        (Exchanged, "not those of the items, in order"),
        (Empty, "a span of 0 tokens"),
        (TooLong, "ends behind the prompt"),
        (Forgetful, "the second time"),
        (Credulous, "as plain text stands for an item"),
        (Unnumbered, "have the param None"),
        (Lenient, "were accepted"),
        (Confused, "are cached of another item's prompt"),
        (Overwritten, "says other things the second time"),
        (Mixed, "say other things together than alone"),
    ],
)
async def test_breaking_it(create: Callable[[], ScriptedEngine], words: str) -> None:
    # MEDIA-40 MM-1
    with pytest.raises(BrokenPromiseError, match=words) as broken:
        await check_backend(create)
    assert all(line.startswith("promise 11") for line in str(broken.value).splitlines())


async def test_a_plugin_without_it_gets_no_items() -> None:
    # MEDIA-40
    await check_backend(lambda: ScriptedEngine(["some ", "words ", "to ", "say ", "again"]))
    with pytest.raises(InvalidRequestError):
        ScriptedEngine(["x"]).tokenize_media([sample("image", 1)], add_special_tokens=True)
