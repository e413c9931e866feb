"""What chat templates may cost. Hostile ones run in a process whose memory is limited."""

import asyncio
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from enginebay.models.template.beginning import Beginning
from enginebay.models.template.bounds import deadline
from enginebay.models.template.environment import template_environment
from enginebay.models.template.extents import TemplateLimitError
from enginebay.models.template.foreign_templates import ForeignTemplates
from enginebay.models.template.render_process import Job, RenderProcess
from enginebay.models.template.template import ChatTemplate, TemplateError, TemplateStoppedError

ASKED = [{"role": "user", "content": "hi"}]
ENDLESS = (  # a comparison of two lists that are 2^60 long to read: one step, and little memory
    "{% set ns = namespace(a=[1], b=[1]) %}"
    "{% for i in range(60) %}{% set ns.a = [ns.a, ns.a] %}{% set ns.b = [ns.b, ns.b] %}"
    "{% endfor %}{{ ns.a == ns.b }}"
)
DOUBLED = (
    "{{% set ns = namespace(x={}) %}}{{% for i in range(99) %}}{{% set ns.x = {} %}}"
    "{{% endfor %}}{{{{ ns.x }}}}"
)


@pytest.fixture(scope="module")
def process() -> Iterator[RenderProcess]:
    process = RenderProcess()
    yield process
    process.close()


@pytest.mark.parametrize(
    "source",
    [
        "{{ 'a' * 10**10 }}",
        "{{ 10000000000 * 'a' }}",
        "{{ [0] * 10**10 }}",
        "{{ ['a' * 10**6] * 10**6 }}",
        "{{ (['a' * 10**6] * 10**6) | string }}",
        "{{ (['a' * 10**6] * 10**6) | tojson }}",
        "{{ (['a' * 10**6] * 10**6) ~ 'x' }}",
        "{{ (['a' * 10**6] * 10**6) | join }}",
        "{{ '%s' % [['a' * 10**6] * 10**6] }}",
        "{{ '%10000000000d' % 1 }}",
        "{{ '%*d' % (10000000000, 1) }}",
        "{{ '%10000000000d' | format(1) }}",
        "{{ ('%(a)s' * 10**6) % {'a': 'b' * 10**6} }}",
        "{{ '{:10000000000}'.format(1) }}",
        "{{ '{:{}}'.format(1, 10000000000) }}",
        "{{ ('{a}' * 10**6).format(a='b' * 10**6) }}",
        "{{ 'a' | center(10000000000) }}",
        "{{ ['a'] | map('center', 10000000000) | list }}",
        "{{ 'a'.center(10000000000) }}",
        "{{ 'a'.ljust(width=10000000000) }}{{ 'a'.rjust(10000000000) }}",
        "{{ 'a'.zfill(10000000000) }}",
        "{{ ('\t' * 10**6).expandtabs(10**6) }}",
        "{{ ('a' * 10**6).replace('', 'b' * 10**6) }}",
        "{{ ('a' * 10**6) | replace('', 'b' * 10**6) }}",
        "{{ ('a' * 10**6).translate({97: 'b' * 10**6}) }}",
        "{{ ('b' * 10**6).join('a' * 10**6) }}",
        "{{ ('\n' * 10**6) | indent(10**6) }}",
        "{{ ('x ' * 10**6) | wordwrap(1, wrapstring='b' * 10**6) }}",
        "{{ ('x.com ' * 10**6) | urlize(target='b' * 10**6) }}",
        "{{ [1] | batch(10**10, 1) | list }}",
        "{{ [1] | slice(10**10) | list }}",
        "{{ ([['a']] * 10**6) | sum(start=[]) | length }}",
        "{{ [1] | tojson(indent=10**9) }}",
        "{{ 2.5 | round(10**9) }}",
        "{{ 10 ** (10 ** 10) }}",
        "{{ (5).to_bytes(10**11, 'big') }}",
        DOUBLED.format("'a'", "ns.x + ns.x"),
        DOUBLED.format("'a'", "ns.x ~ ns.x"),
        DOUBLED.format("[1]", "ns.x + ns.x"),
        DOUBLED.format("[1]", "[ns.x, ns.x]"),
        DOUBLED.format("3 ** 9", "ns.x * ns.x"),
        "{% for a in range(99999) %}{{ 'a' * 10**6 }}{% endfor %}",
        "{% macro m() %}{% for a in range(99999) %}{{ 'é' * 10**6 }}{% endfor %}{% endmacro %}"
        "{{ m() | length }}",
    ],
)
def test_what_would_be_too_large_is_refused_before_it_is_made(
    process: RenderProcess, source: str
) -> None:
    # FIX-10
    words = "writes more than 64 MiB|too many digits|computed width|indents JSON"
    with pytest.raises(TemplateStoppedError, match=f"was stopped: it .*({words})"):
        process.do(Job(source, {}, "mine", {"messages": ASKED}), 30)
    assert process.do(Job("fine", {}, "mine", {"messages": ASKED}), 30) == "fine"


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere address spaces have no limit")
def test_many_values_that_are_not_too_large_fill_only_their_process() -> None:
    # FIX-10
    source = (
        "{% set ns = namespace(all=[]) %}{% for i in range(9999) %}"
        "{% set ns.all = ns.all + ['a' * (6 * 10**7)] %}{% endfor %}"
    )
    with closing(RenderProcess()) as process:
        with pytest.raises(TemplateStoppedError, match="it needs too much memory"):
            process.do(Job(source, {}, "mine", {"messages": ASKED}), 60)
        assert process.do(Job("fine", {}, "mine", {"messages": ASKED}), 30) == "fine"


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere address spaces have no limit")
def test_a_text_that_is_too_large_to_be_sent_leaves_the_process() -> None:
    # FIX-10
    source = "{{ '\\x00' * (6 * 10**7) }}"  # six times as long in JSON
    long = [{"role": "user", "content": "x" * (2 * 10**8)}]
    with closing(RenderProcess()) as process:
        with pytest.raises(TemplateStoppedError, match="it needs too much memory"):
            process.do(Job(source, {}, "mine", {"messages": long}), 60)
        assert process.do(Job("fine", {}, "mine", {"messages": ASKED}), 30) == "fine"


def test_what_is_nested_too_deeply_to_be_sent_leaves_the_process(process: RenderProcess) -> None:
    # FIX-10
    nested: list[Any] = []
    for _ in range(900):
        nested = [nested]
    with pytest.raises(TemplateError, match="is nested too deeply"):
        process.do(Job("fine", {}, "mine", {"messages": [{"role": "user", "x": nested}]}), 30)
    assert process.do(Job("fine", {}, "mine", {"messages": ASKED}), 30) == "fine"


@pytest.mark.parametrize(
    "source",
    [
        "{% for a in range(9) %}{% endfor %}",
        "{% for a in range(9) recursive %}{{ loop([]) }}{% endfor %}",
        "{% macro m() %}{% endmacro %}{{ m() }}",
        "{{ range(9) | list }}",
    ],
)
def test_loops_and_calls_end_with_the_time(source: str) -> None:
    # FIX-10
    template = template_environment().from_string(source)
    with pytest.raises(TemplateLimitError, match="longer than 5 seconds"):
        template.render(deadline(-1))
    template.render(deadline())


@pytest.mark.parametrize(
    "source",
    [
        "{{ 'a' * 3 + 'b' ~ 1 ~ none ~ [1] ~ nothing }}{{ 2 ** 10 % 7 * 1.5 }}",
        "{{ '%5d|%s' % (1, [2]) }}{{ '{:>5}|{x}'.format(1, x=2) }}{{ '50%: 12345678'.format() }}",
        "{{ ['a', 1] | join('-') }}{{ [[1], [2]] | sum(start=[]) }}{{ [1, 2] | sum }}",
        "{{ 'a\nb' | indent(2) }}{{ 'a' | center(9) }}{{ 2.567 | round(1) }}",
        "{{ 'ab' | replace('a', 'é') }}",
        "{{ [1, 2, 3] | batch(2, 0) | list }}{{ [1, 2, 3] | slice(2) | list }}",
        "{{ range(3) | join }}{{ '-'.join(['a', 'b'] | map('upper')) }}",
        "{{ ['a'] | map('upper') | join }}{{ messages[0] | items | list }}",
        "{{ nothing | string }}{{ nothing | replace('a', 'b') }}{{ nothing | join }}",
        "{% for a in [1, 2, 3] if a != 2 %}{{ loop.index }}{{ loop.last }}{% else %}-{% endfor %}",
        "{% for a in [] %}{% else %}none{% endfor %}{{ 'b'.join(['x', 'y']) }}{{ 'a'.zfill(3) }}",
        "{{ {'a': [1, 'é']} | tojson(indent=2) }}{{ messages }}{{ [1] + [2] }}",
    ],
)
def test_other_templates_render_as_in_jinja(source: str) -> None:
    # TAB-48
    bounded = ChatTemplate(source, {}).render(ASKED)
    plain = template_environment()
    expected = type(plain).__mro__[1](trim_blocks=True, lstrip_blocks=True)  # the sandbox itself
    expected.filters["tojson"] = plain.filters["tojson"]
    assert bounded == expected.from_string(source).render(messages=ASKED)


def test_a_step_that_does_not_end_is_ended_with_its_process() -> None:
    # FIX-10
    templates = ForeignTemplates(seconds=0.5)
    features = templates.compile(ENDLESS, {}, Beginning())
    with pytest.raises(TemplateStoppedError, match="it takes longer than 5 seconds"):
        features.template.render(ASKED)
    with pytest.raises(TemplateStoppedError):  # and no probe says that it lacks a feature
        assert features.knows_system
    templates.close()


def test_slow_templates_share_the_time_of_their_request() -> None:
    # FIX-10
    templates = ForeignTemplates(seconds=0.5)

    def build() -> None:
        for turn in range(3):
            templates.compile(f"{ENDLESS}{turn}", {}, Beginning()).template.render(ASKED)

    with pytest.raises(TemplateStoppedError):
        asyncio.run(templates.run(build))
    templates.close()


def test_templates_of_requests_render_at_once_and_again() -> None:
    """Two processes do what any number of threads ask for, and remember eight templates."""
    templates = ForeignTemplates(processes=2)
    answers: list[str] = []

    def render(number: int) -> None:
        template = templates.compile(
            f"{{{{ bos_token }}}}{number}{{{{ x }}}}", {"bos_token": "<s>"}, Beginning()
        )
        answers.append(template.template.render(ASKED, variables={"x": "!"}))
        assert template.template.variables == {"x"}

    threads = [threading.Thread(target=render, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answers) == sorted(f"<s>{number}!" for number in range(12))
    with pytest.raises(TemplateError, match="does not compile: line 1"):
        templates.compile("{% if %}", {}, Beginning())
    for stops in ("'a' | center(1001)", "['a'] | batch(65, 'b') | first"):
        with pytest.raises(TemplateError, match="at most 64 of 1000 characters"):
            templates.compile(f"{{% set stop_strings = {stops} %}}", {}, Beginning())
    features = templates.compile("{% set stop_strings = ['x'] %}", {}, Beginning())
    assert features.template.stop_strings == ("x",)
    templates.close()
