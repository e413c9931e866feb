"""A model that thinks a little and then tells a story, slowly and for ever."""

import re
import time
from collections.abc import Iterator
from itertools import count

from enginebay import BackendRegister, BackendSettings, EngineBackend, hookimpl
from enginebay.testing import ScriptedEngine

PAUSE = 0.04  # seconds a word
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
)


THOUGHT = "I need a hero, a road, a river.\n</think>\n"
TASK = '{"title": "The ferryman", "tags": ["story"], "follow_ups": ["Who was he?"]}'


def story(prompt: str, index: int) -> Iterator[str]:
    """A thought, unless an answer is continued, and then a numbered story without an end.

    Open WebUI's requests for a title, tags or follow-ups get them.
    """
    if prompt.endswith("<|im_start|>assistant\n"):
        yield "<think>\n"
    if prompt.endswith(("<|im_start|>assistant\n", "<think>\n")):
        yield from slowly(THOUGHT)
    if "### Task:" in prompt:
        yield TASK
        return
    for day in count(1):
        yield from slowly(f"On day {day} the ferryman rowed across and told his tale.\n")


def slowly(text: str) -> Iterator[str]:
    """Its words, one after the other."""
    for word in re.findall(r"\S+\s*", text):
        time.sleep(PAUSE)
        yield word


@hookimpl
def register_backends(register: BackendRegister) -> None:
    def create(settings: BackendSettings) -> EngineBackend:
        return EngineBackend(
            lambda: ScriptedEngine(story, context_length=32768, chat_template=CHAT_TEMPLATE)
        )

    register("storyteller", create)
