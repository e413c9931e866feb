"""Calls that open with a special token that other things have too, or behind one."""

import re

import pytest

from enginebay import Matcher
from enginebay_parsers import TOOLS
from tests.parsers.grammars.law import SCHEMAS, free
from tests.parsers.grammars.walk import Walker

DSML = ("｜DSML｜",)
KIMI = ("<|open|>", "<|close|>", "<|sep|>")
OPENED = "Hi <｜DSML｜function_calls>\n<｜DSML｜"
NOW = 'invoke name="now">\n</｜DSML｜invoke>\n</｜DSML｜function_calls>\nbye'


def accepted(name: str, tags: tuple[str, ...], text: str, *, special: bool) -> tuple[str, Matcher]:
    """As much of a text as an answer may have that may call."""
    walker = Walker(tags, special=special)
    matcher = walker.compiler.matcher(free(TOOLS[name], SCHEMAS, parallel=True))
    ids = {token.decode(errors="replace"): i for i, token in enumerate(walker._tokens)}
    taken = ""
    for piece in re.split(f"({'|'.join(map(re.escape, tags))})", text):
        for part in [piece] if piece in tags else piece:
            tokens = [ids[part]] if part in ids else list(part.encode())
            if not all(map(matcher.accept, tokens)):
                return taken, matcher
            taken += part
    return taken, matcher


# TAB-58
@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize(
    ("name", "tags", "text", "allowed"),
    [
        ("deepseek-v3.2", DSML, f"{OPENED}bad", OPENED),
        ("deepseek-v3.2", DSML, f"{OPENED}{NOW}", None),
        ("kimi-k3", KIMI, "<|open|>response<|sep|>Hi<|close|>response<|sep|>", None),
        ("kimi-k3", KIMI, "<|open|>tools<|sep|>x", "<|open|>tools<|sep|>"),
        ("qwen3-coder", ("<tool_call>",), "Qwen writes `<tool_call>` then", None),
        ("qwen3-coder", ("<tool_call>",), "<tool_call>\n<b", "<tool_call>\n<"),
    ],
)
def test_only_a_call_is_held_to_the_schemas(
    name: str, tags: tuple[str, ...], text: str, allowed: str | None, special: bool
) -> None:
    taken, matcher = accepted(name, tags, text, special=special)
    assert taken == (text if allowed is None else allowed)
    assert matcher.satisfied == (allowed is None)
