"""A hostile template reaches nothing, and ends soon. The limits are processor time, so a loaded machine changes nothing."""

from __future__ import annotations

import time
import tracemalloc

import pytest

from octavo.errors import InvalidRequest
from octavo.tokenization.chat_template import ChatTemplate

REFUSED_OR_EMPTY = [
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ cycler.__init__.__globals__ }}",
    "{{ joiner }}{{ namespace }}{{ range }}{{ dict }}",
    "{{ messages.append(1) }}",
    "{{ messages[0].update({'a': 1}) }}",
    "{{ messages[0].pop('role') }}",
    "{% include '/etc/passwd' %}",
    "{% import 'x' as x %}",
    "{% extends 'x' %}",
    "{{ self }}{{ self.__init__ }}",
    "{{ '%s'|attr('__class__') }}",
    "{{ ''.format.__self__ }}",
    "{{ '{0.__class__}'.format(1) }}",
    "{{ '{a.__class__}'.format_map({'a': 1}) }}",
    "{{ raise_exception.__code__ }}{{ strftime_now.__globals__ }}{{ tojson }}",
    "{{ (messages|map('upper')).gi_frame }}",
    "{% macro m() %}{% endmacro %}{{ m._environment }}{{ m }}",
    "{{ namespace(__class__=1) }}",
    "{% set ns = namespace() %}{% set ns._x = 1 %}",
    "{{ messages|map('string') }}",
    "{{ [''.upper]|string }}",
    "{{ (5).to_bytes(9, 'big') }}{{ ''.encode() }}{{ ''.maketrans }}",
]

BOMBS = [
    "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}{% endfor %}{% endfor %}{% endfor %}",
    "{{ 'x' * 10**10 }}",
    "{{ [1] * 10**10 }}",
    "{% for i in range(10**9) %}{% endfor %}",
    "{{ range(10**9)|list }}",
    "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "{% for i in [1] recursive %}{{ loop([1]) }}{% endfor %}",
    "{{ 10**(10**10) }}",
    "{{ '%10000000000d' % 1 }}",
    "{{ '%*d' % (10**10, 1) }}",
    "{{ '%*d'|format(10**10, 1) }}",
    "{{ '{:>10000000000}'.format('x') }}",
    "{{ '{:>{}}'.format('x', 10**10) }}",
    "{{ 'x'.ljust(10**10) }}",
    "{{ 'x'|center(10**10) }}",
    "{{ ('x'|e).ljust(10**10) }}",
    "{{ [1]|batch(10**10, 'x')|list }}",
    "{{ [1]|slice(10**9)|list }}",
    "{{ 'a'|indent(10**9, true) }}",
    "{{ [1]|tojson(indent=10**9) }}",
    "{{ 2|round(10**9, 'ceil') }}",
    "{{ ('x' * 1000000)|replace('x', 'y' * 1000000)|length }}",
    "{{ ('x' * 1000000).replace('x', 'y' * 1000000)|length }}",
    "{{ ('x' * 1000000).join('x' * 1000000)|length }}",
    "{{ ('x ' * 10000000).split()|length }}",
    "{% set ns = namespace(x='x') %}{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
    "{% set ns = namespace(x='x') %}{% for i in range(99) %}{% set x %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = x %}{% endfor %}",
    "{% set ns = namespace(x=[]) %}{% for i in range(99999) %}{% set ns.x = [ns.x, range(99999)|list] %}{% endfor %}",
    "{% for a in range(99999) %}" + "x" * 100_000 + "{% endfor %}",
    "{% macro m() %}"
    + "x" * 100_000
    + "{% endmacro %}{% for a in range(99999) %}{% set _ = m() %}{% endfor %}",
    "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "{{ 1" + "+1" * 20_000 + " }}",
    "x" * (2 << 20),
]

DOUBLED = "{% set ns = namespace(x=(1,), y=(1,)) %}{% for i in range(60) %}{% set ns.x = W %}{% set ns.y = V %}{% endfor %}"
SHARED = [
    DOUBLED.replace("W", "[ns.x, ns.x]").replace("V", "[ns.y, ns.y]") + "{{ ns.x }}",
    DOUBLED.replace("W", "(ns.x, ns.x)").replace("V", "(ns.y, ns.y)") + "{{ {ns.x: 1} }}",
]


def render(source: str) -> str:
    chat = ChatTemplate(source, bos_token="<s>", eos_token="</s>", control_tokens=["<s>", "</s>"])
    return chat.render([{"role": "user", "content": "Hi"}]).text


@pytest.mark.parametrize("source", REFUSED_OR_EMPTY)
def test_python_internals_are_out_of_reach(source: str) -> None:
    try:
        text = render(source)
    except InvalidRequest as error:
        text = error.message
        assert "object at" not in text
        assert "octavo" not in text
        assert "/" not in text
    else:
        assert text == ""


@pytest.mark.parametrize("source", [*BOMBS, *SHARED])
def test_bombs_are_refused_soon(source: str) -> None:
    start = time.thread_time()
    with pytest.raises(InvalidRequest):
        render(source)
    assert time.thread_time() - start < 2.5


@pytest.mark.parametrize("index", [1, 21, 25, 26, 28, 29])
def test_bombs_of_text_stay_small(index: int) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(InvalidRequest):
            render(BOMBS[index])
        assert tracemalloc.get_traced_memory()[1] < 300 << 20
    finally:
        tracemalloc.stop()


def test_large_honest_conversations_fit_the_limits() -> None:
    source = (
        "{% set ns = namespace(out='') %}{% for m in messages %}"
        "{% set ns.out = ns.out ~ m.role ~ ': ' ~ m.content|trim ~ '\\n' %}{% endfor %}{{ ns.out }}"
    )
    chat = ChatTemplate(source, bos_token="<s>", eos_token="</s>", control_tokens=["<s>"])
    messages = [{"role": "user", "content": "word " * 100} for _ in range(1000)]
    assert len(chat.render(messages).text) == 1000 * (len("user: \n") + 499)
