"""Jinja over the columns of a row, in a sandbox with bounds: a task's file is a program from elsewhere."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import Any

from jaxpt.errors import UserError
from jaxpt.runtime import linear_regex


def text(template: str, values: Mapping[str, Any], where: str) -> str:
    """Renders a template.

    Args:
      template: Jinja.
      values: {column: value}.
      where: the task's file and key, and the row, for messages.

    Returns:
      The text.

    Raises:
      UserError: it is no Jinja, names a column that the row has not, or takes too many steps.

    Example:
      >>> text("Question: {{ q | trim }}", {"q": " why? "}, "my.yaml: context")
      'Question: why?'
      >>> text("{{ questoin }}", {"question": "why?"}, "my.yaml: context: dev.jsonl: line 1")
      Traceback (most recent call last):
      jaxpt.errors.UserError: my.yaml: context: dev.jsonl: line 1: 'questoin' is undefined; the row has question
    """
    return _rendered(_template(template, False, where).render, values, where)


def value(expression: str, values: Mapping[str, Any], where: str) -> Any:
    """The value of an expression, of any type.

    Args:
      expression: Jinja without braces.
      values: {column: value}.
      where: as in `text`.

    Raises:
      UserError: as `text`.

    Example:
      >>> value("'ABCD'.index(key)", {"key": "C"}, "my.yaml: answer")
      2
    """
    return _rendered(_template(expression, True, where), values, where)


def _rendered(function: Any, values: Mapping[str, Any], where: str) -> Any:
    from jinja2 import Undefined, UndefinedError

    from jaxpt.runtime import sandbox

    has = f"; the row has {', '.join(values)}"
    try:
        with sandbox.bounded(values):
            rendered = function(**values)
    except UndefinedError as error:
        raise UserError(f"{where}: {error}{has}") from None
    except Exception as error:  # a template can raise whatever Python raises
        raise UserError(f"{where}: {' '.join(str(error).split()) or type(error).__name__}{has}") from None
    if isinstance(rendered, Undefined):
        name, parent = rendered._undefined_name, rendered._undefined_obj
        wants = f"is none of {', '.join(map(repr, parent))}" if isinstance(parent, Mapping) else f"is undefined{has}"
        raise UserError(f"{where}: {name!r} {wants}")
    return rendered


def _template(source: str, is_expression: bool, where: str) -> Any:
    import jinja2

    try:
        return compiled(source, is_expression)
    except jinja2.TemplateSyntaxError as error:
        kind = "expression" if is_expression else "template"
        raise UserError(f"{where}: {error.message}; wants a Jinja {kind}") from None


@functools.lru_cache(1024)
def compiled(source: str, is_expression: bool) -> Any:
    """A template or an expression as Jinja compiles it, once for all rows.

    Args:
      source: Jinja.
      is_expression: without braces.

    Returns:
      Jinja's template, or a function of the columns.
    """
    from jaxpt.runtime import sandbox

    environment = _environment()
    if is_expression:
        compile_source = functools.partial(environment.compile_expression, undefined_to_none=False)
        return sandbox.compiled(compile_source, source)
    return sandbox.compiled(environment.from_string, source)


@functools.cache
def _environment() -> Any:
    import jinja2

    from jaxpt.runtime.sandbox import Sandbox

    filters = {"sub": linear_regex.substituted, "wikitext_detokenized": wikitext_detokenized}
    return Sandbox(filters, undefined=jinja2.StrictUndefined, keep_trailing_newline=True)


_WIKITEXT_RULES = [
    (r"s '", "s'"),
    *[(f" @{re.escape(mark)}@ ", mark) for mark in "-,."],
    *[(rf" {re.escape(mark)} ", f"{mark} ") for mark in ":;.!?,"],
    (r"\(\s*([^)]*?)\s*\)", r"(\1)"),
    (r"\[\s*([^\]]*?)\s*\]", r"[\1]"),
    (r"{\s*([^}]*?)\s*}", r"{\1}"),
    (r'"\s*([^"]*?)\s*"', r'"\1"'),
    (r"'\s*([^']*?)\s*'", r"'\1'"),
    ("= = = =", "===="),
    ("= = =", "==="),
    ("= =", "=="),
    (" ° ", "°"),
    (" \n", "\n"),
    ("\n ", "\n"),
    (" N ", " 1 "),
    (" 's", "'s"),
]
"""(pattern, replacement) in the order of the common harness, on whose text published perplexities are."""


def wikitext_detokenized(text: str) -> str:
    """The text without WikiText's spaces and marks: tokens are separated by spaces, hyphens and commas marked.

    Args:
      text: a page as WikiText has it.

    Example:
      >>> wikitext_detokenized(" = Robert = \\n He ( born 1 @,@ 930 ) is an actor , isn 't he ? ")
      " = Robert =\\nHe (born 1,930) is an actor, isn 't he? "
    """
    for pattern, new in _WIKITEXT_RULES:
        text = re.sub(pattern, new, text)
    return text
