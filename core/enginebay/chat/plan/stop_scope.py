"""The part of an answer's text in which stop strings count."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

from enginebay.chat.plan.rendered_chat import RenderedChat
from enginebay.contract.sampling_params import AsideMarks, StopScope


def stop_scope(chat: RenderedChat, anywhere: tuple[str, ...]) -> StopScope | None:
    """The scope of a chat's stop strings; None if they count everywhere.

    Other stop strings than those `anywhere` count neither in reasoning nor in tool calls.
    """
    if set(chat.params.params.stop) <= set(anywhere):
        return None
    asides = tuple(_asides(chat))
    if not asides:
        return None
    if chat.constraint.form:  # no tag in such an answer is read as one
        asides = tuple(replace(each, comes="first") for each in asides)
    begins: Literal["aside", "before", "answer"] = "before"
    if chat.starts_in_reasoning:
        begins = "aside"
    elif chat.body.continue_final_message or chat.body.response_prefix:
        begins = "answer"
    return StopScope(asides=asides, begins=begins, anywhere=anywhere)


def _asides(chat: RenderedChat) -> Iterator[AsideMarks]:
    reasoning, tools = chat.model.reasoning, chat.model.tools
    if reasoning:
        yield from reasoning.asides()
    for span in tools.spans if tools and chat.recipe.tools else ():
        ends = (span.end,) if span.end else ()
        yield AsideMarks(starts=(span.start,), ends=ends, opens_with=span.opens_with)
