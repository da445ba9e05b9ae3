"""Jinja over the columns of a row."""

import pytest

from jaxpt.errors import UserError
from jaxpt.evals.few_shot import templates


def test_a_missing_column_is_one_line_that_says_what_there_is():
    with pytest.raises(UserError, match=r"t.yaml: context: 'b' is undefined; the row has a, c"):
        templates.text("{{ b }}", {"a": 1, "c": 2}, "t.yaml: context")
    with pytest.raises(UserError, match="'b' is undefined"):
        templates.value("b", {"a": 1}, "t.yaml: answer")


@pytest.mark.parametrize("source", ["{{ a", "{% if %}"])
def test_what_is_no_jinja_is_one_line(source):
    with pytest.raises(UserError, match="wants a Jinja template"):
        templates.text(source, {"a": 1}, "t.yaml: context")


def test_a_template_cannot_leave_the_sandbox():
    with pytest.raises(UserError, match=r"t.yaml: context"):
        templates.text("{{ a.__class__.__mro__ }}", {"a": 1}, "t.yaml: context")
    with pytest.raises(UserError):
        templates.value("a.append(1)", {"a": []}, "t.yaml: choices")


def test_values_keep_their_type():
    assert templates.value("[a, b]", {"a": "x", "b": 2}, "") == ["x", 2]
    assert templates.text("{{ a | sub('x+', 'y') }}", {"a": "axxb"}, "") == "ayb"


def test_a_template_is_compiled_once_for_all_rows():
    templates.compiled.cache_clear()
    for n in range(50):
        assert templates.text("{{ a }}!", {"a": n}, f"rows.jsonl: line {n}") == f"{n}!"
    assert templates.compiled.cache_info().misses == 1
