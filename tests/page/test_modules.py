"""The modules of the page that parse and pace: events, Markdown, frames."""

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.support import plugins_with, scripted, scripted_config, serve

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

STREAM = (
    "\ufeff: a comment\r\n\r\n"
    'data: {"text": "Grüße, 世界 👋🏽"}\r\n\r\n'
    "event: other\ndata:no blank\n\n"
    "data: two\ndata: lines\nid: 7\n\n"
    "data: old macs\r\r"
    "data: [DONE]\n\n"
    "data: incomplete\n"
)
EVENTS = ['{"text": "Grüße, 世界 👋🏽"}', "no blank", "two\nlines", "old macs", "[DONE]"]


@pytest.fixture(scope="module")
def modules(browser: "Browser") -> "Iterator[Page]":
    """A page that can import modules of the page, and is nothing but that."""
    with serve(scripted_config(), plugins_with(scripted=scripted(["ok"]))) as server:
        page = browser.new_page()
        page.goto(f"{server.url}/health")
        yield page
        page.close()


def test_events_however_they_are_cut(modules: "Page") -> None:
    """In two at every byte, characters and line ends among them, and into single bytes."""
    results = modules.evaluate(
        """async (text) => {
          const { sseEvents } = await import("/page/sse.js");
          const bytes = new TextEncoder().encode(text);
          const read = async (pieces) => {
            const stream = new ReadableStream({
              start(controller) {
                pieces.forEach((piece) => controller.enqueue(piece));
                controller.close();
              },
            });
            const events = [];
            for await (const event of sseEvents(stream)) events.push(event);
            return JSON.stringify(events);
          };
          const results = new Set([await read([...bytes].map((byte) => new Uint8Array([byte])))]);
          for (let at = 0; at <= bytes.length; at += 1) {
            results.add(await read([bytes.slice(0, at), bytes.slice(at)]));
          }
          return [...results];
        }""",
        STREAM,
    )
    assert [json.loads(result) for result in results] == [EVENTS]


def render(page: "Page", text: str, steps: bool = False) -> str:
    """The elements of a Markdown text, as markup; in `steps`, a character more each time."""
    return str(
        page.evaluate(
            """async ([text, steps]) => {
              const { renderMarkdown } = await import("/page/markdown.js");
              const container = document.createElement("div");
              for (let end = steps ? 1 : text.length; end <= text.length; end += 1) {
                renderMarkdown(container, text.slice(0, end));
              }
              container.querySelectorAll("figcaption").forEach((each) => each.remove());
              return container.innerHTML.replace(/ (class|tabindex|target|rel)="[^"]*"/g, "");
            }""",
            [text, steps],
        )
    )


CASES: dict[str, str] = {
    "a *b* **c** `d` ~~e~~ _f_ __g__": "<p>a <em>b</em> <strong>c</strong> <code>d</code> "
    "<del>e</del> <em>f</em> <strong>g</strong></p>",
    "snake_case_name and 2*3*4 = 24": "<p>snake_case_name and 2*3*4 = 24</p>",
    "2 * 3 * 4": "<p>2 * 3 * 4</p>",
    "``a`b`` \\*no\\*": "<p><code>a`b</code> *no*</p>",
    "**a *b* c**": "<p><strong>a <em>b</em> c</strong></p>",
    "one\ntwo": "<p>one\ntwo</p>",
    "one\n\ntwo": "<p>one</p><p>two</p>",
    "# A\n### B #\ntext": "<h3>A</h3><h5>B</h5><p>text</p>",
    "- a\n- b\n  - c\n\n- d": "<ul><li>a</li><li>b<ul><li>c</li></ul></li><li>d</li></ul>",
    "3. a\n4. b": '<ol start="3"><li>a</li><li>b</li></ol>',
    "1. a\n\n   b\n2. c": '<ol start="1"><li><p>a</p><p>b</p></li><li>c</li></ol>',
    "- a\n1. b": '<ul><li>a</li></ul><ol start="1"><li>b</li></ol>',
    "text\n- a": "<p>text</p><ul><li>a</li></ul>",
    "> a\n> > b": "<blockquote><p>a</p><blockquote><p>b</p></blockquote></blockquote>",
    "***\n---": "<hr><hr>",
    "```py\na<b\n\n# c\n```\nd": "<figure><pre><code>a&lt;b\n\n# c</code></pre></figure><p>d</p>",
    "````\n```\n````": "<figure><pre><code>```</code></pre></figure>",
    "```\nnot closed": "<figure><pre><code>not closed</code></pre></figure>",
    "- a\n  ```\n  x\n  ```": "<ul><li>a<figure><pre><code>x</code></pre></figure></li></ul>",
    "***a*** **a *b*** *a **b*** **a *b** c *a **b** c*": "<p><strong><em>a</em></strong> "
    "<strong>a <em>b</em></strong> <em>a <strong>b</strong></em> <strong>a *b</strong> c "
    "<em>a <strong>b</strong> c</em></p>",
    "**a `**` b** **not __init__ ****": "<p><strong>a <code>**</code> b</strong> **not "
    "<strong>init</strong> ****</p>",
    "`a ``b` ``c": "<p><code>a ``b</code> ``c</p>",
    "**https://x.example/a_b** \\[a](https://y.example)": '<p><strong><a href="https://x.example/a_b">'
    'https://x.example/a_b</a></strong> [a](<a href="https://y.example">https://y.example</a>)</p>',
    "- a  \n  b\\\n  c": "<ul><li>a<br>b<br>c</li></ul>",
    "# C#\n## a ##": "<h3>C#</h3><h4>a</h4>",
    "|a|b|\n|-|-|\n|1|`2`|3|\n|4|": "<div><table><thead><tr><th>a</th><th>b</th></tr></thead>"
    "<tbody>"
    "<tr><td>1</td><td><code>2</code></td></tr><tr><td>4</td><td></td></tr></tbody></table></div>",
    "a | b": "<p>a | b</p>",
    "[a](https://x.example/b_(c)) https://y.example/?q=1.": '<p><a href="https://x.example/b_(c)">'
    'a</a> <a href="https://y.example/?q=1">https://y.example/?q=1</a>.</p>',
    "[a](javascript:b)": "<p>[a](javascript:b)</p>",
    "<b>&amp;</b>": "<p>&lt;b&gt;&amp;amp;&lt;/b&gt;</p>",
    "": "",
}


@pytest.mark.parametrize("text", CASES, ids=repr)
def test_markdown(modules: "Page", text: str) -> None:
    assert render(modules, text) == CASES[text]


def test_markdown_that_grows_ends_the_same(modules: "Page") -> None:
    text = "\n\n".join(CASES)
    assert render(modules, text, steps=True) == render(modules, text)
