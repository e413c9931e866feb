"""Stops that follow from the chat template, in addition to the end-of-sequence token.

Many models have an end-of-sequence token other than their template's end of turn: tuned on ChatML,
but with the base model's `</s>`. They would write `<|im_end|>` and continue.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import takewhile

from enginebay.contract.backend import Backend
from enginebay.contract.sampling_params import SamplingParams
from enginebay.contract.types import ModelInfo
from enginebay.models.template.features import TemplateFeatures
from enginebay.models.template.probe_messages import Message, reasoning

_ASKED, _ANSWER, _NEXT, _THOUGHT = "useralpha", "asstbeta", "userdelta", "thoughtgamma"
_MARKER = re.compile(r"<[|｜]?[^<>\s]{1,40}>")


@dataclass(frozen=True, slots=True)
class TurnEnd:
    """Stop strings and stop tokens of a template."""

    strings: tuple[str, ...] = ()
    token_ids: tuple[int, ...] = ()

    def added_to(self, sampling: SamplingParams) -> SamplingParams:
        """`sampling` with these stops added, unless it ignores the end of a turn."""
        if sampling.ignore_eos or not (self.strings or self.token_ids):
            return sampling
        return replace(
            sampling,
            stop=tuple(dict.fromkeys((*sampling.stop, *self.strings))),
            stop_token_ids=tuple(dict.fromkeys((*sampling.stop_token_ids, *self.token_ids))),
        )


async def find_turn_end(
    stop_strings: Iterable[str], markers: Iterable[str | None], info: ModelInfo, backend: Backend
) -> TurnEnd:
    """Stops that templates declare, and their end-of-turn markers.

    A single-token marker stops as a token, so that text which merely mentions it does not.
    """
    strings, token_ids = list(stop_strings), list[int]()
    for marker in dict.fromkeys(filter(None, markers)):
        if marker == info.special_tokens.get("eos_token"):
            continue
        tokens = await backend.tokenize(marker, add_special_tokens=False)
        if len(tokens) == 1:
            token_ids += tokens
        elif not marker.startswith("</"):  # XML that answers may have as well
            strings.append(marker)
    return TurnEnd(tuple(dict.fromkeys(strings)), tuple(token_ids))


def turn_end_marker(features: TemplateFeatures) -> str | None:
    """The marker after the last answer; None without one, or if it also occurs inside a turn."""
    asked = features.says("user", _ASKED)
    answer = features.says("assistant", _ANSWER)
    behind = _behind(_ANSWER, features, asked, answer)
    bare = features.render([asked, answer], add_generation_prompt=False) or behind
    markers: list[str] = [  # not of tools after the messages
        marker for marker in _MARKER.findall(behind) if marker in bare.rpartition(_ANSWER)[2]
    ]
    opened = _behind(_ASKED, features, asked, add_generation_prompt=True)
    opened = opened.removeprefix(_behind(_ASKED, features, asked))
    if not opened and len(markers) > 1:
        return None  # a template that opens the next turn whether it is asked to or not
    markers = list(takewhile(lambda marker: marker not in opened, markers))
    following = _behind(_ANSWER, features, asked, answer, features.says("user", _NEXT))
    if not markers or markers[-1] not in following.partition(_NEXT)[0]:
        return None
    thinking = features.says("assistant", _ANSWER, **reasoning(_THOUGHT))
    question = _behind(_ASKED, features, asked).count(markers[-1])
    for message in (thinking, features.known_call):
        if _behind(_ASKED, features, asked, message).count(markers[-1]) > question + 1:
            return None
    return markers[-1]


def _behind(
    word: str,
    features: TemplateFeatures,
    *messages: Message,
    add_generation_prompt: bool = False,
) -> str:
    """What the template writes after a word of these messages; empty if it drops the word."""
    text = features.render(
        messages, tools=features.trial_tools, add_generation_prompt=add_generation_prompt
    )
    return text.rpartition(word)[2] if text and word in text else ""
