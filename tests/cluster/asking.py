"""What the tests of clusters ask servers for."""

import asyncio
from collections.abc import Sequence
from typing import Any

from openai import APIError, AsyncOpenAI


async def said(
    openai: AsyncOpenAI,
    content: str,
    tokens: int,
    model: str = "talker",
    begun: asyncio.Event | None = None,
) -> tuple[str, APIError | None]:
    """What was streamed, and the error that it ended with; `begun`: set by its first text."""
    text = ""
    try:
        stream = await openai.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": content}],
            stream=True,
            max_tokens=tokens,
        )
        async for chunk in stream:
            if chunk.choices:
                text += chunk.choices[0].delta.content or ""
            if text and begun:
                begun.set()
    except APIError as error:
        return text, error
    return text, None


def whole(tokens: int) -> str:
    """What the talker says in so many tokens."""
    return ("ba" * tokens)[:tokens]


async def chat(openai: AsyncOpenAI, name: str, turns: int, tokens: int = 20) -> list[Any]:
    """The usage of each turn of a chat whose messages are long."""
    messages: list[Any] = []
    usages = []
    for turn in range(turns):
        messages.append({"role": "user", "content": f"{name} asks {turn}. " * 60})
        answer = await openai.chat.completions.create(
            model="talker", messages=messages, max_tokens=tokens
        )
        usages.append(answer.usage)
        messages.append({"role": "assistant", "content": answer.choices[0].message.content})
    return usages


async def chats(openai: AsyncOpenAI, number: int, turns: int) -> Sequence[list[Any]]:
    """The same of several chats at once."""
    return await asyncio.gather(*(chat(openai, f"{i}{i}{i}", turns) for i in range(number)))
