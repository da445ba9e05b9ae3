"""Templates that would run, nest or grow without end: chat templates and templates of tasks are refused in one line."""

import doctest
import random

import jinja2
import pytest

from jaxpt.data.chat_template import ChatTemplate
from jaxpt.errors import UserError
from jaxpt.evals.few_shot import templates
from jaxpt.evals.few_shot.scoring import extracted
from jaxpt.runtime import linear_regex, sandbox

DEEP = "is nested too deeply; wants a Jinja template"
STEPS = r"takes more than [\d,]+ steps; it loops too often"
SIZE = r"makes a text or a list of more than [\d,]+ characters"
WIDTH = "a format with a field width from an argument, or of more than four digits"
LAUGHS = "{% set a = ['x' * 1000] * 100 %}" + "".join(
    f"{{% set {new} = [{', '.join([old] * 20)}] %}}" for old, new in ("ab", "bc", "cd", "de")
)
ENDLESS = {
    "deep parentheses": ("{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}", DEEP),
    "deep lists": ("{{ " + "[" * 3000 + "]" * 3000 + " }}", DEEP),
    "many signs": ("{{ " + "-" * 3000 + "1 }}", DEEP),
    "a long sum": ("{{ " + "+".join("1" * 3000) + " }}", DEEP),
    "deep if": ("{% if 1 %}" * 3000 + "{% endif %}" * 3000, DEEP),
    "deep for": ("{% for a in [1] %}" * 30 + "{% endfor %}" * 30, DEEP),
    "a long template": ("x" * 300_000, "has 300,000 characters, at most 200,000 are read"),
    "nested ranges": ("{% for a in range(9999) %}{% for b in range(9999) %}{{ b + a }}{% endfor %}{% endfor %}", STEPS),
    "a macro that calls itself twice": (
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}", STEPS,
    ),
    "a filter in a loop": ("{% for a in range(9999) %}{{ range(9999) | sum }}{% endfor %}", STEPS),
    "endless recursion": ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "maximum recursion depth"),
    "s ~ s": ("{% set n = namespace(s='x') %}{% for i in range(40) %}{% set n.s = n.s ~ n.s %}{% endfor %}", SIZE),
    "s + s": ("{% set n = namespace(s='x') %}{% for i in range(40) %}{% set n.s = n.s + n.s %}{% endfor %}", SIZE),
    "[s, s]": ("{% set n = namespace(s='x') %}{% for i in range(40) %}{% set n.s = [n.s, n.s] %}{% endfor %}", SIZE),
    "a billion laughs": (LAUGHS, SIZE),
    "text times a number": ("{{ 'x' * 10 ** 10 }}", SIZE),
    "a number times a list": ("{{ 10 ** 10 * ['x'] }}", SIZE),
    "a long output": ("{% for a in range(999) %}{{ 'x' * 99999 }}{% endfor %}", SIZE),
    "a block": ("{% set a %}{% for a in range(999) %}{{ 'x' * 99999 }}{% endfor %}{% endset %}", SIZE),
    "powers": ("{{ 9 ** (9 ** 9) }}", "makes a whole number of more than 65,536 bits"),
    "lipsum": ("{{ lipsum(n=100000) }}", "'lipsum' is undefined"),
    "center": ("{{ 'x' | center(9999999999) }}", SIZE),
    "ljust": ("{{ 'x'.ljust(9999999999) }}", SIZE),
    "indent": ("{{ ('\n' * 99999) | indent(99999) }}", SIZE),
    "replace": ("{{ ('x' * 99999).replace('', 'y' * 99999) }}", SIZE),
    "join": ("{{ range(99999) | join('x' * 99999) }}", SIZE),
    "join of a generator": ("{{ range(99999) | map('string') | join('x' * 99999) }}", SIZE),
    "str.join": ("{{ ('x' * 99999).join(['a'] * 9999) }}", SIZE),
    "tojson": ("{{ [1, [2]] | tojson(indent=99999999) }}", SIZE),
    "round": ("{{ 1.5 | round(999999999, 'ceil') }}", SIZE),
    "sum of lists": ("{{ ([[1]] * 9999) | sum(start=[]) }}", "sum of lists is not supported, only of numbers"),
    "%": ("{{ '%9999999999d' % 1 }}", WIDTH),
    "% with *": ("{{ '%*d' % (9999999999, 1) }}", WIDTH),
    "str.format": ("{{ '{:9999999999}'.format(1) }}", WIDTH),
    "str.format_map": ("{{ '{a:{b}}'.format_map({'a': 1, 'b': 9999999999}) }}", WIDTH),
    "the filter format": ("{{ '%9999999999d' | format(1) }}", WIDTH),
}  # fmt: skip


@pytest.mark.parametrize("name", ENDLESS)
def test_templates_without_end_are_refused(name, monkeypatch):
    source, words = ENDLESS[name]
    if words == STEPS:
        monkeypatch.setattr(sandbox, "MAX_STEPS", 100_000)  # in a twentieth of the time
    for render in (
        lambda: ChatTemplate(source).render([{"role": "user", "content": "x"}]),
        lambda: templates.text(source, {"q": 1}, "t.yaml: context"),
    ):
        with pytest.raises(UserError, match=words) as error:
            render()
        assert "\n" not in str(error.value)


def test_what_templates_do_is_what_jinja_does():
    """The counting changes no value."""
    source = """
{%- macro turn(a, b=2) %}<{{ a }}{{ b }}{{ caller() if caller else '' }}>{% endmacro -%}
{{ turn(x) }}{% call turn('é', b=[1, {'a': none}]) %}!{% endcall %}{{ turn(1.5) ~ x ~ none ~ true }}
{% for a, (b, c) in [(1, (2, 3)), [4, [5, 6]]] if a < 9 %}{{ loop.index }}{{ loop.last }}{{ a + b * c - a // b % 3 }}
{%- else %}none{% endfor %}{% for a in 'abc' recursive %}{{ a }}{{ loop('') }}{% endfor %}
{{ x[1:] }}{{ x[::-1] }}{{ x[0] }}{{ y.k }}{{ y['k'] }}{{ {1: 2}[1] }}{{ 1 < 2 <= 2 != 3 }}
{{ 'a' in x }}{{ 9 not in [1] }}
{{ x | upper | replace('B', '-') }}{{ x.split('b') | join('+') }}{{ ', '.join(['a', 'b']) }}{{ [3, 1] | sort | first }}
{{ y | dictsort }}{{ y.items() | list }}{{ 2 ** 10 }}{{ x | length }}
{{ '%s %05.2f' % (x, 1.5) }}{{ '{}-{k}'.format(x, k=1) }}
{{ [1, 2, 3] | select('odd') | list }}{{ [{'a': 1}] | map(attribute='a') | sum }}
{{ x is string and 4 is divisibleby 2 }}
{% set n = namespace(s='') %}{% for c in x %}{% set n.s = c ~ n.s %}{% endfor %}{{ n.s }}
{% filter title %}ab {{ x }}{% endfilter %}
{% set block %}{{ x }}{% endset %}{{ block | trim }}{{ (x, y) | string }}{{ [1, 2, 3, 4] | batch(3, 0) | list }}
{%- with z = x %}{{ z | center(9) }}{% endwith %}{{ missing is defined }}{{ missing | default('d') }}"""
    values = {"x": "abc", "y": {"k": 1, "j": [1]}}
    plain = jinja2.sandbox.ImmutableSandboxedEnvironment().from_string(source)
    with sandbox.bounded(values):
        assert sandbox.Sandbox().from_string(source).render(values) == plain.render(values)


def test_a_long_dialogue_is_no_endless_template():
    messages = [{"role": ("user", "assistant")[n % 2], "content": "word " * 2000} for n in range(2000)]
    source = "{% for m in messages %}{{ m.role + ': ' + m.content | trim + '\n' }}{% endfor %}"
    assert len(ChatTemplate(source).render(messages)) > 19_000_000


def test_expressions_of_tasks_are_linear():
    assert templates.text(r"{{ ('a' * 40 ~ 'b') | sub('(a+)+$', '') | length }}", {}, "t.yaml: context") == "41"
    assert templates.text(r"{{ 'a [b] c' | sub(' .(b). ', '-\\1-') }}", {}, "") == "a-b-c"
    with pytest.raises(UserError, match=r"t.yaml: context: sub: '\(\?=a\)': invalid perl operator: .*; wants a"):
        templates.text("{{ 'a' | sub('(?=a)', '') }}", {}, "t.yaml: context")
    assert extracted("a" * 40 + "b", "(a+)+$") == ""
    assert [extracted(text, "#### (-?[0-9]+)|none") for text in ("#### 1 #### 23.", "none", "")] == ["23", "", ""]


def test_a_last_match_is_that_of_python():
    import re

    patterns = ("[0-9]+", "(a|b)c?", "a+", r"\((.)\)", "x?(b)c", "(?i)A.")
    source = random.Random(0)
    for _ in range(300):
        text, pattern = "".join(source.choices("abc(1)é\n", k=12)), source.choice(patterns)
        want = [*re.finditer(pattern, text)]
        want = ((want[-1][1] or "") if want[-1].re.groups else want[-1][0]) if want else ""
        assert linear_regex.last_match(text, pattern) == want, (text, pattern)


def test_examples():
    assert not any(doctest.testmod(module).failed for module in (sandbox, linear_regex, templates))


def test_an_expression_takes_no_longer_for_a_text_that_it_almost_matches():
    """Python's engine would try the 2^60 ways to split it."""
    assert not linear_regex.matches("a" * 60 + "c", "(a+)+b") and linear_regex.matches("a" * 60 + "b", "(a+)+b")
