"""Regular expressions, grammars and choices as clients send them."""

import re
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginebay.contract.grammar import Text
from enginebay.grammar.check import check_grammar
from enginebay.grammar.source import choices, grammar_source, regular_expression
from tests.grammar.walks import accepts, texts
from tests.support import REPOSITORY

GRAMMARS = REPOSITORY / "benchmarks/.peers/llama-server/source/vendor/llama.cpp/grammars"


@pytest.mark.parametrize(
    ("pattern", "same"),
    [
        (r"^\d{3}-\d{4}$", r"[0-9]{3}-[0-9]{4}"),
        (r"^a$|^bc$", "a|bc"),
        (r"\A(?:yes|no)\Z", "yes|no"),
        (r"(?P<year>\d\d)/(?<day>\d)", r"\d\d/\d"),
        (r"{\s\"a\": \d}", r"\{\s\"a\": \d\}"),
        (r"[[\]/]{2,}", r"[\[\]/]{2,}"),
        (r"a{}b", r"a\{\}b"),
        (r"\w+\$\^\.", r"[0-9A-Za-z_]+\$\^\."),
        (r"[a&&b]x\/", "[a&b]x/"),
        ("\\x41\\u00e9\n", "Aé\n"),
    ],
)
def test_a_regular_expression_means_what_its_sender_means(pattern: str, same: str) -> None:
    grammar = regular_expression(pattern)
    check_grammar(grammar)
    found = texts(grammar, range(20))
    assert found
    assert [text for text in found if not re.fullmatch(same, text)] == []


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("a(?=b)", "lookahead is not supported"),
        ("(?<!a)b", "lookbehind is not supported"),
        (r"(a)\1", "a backreference is not supported"),
        (r"(?P<a>a)(?P=a)", "a backreference is not supported"),
        (r"\bword", "a word boundary is not supported"),
        ("a^b", "the anchor ^ is not at the start or end of the pattern"),
        ("a{,3}", "write {0,3}"),
        ("a\\", "cannot end with a backslash"),
        ("(a", "unclosed group"),
        (r"[^\s\S]", "nothing can satisfy it"),
    ],
)
def test_what_no_grammar_can_do_is_refused(pattern: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        check_grammar(regular_expression(pattern))


@given(st.text())
def test_no_pattern_does_worse_than_a_value_error(pattern: str) -> None:
    with suppress(ValueError):
        check_grammar(regular_expression(pattern))


@given(st.text(alphabet='rot:= "[]()|*+?{}<>!\\/^-.,\n#a0x', max_size=60))
def test_no_grammar_does_worse_than_a_value_error(source: str) -> None:
    for text in (source, f"root ::= {source}", f"start: {source}"):
        with suppress(ValueError):
            check_grammar(grammar_source(text))


@pytest.mark.parametrize(
    ("source", "valid", "invalid"),
    [
        (r'root ::= "\x41\u00e9\U0001F600\"/\\"', ['Aé😀"/\\'], ["A"]),
        (r"root ::= [\x00-\x1F\]/^-]+", ["]/^-\n\x01"], ["a", ""]),
        (r"root ::= [^\n-]{2,3} # two or three", ["ab", "a\rc"], ["a", "abcd", "a-", "a\n"]),
        ('root ::= digits "0"\ndigits ::= [0-9]+', ["120", "00"], ["0", "12"]),
        ('root ::= [a-z]+ | "if" " "', ["if", "ifx", "if "], ["if  "]),
        ('root ::= root "x" | ""', ["", "xx"], ["y"]),
        (
            'root ::= a-b fooBar foo_bar\na-b ::= .\nfooBar ::= "f"\nfoo_bar ::= "g"?',
            ["\nf"],
            ["f"],
        ),
        ('root ::= (\n  "a" | # one\n  "b"\n){2}\n', ["ab"], ["a"]),
        ("root ::= " + '("b" ' * 30 + '"a"' + ")?" * 30, ["b" * 30 + "a", ""], ["ba"]),
        ('root ::= "a" ("b" | "c" "d")+ | ""', ["abcd", "", "ab"], ["acb", "a"]),
        ('start: A "x"\nA: /[ab]{1,4}/', ["abx"], ["x"]),
        ('start: "n" %json {"type": "integer", "minimum": 3}', ["n3"], ["n2"]),
    ],
)
def test_a_grammar_is_read_as_it_is_meant(
    source: str, valid: list[str], invalid: list[str]
) -> None:
    grammar = grammar_source(source)
    check_grammar(grammar)
    assert [text for text in valid if not accepts(grammar, text)] == []
    assert [text for text in invalid if accepts(grammar, text)] == []


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ('root ::= "a', "line 1, column 10: a literal that is not closed"),
        ('root ::= "a"\n  "b" [', "line 2, column 3"),
        ('root ::= "a" [', "line 1, column 14: an empty or unclosed character class"),
        ('root ::= "\\q"', "line 1, column 11: an unknown escape"),
        ('root ::= "a" | (\n"b"', "line 2, column 4: Expected ')'"),
        ("root ::= <think>", "line 1, column 10: tokens in a grammar"),
        ("root ::= missing", "line 1, column 10: rule missing is not defined"),
        (
            'root ::= "b" [b] b-c # b\nb-c ::= (b)?',
            "line 2, column 10: rule b is not defined",
        ),
        ('root ::= "a"\nroot ::= "b"', "line 2, column 1: rule root is defined twice"),
        ('other ::= "a"', "rule root is not defined"),
        ('start: "a"\n  | (', "line 2, column 6"),
        ("start: /a(?=b)/", "look-around"),
        ('start: %json {"not": {}}', "line 1: %json: not is not supported, at /not"),
        ('start: "a"\nx: %json {"x-guidance": {"lenient": true}}', "line 2: %json: x-guidance"),
        ("root ::= " + "(" * 5000, "nested too deeply"),
        ("root ::= " + '("b" ' * 3000 + '"a"' + ")*" * 3000, "nested too deeply"),
        ("root ::= r0" + "".join(f"\nr{i} ::= r{i + 1}" for i in range(3000)), "rule"),
        ("start: start", "nothing can satisfy it"),
        ('start: a::0\na::_: "x" a::set_bit(0)', "panic"),
        ("", "grammar"),
    ],
)
def test_a_grammar_that_cannot_be_read_says_where(source: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        check_grammar(grammar_source(source))
    assert "backtrace" not in str(caught.value)


@pytest.mark.skipif(not GRAMMARS.is_dir(), reason="no llama.cpp to compare with")
def test_the_grammars_of_llama_cpp_compile() -> None:
    paths = sorted(Path(GRAMMARS).glob("*.gbnf"))
    assert paths
    for path in paths:
        check_grammar(grammar_source(path.read_text()))


def test_choices_are_texts_not_patterns() -> None:
    grammar = choices(["a.c", "a|b", "a.c", ""])
    check_grammar(grammar)
    assert [text for text in ("a.c", "a|b", "", "abc", "a") if accepts(grammar, text)] == [
        "a.c",
        "a|b",
        "",
    ]
    assert choices(["one"]) == Text("one")


def test_there_can_be_thousands_of_choices() -> None:
    many = [f"a/b\\n{i}\n<|x|>\t \"' #&~-é{{}}[1].*" for i in range(5000)]
    grammar = choices([*many, ""])
    check_grammar(grammar)
    assert all(accepts(grammar, text) for text in ("", many[0], many[-1]))
    assert not any(accepts(grammar, text) for text in (many[0][:-1], many[0] * 2, "a"))
