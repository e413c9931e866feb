"""Chats as numbers, by which later turns find their server."""

import base64
from typing import Any

from chat_events import TOOL, request
from enginebay_remote.prompts import prompt_numbers
from hypothesis import given
from hypothesis import strategies as st

from enginebay import GenerationRequest, PrefixAffinity

TEXTS = st.text(st.characters(exclude_categories=()), max_size=300)
PARTS = st.lists(
    TEXTS.map(lambda text: {"type": "text", "text": text})
    | TEXTS.map(lambda url: {"type": "image_url", "image_url": {"url": url}}),
    max_size=3,
)
MESSAGES = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant"])})
    | st.fixed_dictionaries({"role": st.just("user"), "content": TEXTS | st.none() | PARTS}),
    max_size=6,
)


@given(MESSAGES, MESSAGES)
def test_a_later_turn_begins_as_the_one_before(
    before: list[dict[str, Any]], more: list[dict[str, Any]]
) -> None:
    """Whatever is in the messages."""
    numbers = list(prompt_numbers(request(messages=tuple(before))))
    later = list(prompt_numbers(request(messages=(*before, *more))))
    assert later[: len(numbers)] == numbers


def test_about_a_number_a_token() -> None:
    """So that a chat weighs as much against load as a prompt of tokens."""
    text = "The quick brown fox jumps over the lazy dog. " * 100
    numbers = prompt_numbers(request(messages=({"role": "user", "content": text},)))
    assert len(text) / 4 < len(numbers) < len(text) / 4 + 20
    assert prompt_numbers(GenerationRequest(request_id="r", prompt_token_ids=(1, 2))) == (1, 2)


def test_tools_and_media_tell_chats_apart() -> None:
    """Without the bytes of a picture being gone through one by one."""

    def picture(data: bytes) -> list[int]:
        url = "data:image/png;base64," + base64.b64encode(data * 100_000).decode()
        part = {"type": "image_url", "image_url": {"url": url}}
        return list(prompt_numbers(request(messages=({"role": "user", "content": [part]},))))

    assert len(picture(b"a")) < 100
    assert picture(b"a") == picture(b"a") != picture(b"b")
    message = {"role": "user", "content": "x" * 1000}
    with_tools = prompt_numbers(request(messages=(message,), tools=(TOOL,)))
    without = prompt_numbers(request(messages=(message,)))
    affinity: PrefixAffinity[int] = PrefixAffinity()
    affinity.note(affinity.hashes(without), 1)
    assert affinity.matched(affinity.hashes(without))
    assert not affinity.matched(affinity.hashes(with_tools))
    assert not affinity.matched(affinity.hashes(without, "salt"))
