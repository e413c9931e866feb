from collections.abc import Iterable, Iterator
from itertools import cycle

import pytest

from enginebay_conformance.endpoint import Endpoint, connect
from tests.support import Server, plugins_with, scripted, scripted_config, serve

CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'


def say(prompt: str, index: int) -> Iterable[str]:
    """Reason about sums, call tools, repeat what is not ASCII, else go on for ever."""
    if "<tools>" in prompt:
        return [f"<think>weather?</think>\n\nLet me see.\n{CALL}\n{CALL}"]
    if "7 + 5" in prompt:
        return ["<think>7 and 5</thi", "nk>\n\n1", "2"]
    if "日本" in prompt:
        return ["日本 ", "Žluť ", "😀"]
    return cycle(["The tra", "in went ", "up", " and down", ". "])


def model(**more: object) -> dict[str, object]:
    return {"name": "tests/scripted", "reasoning": "think", "tools": "hermes", **more}


@pytest.fixture(scope="module")
def scripted_server() -> Iterator[Server]:
    with serve(scripted_config(**model()), plugins_with(scripted=scripted(say))) as server:
        yield server


@pytest.fixture(scope="module")
def endpoint(scripted_server: Server) -> Iterator[Endpoint]:
    with connect(scripted_server.url) as endpoint:
        yield endpoint
