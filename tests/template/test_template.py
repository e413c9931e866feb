"""Chat templates as models ship them."""

from typing import Any

import pytest

from enginebay.chat.plan.template_messages import template_messages
from enginebay.chat.schemas.messages import Message
from enginebay.models.template.features import TemplateFeatures
from enginebay.models.template.template import (
    TEMPLATES_FOLDER,
    ChatTemplate,
    TemplateError,
    template_path,
)

MESSAGES: list[Any] = [{"role": "user", "content": "hi <b>"}]


def render(source: str, messages: Any = MESSAGES, **options: Any) -> str:
    return ChatTemplate(source, {"bos_token": "<s>"}).render(messages, **options)


def test_what_templates_use() -> None:
    # TAB-38 TAB-41
    assert render("{{ bos_token }}{{ messages[0].content }}") == "<s>hi <b>"
    assert render("{{ {'a': 'é<'} | tojson }}") == '{"a": "é<"}'
    assert render("{{ {'b': 1, 'a': 2} | tojson(indent=1) }}") == '{\n "b": 1,\n "a": 2\n}'
    assert (
        render("{% for i in [1, 2, 3] %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}")
        == "1"
    )
    assert len(render("{{ strftime_now('%Y') }}")) == 4
    assert render("{% generation %}a{% endgeneration %}b") == "ab"
    assert render("a\n{% if true %}\nb\n{% endif %}\n") == "a\nb\n"
    assert render("{{ tools[0].x }}", tools=[{"x": 1}]) == "1"
    assert render("{{ add_generation_prompt }}", add_generation_prompt=False) == "False"


def test_variables_do_not_replace_the_messages() -> None:
    variables = {"messages": [], "mood": "fine"}
    assert render("{{ messages | length }}{{ mood }}", variables=variables) == "1fine"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ raise_exception('no system please') }}", "no system please"),
        ("{{ messages[0].content + 1 }}", "refused"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{{ messages.append(1) }}", "refused"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
    ],
)
def test_what_a_template_refuses(source: str, message: str) -> None:
    # TAB-48 VLLM-26
    with pytest.raises(TemplateError, match=message) as caught:
        render(source)
    assert caught.value.status == 400


def test_a_template_that_does_not_compile_says_where() -> None:
    with pytest.raises(TemplateError, match="line 2"):
        render("\n{% if %}")


def test_nothing_of_python_can_be_reached() -> None:
    for source in (
        "{{ dict.__class__.mro }}",
        "{{ dict.mro() }}",
        "{% set ns = namespace(__class__=1) %}",
        "{% set ns = namespace() %}{% set ns._x = 1 %}",
        "{{ namespace.__init__.__globals__.x }}",
        "{{ strftime_now.__globals__.x }}",
        "{{ messages[0].update({'role': 'x'}) }}",
    ):
        with pytest.raises(TemplateError):
            render(source)
    assert render("{{ dict(a=1).a }}{{ dict.fromkeys(['b'], 2).b }}") == "12"
    assert render("{% set ns = namespace(self=1) %}{% set ns.self = 2 %}{{ ns.self }}") == "2"


def test_a_template_names_its_variables_and_stop_strings() -> None:
    # TAB-46
    source = (
        "{% set stop_strings = ['### User:', '<end>', ''] %}{% set mine = 1 %}"
        "{{ bos_token }}{{ mood }}{{ mine }}{% for m in messages %}{{ m }}{% endfor %}"
    )
    template = ChatTemplate(source, {"bos_token": "<s>"})
    assert template.stop_strings == ("### User:", "<end>")
    assert template.variables == {"mood"}
    assert ChatTemplate("{% set stop_strings = messages %}", {}).stop_strings == ()
    assert ChatTemplate("{% set stop_strings = 'END' %}", {}).stop_strings == ("END",)
    for other in ("5", "none", "true", "{'a': 1}", "[5, none]"):
        assert ChatTemplate(f"{{% set stop_strings = {other} %}}", {}).stop_strings == ()
    assert ChatTemplate("{{ messages }}", {}).stop_strings == ()


def test_reasoning_under_each_name_that_templates_read() -> None:
    message = {"role": "assistant", "reasoning": "hm", "content": None}
    for name in ("reasoning", "reasoning_content", "thinking"):
        assert render(f"{{{{ messages[0].{name} }}}}", [message]) == "hm"
    assert render("{{ 'content' in messages[0] }}", [message]) == "False"  # TAB-34


@pytest.mark.parametrize("path", sorted(TEMPLATES_FOLDER.glob("*.jinja")), ids=lambda p: p.stem)
def test_shipped_templates(path: Any) -> None:
    messages = [
        Message(role="system", content="Be brief."),
        Message(role="user", content="Hello"),
        Message(role="assistant", content="Hi"),
        Message(role="user", content="Bye"),
    ]
    features = TemplateFeatures(ChatTemplate(path.read_text(encoding="utf-8"), {}))
    text = features.template.render(template_messages(messages, features).messages)
    positions = [text.index(part) for part in ("Be brief.", "Hello", "Hi", "Bye")]
    assert positions == sorted(positions)
    assert "assistant" in text[positions[-1] :]


def test_templates_are_found_by_path_and_by_name(tmp_path: Any) -> None:
    own = tmp_path / "own.jinja"
    own.write_text("x", encoding="utf-8")
    assert template_path("own.jinja", tmp_path) == own
    assert template_path("chatml", tmp_path) == TEMPLATES_FOLDER / "chatml.jinja"
    assert template_path("nothing", tmp_path) is None
