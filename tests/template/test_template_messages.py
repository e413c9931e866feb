"""Messages as each kind of template can take them, and the trials that tell the kinds apart."""

import json
import logging
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginebay.chat.plan.template_messages import template_messages
from enginebay.chat.schemas.messages import Message
from enginebay.models.template.features import TemplateFeatures
from enginebay.models.template.template import ChatTemplate

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<call>{{ c.function | tojson }}</call>{% endfor %}"
    "<|im_end|>\n{% endfor %}"
)
STRICT = """
{%- if messages[0].role == 'system' %}{{ messages[0].content }}|{% set messages = messages[1:] %}
{%- endif %}
{%- for m in messages %}
{%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}
{{- raise_exception('roles must alternate') }}{% endif %}
{{- m.role }}:{{ m.content }}|
{%- endfor %}"""
NO_SYSTEM = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
GEMMA = NO_SYSTEM + STRICT
SILENT = (
    "{% for m in messages if m.role in ('user', 'assistant') %}"
    "{{ m.role }}:{{ m.content }}|{% endfor %}"
)
DEVELOPER = (
    "{% for m in messages %}{% if m.role == 'developer' %}dev:{{ m.content }}|"
    "{% else %}{{ m.role }}:{{ m.content }}|{% endif %}{% endfor %}"
)
PARTS = (
    "{% for m in messages %}{{ m.role }}:"
    "{% for p in m.content %}{{ p.text }}{% endfor %}|{% endfor %}"
)
ITERATES = (
    "{% for m in messages %}{{ m.role }}:{{ m.content }}"
    "{% for c in m.tool_calls or [] %}{% for k, v in c.function.arguments.items() %}"
    "<{{ k }}={{ v }}>{% endfor %}{% endfor %}|{% endfor %}"
)
JOINS = (
    "{% for m in messages %}{{ m.role }}:{{ m.content }}"
    "{% for c in m.tool_calls or [] %}{{ c.function.name + c.function.arguments }}{% endfor %}|"
    "{% endfor %}"
)
MISTRAL = (
    "{% for m in messages %}{% for c in m.tool_calls or [] %}{% if c.id | length != 9 %}"
    "{{ raise_exception('ids have length 9') }}{% endif %}{{ c.function.arguments | tojson }}"
    "{{ c.id }}|{% endfor %}{{ m.content }}{{ m.tool_call_id }}|{% endfor %}"
)


def features(source: str) -> TemplateFeatures:
    return TemplateFeatures(ChatTemplate(source, {}))


def prepared(source: str, *messages: dict[str, Any], **options: Any) -> list[dict[str, Any]]:
    parsed = [Message.model_validate(message) for message in messages]
    return template_messages(parsed, features(source), **options).messages


def rendered(source: str, *messages: dict[str, Any]) -> str:
    return ChatTemplate(source, {}).render(prepared(source, *messages))


def says(role: str, content: Any, **fields: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **fields}


def call(arguments: Any, id: str | None = "c1", name: str = "f") -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def test_what_a_template_can_is_left_alone() -> None:
    # TAB-34 VLLM-18
    messages = [
        says("system", "a"),
        says("system", "b"),
        says("user", "c", name="Ann"),
        says("user", "d"),
        says("system", "e"),
        says("assistant", "f"),
        says("system", "g"),
    ]
    assert prepared(CHATML, *messages) == messages


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (STRICT, "one\n\ntwo|user:hi|assistant:ho|user:now\n\nthree\n\nfour|"),
        (GEMMA, "user:one\n\ntwo\n\nhi|assistant:ho|user:now\n\nthree\n\nfour|"),
        (SILENT, "user:one\n\ntwo\n\nhi|assistant:ho|user:now\n\nthree\n\nfour|"),
    ],
)
def test_system_messages_anywhere(source: str, text: str) -> None:  # LF-5
    """Two in front, others in the middle and last, as SillyTavern sends them."""
    # MLC-36
    messages = [
        says("system", "one"),
        says("developer", "two"),
        says("user", "hi"),
        says("assistant", "ho"),
        says("user", "now"),
        says("system", "three"),
        says("system", "four"),
    ]
    assert rendered(source, *messages) == text
    parsed = [Message.model_validate(message) for message in messages]
    notes = template_messages(parsed, features(source)).notes
    assert "developer is sent as system" in notes[0]
    assert "system messages" in notes[1]


def test_a_system_message_behind_an_answer_becomes_the_users() -> None:
    messages = [says("user", "hi"), says("assistant", "ho"), says("system", "go on")]
    assert rendered(STRICT, *messages) == "user:hi|assistant:ho|user:go on|"


def test_system_messages_of_parts_are_joined_too() -> None:
    source = PARTS.replace("{{ m.role }}", "{{ 'x' if m.role == 'system' else m.role }}").replace(
        "{% for m in messages %}", "{% for m in messages if m.role != 'system' %}"
    )
    messages = [says("system", "one"), says("user", [{"type": "text", "text": "hi"}])]
    assert rendered(source, *messages) == "user:one\n\nhi|"


def test_the_developer_role() -> None:
    assert rendered(DEVELOPER, says("developer", "x"), says("user", "y")) == "dev:x|user:y|"
    assert rendered(CHATML, says("developer", "x"), says("user", "y")).startswith(
        "<|im_start|>system\nx"
    )


def test_content_is_what_the_template_reads() -> None:
    # TAB-31 VLLM-18
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert prepared(CHATML, says("user", parts)) == [says("user", "ab")]
    assert prepared(PARTS, says("user", parts)) == [says("user", parts)]
    assert rendered(PARTS, says("user", "ab")) == "user:ab|"
    assert prepared(CHATML, says("user", parts), content_format="openai") == [says("user", parts)]
    assert prepared(PARTS, says("user", parts), content_format="string") == [says("user", "ab")]
    refusal = [{"type": "refusal", "refusal": "No."}]
    assert prepared(CHATML, says("assistant", refusal)) == [says("assistant", "No.")]


@pytest.mark.parametrize("arguments", ['{"a": 1}', {"a": 1}])
def test_arguments_are_what_the_template_reads(arguments: Any) -> None:
    # TAB-35
    asks = says("assistant", "", tool_calls=[call(arguments)])
    assert "<a=1>" in rendered(ITERATES, says("user", "x"), asks)
    assert '"arguments": {"a": 1}' in rendered(CHATML, says("user", "x"), asks)
    assert 'f{"a": 1}|' in rendered(JOINS, says("user", "x"), asks)


@pytest.mark.parametrize("text", ["{broken", "[1]", "7", '"text"', "[" * 100_000])
def test_arguments_that_are_no_object_stay_text(
    text: str, caplog: pytest.LogCaptureFixture
) -> None:
    # TAB-36
    asks = says("assistant", "", tool_calls=[call(text)])
    with caplog.at_level(logging.WARNING):
        [message] = prepared(CHATML, asks)
    assert message["tool_calls"][0]["function"]["arguments"] == text
    assert "messages[0].tool_calls[0].function.arguments" in caplog.text


@pytest.mark.parametrize("text", ["", "  ", "null", "{}"])
def test_no_arguments_are_an_empty_object(text: str) -> None:
    [message] = prepared(CHATML, says("assistant", "", tool_calls=[call(text)]))
    assert message["tool_calls"][0]["function"]["arguments"] == {}


def test_null_content_of_calls() -> None:
    """Left out, as transformers has it, but for templates that need one."""
    # TAB-34 TAB-37
    asks = says("assistant", None, tool_calls=[call("{}")])
    assert "content" not in prepared(CHATML, says("user", "x"), asks)[1]
    needs = CHATML.replace("{{ m.content }}", "{{ m.content + '' }}")
    assert prepared(needs, says("user", "x"), asks)[1]["content"] == ""
    assert prepared(CHATML, says("assistant", None))[0]["content"] == ""
    assert "tool_calls" not in prepared(CHATML, says("assistant", "x", tool_calls=[]))[0]


def test_results_come_in_the_order_of_their_calls() -> None:
    asks = says("assistant", None, tool_calls=[call("{}", "a", "f"), call("{}", "b", "g")])
    results = [says("tool", "2", tool_call_id="b"), says("tool", "1", tool_call_id="a")]
    found = prepared(CHATML, says("user", "x"), asks, *results, says("user", "y"))
    assert [(m["content"], m["tool_call_id"], m["name"]) for m in found[2:4]] == [
        ("1", "a", "f"),
        ("2", "b", "g"),
    ]
    strange = says("tool", "3", tool_call_id="nobody")
    found = prepared(CHATML, says("user", "x"), asks, *results, strange)
    assert [m["content"] for m in found[2:]] == ["2", "1", "3"]


def test_ids_that_are_missing_are_given() -> None:
    asks = says("assistant", None, tool_calls=[call("{}", None, "f"), call("{}", None, "g")])
    found = prepared(CHATML, says("user", "x"), asks, says("tool", "1"), says("tool", "2"))
    ids = [made["id"] for made in found[1]["tool_calls"]]
    assert len(set(ids)) == 2
    assert [m["tool_call_id"] for m in found[2:]] == ids
    assert [m["name"] for m in found[2:]] == ["f", "g"]


def test_ids_that_a_template_refuses_are_shortened() -> None:
    """A conversation begun with another model goes on with Mistral's."""
    # VLLM-12 VLLM-13
    asks = says("assistant", "", tool_calls=[call("{}", "call_0123456789abcdef")])
    answer = says("tool", "ok", tool_call_id="call_0123456789abcdef")
    found = prepared(MISTRAL, says("user", "x"), asks, answer)
    id = found[1]["tool_calls"][0]["id"]
    assert (len(id), id.isalnum(), found[2]["tool_call_id"]) == (9, True, id)
    kept = says("assistant", "", tool_calls=[call("{}", "abcDEF123")])
    assert prepared(MISTRAL, says("user", "x"), kept)[1]["tool_calls"][0]["id"] == "abcDEF123"


SINGLE = CHATML.replace(
    "{% for m in messages %}",
    "{% for m in messages %}{% if m.tool_calls and m.tool_calls | length > 1 %}"
    "{{ raise_exception('one call at once') }}{% endif %}",
)


def test_calls_of_their_own_messages() -> None:
    """Several at once go on with a template that takes one a message, as Llama's."""
    asks = says("assistant", "Let me see.", tool_calls=[call("{}", "a", "f"), call("{}", "b", "g")])
    answers = [says("tool", "2", tool_call_id="b"), says("tool", "1", tool_call_id="a")]
    end = says("assistant", "Done.")
    found = prepared(SINGLE, says("user", "x"), asks, *answers, end)
    assert [(m["role"], m.get("content")) for m in found] == [
        ("user", "x"),
        ("assistant", "Let me see."),
        ("tool", "1"),
        ("assistant", ""),
        ("tool", "2"),
        ("assistant", "Done."),
    ]
    assert [[c["id"] for c in m.get("tool_calls", [])] for m in found[1:4:2]] == [["a"], ["b"]]
    unanswered = prepared(SINGLE, says("user", "x"), asks, answers[0])
    assert [m["role"] for m in unanswered] == ["user", "assistant", "assistant", "tool"]
    assert len(prepared(SINGLE, says("user", "x"), asks)) == 3
    assert len(prepared(CHATML, says("user", "x"), asks, *answers, end)) == 5


def test_results_where_a_template_takes_none() -> None:
    asks = says("assistant", "I look.", tool_calls=[call("{}", "a")])
    messages = [says("user", "x"), asks, says("tool", "sunny", tool_call_id="a")]
    assert rendered(SILENT, *messages) == "user:x|assistant:I look.|user:sunny|"
    assert rendered(GEMMA, *messages, says("user", "so?")) == (
        "user:x|assistant:I look.|user:sunny\n\nso?|"
    )


def test_arguments_for_templates_that_iterate_them() -> None:
    # TAB-36
    asks = says("assistant", "", tool_calls=[call("{broken")])
    assert "<arguments={broken>" in rendered(ITERATES, says("user", "x"), asks)


def test_a_template_that_wants_a_list_of_tools() -> None:  # LF-6
    wants = "{% for t in tools %}{{ t }}{% endfor %}" + STRICT
    assert features(wants).no_tools == []
    assert features(STRICT).no_tools is None
    assert features(wants).knows_system


def test_messages_are_json_for_every_template() -> None:
    messages = [says("user", "x"), says("assistant", None, tool_calls=[call('{"ä": [1]}')])]
    for source in (CHATML, STRICT, GEMMA, SILENT, PARTS, ITERATES, JOINS, MISTRAL):
        json.dumps(prepared(source, *messages))


@pytest.mark.parametrize(
    ("source", "feature", "value"),
    [
        (CHATML, "takes_later_systems", True),
        (STRICT, "takes_later_systems", False),
        (STRICT, "knows_system", True),
        (GEMMA, "knows_system", False),
        (SILENT, "knows_system", False),
        (SILENT, "knows_tool_results", False),
        (CHATML, "takes_users_in_a_row", True),
        (STRICT, "takes_users_in_a_row", False),
        (CHATML, "knows_developer", False),
        (DEVELOPER, "knows_developer", True),
        (CHATML, "content_format", "string"),
        (PARTS, "content_format", "openai"),
        (CHATML, "arguments_format", "object"),
        (ITERATES, "arguments_format", "object"),
        (JOINS, "arguments_format", "string"),
        (SILENT, "arguments_format", None),
        (CHATML, "takes_any_call_id", True),
        (MISTRAL, "takes_any_call_id", False),
        (CHATML, "knows_tools", False),
        (CHATML + "{{ tools }}", "knows_tools", True),
    ],
)
def test_trials(source: str, feature: str, value: object) -> None:
    assert getattr(features(source), feature) == value


TEXTS = st.text(max_size=12)
CALLS = st.builds(
    call,
    st.one_of(TEXTS, st.just('{"a": 1}'), st.dictionaries(TEXTS, st.integers(), max_size=2)),
    st.one_of(st.none(), st.sampled_from(["a", "b", "call_1"])),
)
CONTENTS = st.one_of(
    st.none(), TEXTS, st.lists(st.builds(lambda t: {"type": "text", "text": t}, TEXTS), max_size=3)
)
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {
            "role": st.sampled_from(["system", "developer", "user", "assistant", "tool"]),
            "content": CONTENTS,
        },
        optional={
            "tool_calls": st.lists(CALLS, max_size=3),
            "tool_call_id": st.sampled_from(["a", "b", "call_1"]),
            "reasoning_content": TEXTS,
            "name": TEXTS,
        },
    ),
    min_size=1,
    max_size=6,
)
KNOWN = [
    features(source) for source in (CHATML, STRICT, GEMMA, SILENT, PARTS, JOINS, MISTRAL, SINGLE)
]


@given(MESSAGES, st.sampled_from(KNOWN))
def test_any_conversation_becomes_messages(
    messages: list[dict[str, Any]], known: TemplateFeatures
) -> None:
    """No text is lost on the way to a template, and nothing but the template refuses."""
    parsed = [Message.model_validate(message) for message in messages]
    found = template_messages(parsed, known).messages
    texts = "".join(as_text(message.get("content")) for message in found)
    for message in messages:
        assert as_text(message["content"]) in texts
    for message in found:
        assert message["role"] != "developer" or known.knows_developer
        for made in message.get("tool_calls", ()):
            assert made["id"]
    known.render(found)


def as_text(content: Any) -> str:
    if isinstance(content, list):
        return "".join(part["text"] for part in content)
    return content or ""


@pytest.mark.parametrize(
    ("messages", "text"),
    [
        ([says("user", "a"), says("user", "b")], "user:a\n\nb|"),
        (
            [says("system", "s"), says("assistant", "a"), says("user", "b")],
            "s|user:|assistant:a|user:b|",
        ),
        ([says("assistant", "a"), says("user", "b")], "user:|assistant:a|user:b|"),
        ([says("assistant", "a"), says("assistant", "b")], "user:|assistant:a\n\nb|"),
        (
            [says("system", "s"), says("system", "t"), says("user", "a"), says("user", "b")],
            "s\n\nt|user:a\n\nb|",
        ),
        (
            [says("user", "a"), says("tool", "r", tool_call_id="1"), says("user", "b")],
            "user:a\n\nr\n\nb|",
        ),
        (
            [says("user", "a"), says("assistant", "b"), says("assistant", ""), says("user", "c")],
            "user:a|assistant:b|user:c|",
        ),
        (
            [says("user", "a", name="Ann"), says("user", "b", name="Bob"), says("assistant", "c")],
            "user:a\n\nb|assistant:c|",
        ),
        (
            [says("user", [{"type": "text", "text": "a"}]), says("user", "b")],
            "user:a\n\nb|",
        ),
    ],
)
def test_roles_that_do_not_alternate(messages: list[dict[str, Any]], text: str) -> None:
    # ANS-6
    assert rendered(STRICT, *messages) == text
    parsed = [Message.model_validate(message) for message in messages]
    untouched = template_messages(parsed, features(CHATML))
    assert [message["role"] for message in untouched.messages] == [m["role"] for m in messages]
    assert not untouched.changed


def test_what_was_changed_is_named_by_its_place() -> None:
    # ANS-6
    sent = [says("system", "s"), says("assistant", "a"), says("user", "b"), says("user", "c")]
    parsed = [Message.model_validate(message) for message in sent]
    made = template_messages(parsed, features(STRICT))
    assert made.changed == ["messages[1].role", "messages[3].role"]
    assert len(made.notes) == 2
    strict = template_messages(parsed, features(STRICT), strict_roles=True)
    assert (strict.messages, strict.changed) == (sent, [])


def test_calls_are_joined_only_with_text_before_them() -> None:
    # ANS-6
    source = STRICT + "{% for m in messages %}{{ m.tool_calls | tojson }}{% endfor %}"
    made = prepared(
        source,
        says("user", "a"),
        says("assistant", "I look.", reasoning_content="Hm."),
        says("assistant", "Now.", tool_calls=[call({"x": 1})], reasoning_content="So."),
        says("assistant", "Done."),
        says("assistant", None, tool_calls=[call({"y": 2})]),
    )
    assert [message["role"] for message in made] == ["user", *["assistant"] * 2]
    assert made[1]["content"] == "I look.\n\nNow."
    assert made[1]["reasoning_content"] == "Hm.\n\nSo."
    assert [c["function"]["arguments"] for c in made[1]["tool_calls"]] == [{"x": 1}]
    assert made[2]["content"] == "Done."
    assert [c["function"]["arguments"] for c in made[2]["tool_calls"]] == [{"y": 2}]


ROLES = st.sampled_from(["system", "user", "assistant", "developer"])


@given(st.lists(ROLES, min_size=1, max_size=6).filter(lambda roles: "user" in roles))
@pytest.mark.parametrize("source", [STRICT, GEMMA])
def test_every_order_of_roles_can_be_rendered(source: str, roles: list[str]) -> None:
    # ANS-6
    words = [f"word{number}" for number in range(len(roles))]
    text = rendered(source, *(says(role, word) for role, word in zip(roles, words, strict=True)))
    places = [text.index(word) for word in words]
    assert places == sorted(places)
