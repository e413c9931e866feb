"""What the grammar of calls as elements allows, its parser reads as right calls."""

from enginebay_parsers import TOOLS
from tests.parsers.grammars.law import assert_forced, assert_free

PREFIX = "]<]minimax[>["


def test_forced() -> None:
    assert_forced(TOOLS["minimax-m3"], [PREFIX, f"{PREFIX}</city>"])


def test_free() -> None:
    tags = [PREFIX, f"{PREFIX}<tool_call>", '\n]<]minimax[>[<invoke name="', f"{PREFIX}</city>"]
    assert_free(TOOLS["minimax-m3"], tags)
