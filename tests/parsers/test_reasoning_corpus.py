"""The same samples for every format between tags: however cut, thought and answer come apart.

`{s}` and `{e}` stand for the start tag and the end tag.
"""

import pytest

from enginebay_parsers import REASONING
from enginebay_parsers.reasoning.tag_pair import TagPair
from tests.parsers.cutting import Joined, content_of, run, text_of

# text, thought, answer
CORPUS: dict[str, tuple[str, str, str]] = {
    # Well-formed.
    "plain": ("{s}\nLet me see.\n{e}\n\nYes.", "\nLet me see.\n", "\n\nYes."),
    "no thought": ("Just the answer.", "", "Just the answer."),
    "empty thought": ("{s}\n\n{e}\n\nYes.", "\n\n", "\n\nYes."),
    "two thoughts": ("{s}a{e}b{s}c{e}d", "a", "b{s}c{e}d"),
    "only thought": ("{s}a{e}", "a", ""),
    "text in front": ("Hm. {s}a{e}b", "a", "Hm. b"),
    "long": ("{s}" + "step " * 40 + "{e}done", "step " * 40, "done"),
    # Truncated.
    "never closed": ("{s}a and so on", "a and so on", ""),
    "cut in the end tag": ("{s}a{e-}", "a{e-}", ""),
    "cut in the start tag": ("a{s-}", "", "a{s-}"),
    "cut behind the start tag": ("{s}", "", ""),
    # Malformed.
    "never opened": ("a{e}b", "", "a{e}b"),
    "opened twice": ("{s}a{s}b{e}c", "ab", "c"),
    "closed twice": ("{s}a{e}b{e}c", "a", "b{e}c"),
    "closed, then opened": ("{e}a{s}b", "", "a{s}b"),
    "tags without text": ("{s}{e}{s}{e}", "", "{s}{e}"),
    # Unicode.
    "letters": ("{s}Grüße, 世界 🙂{e}Ça va? 👩‍👩‍👧", "Grüße, 世界 🙂", "Ça va? 👩‍👩‍👧"),
    "right to left": ("{s}שלום{e}مرحبا", "שלום", "مرحبا"),
    "combining": ("{s}e\u0301{e}a\u0308\u200b", "e\u0301", "a\u0308\u200b"),
    "line separators": ("{s}a\u2028b\x0c{e}c\u2029\r\n", "a\u2028b\x0c", "c\u2029\r\n"),
    # Adversarial.
    "almost a start": ("{s-}{s-}{s}a{e}b", "a", "{s-}{s-}b"),
    "almost an end": ("{s}a{e-}{e-}b{e}c", "a{e-}{e-}b", "c"),
    "quoted": ("{s}I close with `{e}`.{e}Write `{s}`.", "I close with `{e}`.", "Write `{s}`."),
    "quoted and cut": ("{s}a`{e}", "a`", ""),
    "other formats' tags": ("{s}[INST] <|im_end|> </s>{e}<br>", "[INST] <|im_end|> </s>", "<br>"),
    "JSON": ('{s}{"a": "}{"}{e}{"b": [1]}', '{"a": "}{"}', '{"b": [1]}'),
    "brackets": ("{s}a < b > c | d{e}[x](y) << >>", "a < b > c | d", "[x](y) << >>"),
}  # fmt: skip
FORMATS = {name: tags for name, tags in REASONING.items() if isinstance(tags, TagPair)}


def written(text: str, tags: TagPair) -> str:
    for name, tag in (("s", tags.start), ("e", tags.end)):
        text = text.replace(f"{{{name}}}", tag).replace(f"{{{name}-}}", tag[:-1])
    return text


@pytest.mark.parametrize("sample", CORPUS)
@pytest.mark.parametrize("name", FORMATS)
def test_thought_and_answer_come_apart(name: str, sample: str) -> None:
    # ANS-3, TAB-60, TAB-63, TAB-65, TAB-66, TAB-67, VLLM-62
    tags = FORMATS[name]
    text, thought, answer = (written(part, tags) for part in CORPUS[sample])
    if tags.end in tags.closes:  # it ends answers, too
        answer = answer.replace(tags.end, "")

    def parts(pieces: list[str]) -> Joined:
        return run(lambda: tags.parser(inside=False), pieces)

    whole = parts([text])
    assert text_of(whole, "reasoning") == thought
    assert content_of(whole) == answer
    assert parts(list(text)) == whole
    for at in range(1, len(text)):
        assert parts([text[:at], text[at:]]) == whole


@pytest.mark.parametrize("name", FORMATS)
def test_every_character_is_thought_or_not(name: str) -> None:
    tags = FORMATS[name]
    for sample, _, _ in CORPUS.values():
        text = written(sample, tags)
        for pieces in ([text], list(text)):
            parser = tags.parser(inside=False)
            settled: list[tuple[int, bool]] = []
            fed = 0
            for piece in pieces:
                fed += len(piece)
                parser.feed(piece)
                settled += parser.settled()
                assert sum(characters for characters, _ in settled) <= fed
            parser.finish()
            settled += parser.settled()
            assert sum(characters for characters, _ in settled) == len(text)
            marks = "".join("t" if thought else "-" for n, thought in settled for _ in range(n))
            tag = marks[text.find(tags.start) :][: len(tags.start)]
            if text.startswith(tags.start):
                assert set(tag) == {"t"}
