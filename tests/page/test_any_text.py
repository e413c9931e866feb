"""The page shows any text in a time that grows with its length (SEC-11)."""

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from tests.chromium import ARGUMENTS, CHROMIUM
from tests.effort import some
from tests.page.support import answered, open_page, say
from tests.support import plugins_with, scripted, scripted_config, serve

if TYPE_CHECKING:
    from playwright.sync_api import Browser, CDPSession, Page

    from tests.conftest import ServeScripted

LENGTH = 120_000
PATIENCE = 30_000
"""Milliseconds. What is linear takes less than one second, what is quadratic takes minutes."""

PIECES = [
    *"*_~`[](|#>\\<& \t\n\ra字ب",
    *("- ", "**a", "*a ", "a* ", "*a* ", "*a** ", "**a* ", "***a ", "__a ", "_a_ ", "~~a ", "*_"),
    *("_*", "`a ", "``a` ", "`a ``", "|`", "[a](", "[a](b", "](", "![", "[*", "*[", "https://"),
    *("https://a.b/(", "[a](https://a.b) ", "- a\n", "- a\n  ", "- - ", "1. a\n", "> > ", "# a\n"),
    *(
        "#\n",
        "---\n",
        "```\n",
        "```\n~~~\n",
        "|\n",
        "|-|\n",
        "a|b\n-|-\n",
        "- \n\n",
        "  \n",
        "\\\n",
    ),
    *("a\n\n- b\n\n", "&amp;", "<b>", "\x1b[31m", "\u202ea\u202cb", "\u0301", "a\u0301", "\u200d"),
    *("\u200c", "👍🏽", "🏽", "👩\u200d", "\u2028", "\\\n"),
]
AROUND = [
    *(
        ("# a", " ", "x"),
        ("# ", "#", "x"),
        ("|a|\n|", " ", "x"),
        ("|a|\n|", "-", "x"),
        ("- ", "-", "x"),
    ),
    *(("```", "\u0301", ""), ("```", "a", ""), ("> ", ">", "x"), ("[", "[", "](https://a.b)")),
    *(("|" * 3000 + "\n|-|\n", "|\n", ""), ("a|b\n-|-\n", "|\n", ""), ("[a](", "a", "")),
    *(("`", "``", "`"), ("**", "*", "**"), ("a", " ", "\nb"), ("https://a.b/", ".", "")),
    *(("- a\n", " ", "x"), ("- ", "-", "x")),
]
TEXTS = [
    start + piece * (LENGTH // len(piece)) + end
    for start, piece, end in [*AROUND, *(("", piece, "") for piece in PIECES)]
]


@pytest.fixture(scope="module")
def shown(browser: "Browser") -> "Iterator[tuple[Page, CDPSession]]":
    """The page with its styles, and what runs scripts in it that may not take forever."""
    with serve(scripted_config(), plugins_with(scripted=scripted(["ok"]))) as server:
        page = browser.new_page()
        page.goto(server.url)
        yield page, page.context.new_cdp_session(page)
        page.close()


def evaluate(session: "CDPSession", script: str, *values: str) -> Any:
    """What an async function returns for these values."""
    asked = {
        "expression": f"({script})({', '.join(map(json.dumps, values))})",
        "timeout": PATIENCE,
        "awaitPromise": True,
        "returnByValue": True,
    }
    answer = session.send("Runtime.evaluate", asked)
    assert "exceptionDetails" not in answer, answer["exceptionDetails"]
    return answer["result"]["value"]


SHOW = """async (text) => {
  const { renderMarkdown } = await import("/page/markdown.js");
  const { h, setText } = await import("/page/dom.js");
  const transcript = document.getElementById("transcript");
  const pre = (name) => h("pre", { class: name });
  const [answer, question, call] = ["said text", "said", ""].map(pre);
  transcript.replaceChildren(
    h("li", { class: "message assistant" }, answer, h("div", { class: "calls" }, call)),
    h("li", { class: "message user" }, question),
  );
  renderMarkdown(answer, text);
  setText(question, text);
  setText(call, text);
  const height = transcript.offsetHeight; // after the layout
  let depth = 0;
  const inside = ({ children }) => [...children];
  for (let some = [answer]; some.length; depth += 1) some = some.flatMap(inside);
  const elements = answer.querySelectorAll("*").length;
  transcript.replaceChildren();
  return { height, depth, elements };
}"""


KINDS = ("|||", "***", "#\n#", "🏽🏽🏽")
QUICK = [*TEXTS[: len(AROUND)], *(text for text in TEXTS if text[:3] in KINDS)]


@pytest.mark.parametrize("text", some(TEXTS, QUICK), ids=lambda text: repr(text[:6]))
def test_any_text_is_shown(shown: "tuple[Page, CDPSession]", text: str) -> None:
    # SEC-11
    found = evaluate(shown[1], SHOW, text)
    assert found["height"]
    assert found["depth"] < 64
    assert found["elements"] < 2 * len(text)


COUNTED = ("markdown.js", "inline.js")  # the page itself uses the others meanwhile


def steps(session: "CDPSession", text: str) -> int:
    """How often the busiest blocks of all functions run while a text is shown."""
    session.send("Profiler.takePreciseCoverage")  # begins at 0 again
    evaluate(session, SHOW, text)
    scripts = session.send("Profiler.takePreciseCoverage")["result"]
    functions = [
        function
        for script in scripts
        if script["url"].endswith(COUNTED)
        for function in script["functions"]
    ]
    return sum(max(each["count"] for each in function["ranges"]) for function in functions)


def test_twice_the_text_takes_twice_the_steps(
    browser: "Browser", serve_scripted: "ServeScripted"
) -> None:
    # SEC-11: also what is only a little more than linear, which the texts above do not show.
    counts_all = "--js-flags=--no-opt --no-maglev"  # those inline functions, which then count none
    arguments = [*ARGUMENTS, counts_all]
    with browser.browser_type.launch(executable_path=CHROMIUM, args=arguments) as slow:
        page = slow.new_page()
        session = page.context.new_cdp_session(page)
        session.send("Profiler.enable")
        session.send("Profiler.startPreciseCoverage", {"callCount": True, "detailed": True})
        page.goto(serve_scripted(["ok"]).url)
        evaluate(session, SHOW, "")
        for piece in PIECES:
            once, twice = (steps(session, piece * count) for count in (1000, 2000))
            assert twice < 2.1 * once, (piece, once, twice)


def test_long_lines_and_piles_of_accents_are_cut_with_a_note(
    page: "Page", serve_scripted: "ServeScripted"
) -> None:
    # SEC-11
    line, pile = "ab" * 5_100, "e" + "\u0301" * 50
    said = f"{line}\n\n```\n{line}\n```\n\n{pile}é"
    answers = [f"<think>{line}</think>{said}"]
    open_page(page, serve_scripted(answers, reasoning="think", engine={"context_length": 60_000}))
    say(page, f"{line}\n{pile}")
    answer = answered(page)
    note = "… (200 more characters in this line are not shown)"
    cut, low = line[:10_000] + note, pile[:17] + "…"
    assert answer.locator(".said > p").first.text_content() == cut
    assert answer.locator(".said code").text_content() == cut
    assert answer.locator(".said > p").nth(1).text_content() == f"{low}é"
    assert answer.locator(".reasoning p").text_content() == cut
    question = page.locator(".message.user .said").text_content()
    assert question == f"{cut}\n{low}"
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    copied = "() => navigator.clipboard.readText()"
    answer.get_by_role("button", name="Copy").last.click()
    answer.get_by_role("button", name="Copied").wait_for()
    assert page.evaluate(copied) == said
    answer.locator("figure").get_by_role("button").click()
    answer.locator("figure").get_by_role("button", name="Copied").wait_for()
    assert page.evaluate(copied) == line


def test_arguments_that_are_deep_are_shown_as_they_are(shown: "tuple[Page, CDPSession]") -> None:
    # SEC-11: line breaks and indents would make them as long as the square of their length.
    script = """async (text) => {
      const { prettyArguments } = await import("/page/chat/answer.js");
      return prettyArguments(text);
    }"""
    deep = "[" * 4000 + "]" * 4000
    assert evaluate(shown[1], script, deep) == deep
    assert evaluate(shown[1], script, '{"a":[1]}') == '{\n  "a": [\n    1\n  ]\n}'


def test_slow_frames_leave_most_of_the_time_to_the_user(
    shown: "tuple[Page, CDPSession]",
) -> None:
    # SEC-11: a text that grows is drawn anew in each frame, whatever that takes.
    drawn = evaluate(
        shown[1],
        """async () => {
          const { Pace } = await import("/page/pace.js");
          const waited = [], drawn = [];
          let [now, takes] = [0, 0];
          const tasks = [];
          const before = { setTimeout, requestAnimationFrame, now: performance.now };
          globalThis.setTimeout = (task, pause = 0) => (waited.push(pause), tasks.push(task));
          globalThis.requestAnimationFrame = (task) => tasks.push(task);
          performance.now = () => now;
          try {
            const pace = new Pace((thing) => ((now += takes), drawn.push(thing)));
            const run = () => { while (tasks.length) tasks.shift()(); };
            pace.ask("a"); pace.ask("a"); pace.ask("b"); run();
            takes = 50;
            pace.ask("c"); run();
            pace.ask("d"); run();
          } finally {
            Object.assign(globalThis, { setTimeout: before.setTimeout });
            globalThis.requestAnimationFrame = before.requestAnimationFrame;
            performance.now = before.now;
          }
          return { drawn, waited };
        }""",
    )
    assert drawn == {"drawn": ["a", "b", "c", "d"], "waited": [0, 0, 0, 0, 150, 0]}
