r"""Runs regular expressions that others wrote by RE2, in a time that is linear in the text.

Python's engine tries alternatives one after the other: `(a+)+$` takes years on forty letters. RE2 has neither
look-around nor references to groups. Apache Arrow, which reads Parquet here, brings it.
"""

from __future__ import annotations

import functools

from jaxpt.errors import UserError

_OPEN, _CLOSE = "\ufdd0", "\ufdd1"  # around a match; no characters, in no text


@functools.lru_cache(1024)
def check(pattern: str, where: str) -> None:
    """Checks an expression.

    Args:
      pattern: the expression.
      where: what names it, for the message.

    Raises:
      UserError: RE2 does not read it.

    Example:
      >>> check("(?=a)", "my.yaml: extract")
      Traceback (most recent call last):
      jaxpt.errors.UserError: my.yaml: extract: '(?=a)': invalid perl operator: (?=; wants a regular expression of RE2
    """
    import pyarrow
    from pyarrow import compute

    try:
        compute.match_substring_regex("", pattern)
    except pyarrow.ArrowInvalid as error:
        reason = str(error).removeprefix("Invalid regular expression: ")
        raise UserError(f"{where}: {pattern!r}: {reason}; wants a regular expression of RE2") from None


def matches(text: str, pattern: str) -> bool:
    """True if an expression matches the whole text.

    Args:
      text: the text.
      pattern: the expression, one that `check` has passed.

    Example:
      >>> matches("layer.0.query", "layer.[0-9].(query|key)"), matches("layer.0.query", "layer")
      (True, False)
    """
    from pyarrow import compute

    return compute.match_substring_regex(text, rf"^(?:{pattern})$").as_py()


def substituted(text: str, pattern: str, new: str) -> str:
    r"""The text with all matches replaced.

    Args:
      text: the text.
      pattern: the expression.
      new: what comes in the place of a match; `\1` is its first group, `\0` all of it.

    Returns:
      The new text.

    Raises:
      UserError: RE2 does not read the expression, or `new` has another escape than of a group.

    Example:
      >>> substituted("a [b] c", r" \[(.)\]", r"-\1")
      'a-b c'
    """
    import pyarrow
    from pyarrow import compute

    check(pattern, "sub")
    try:
        return compute.replace_substring_regex(text, pattern=pattern, replacement=new).as_py()
    except pyarrow.ArrowInvalid as error:
        raise UserError(f"sub: {new!r}: {error}") from None


def last_match(text: str, pattern: str) -> str:
    """The last match in a text.

    Args:
      text: the text.
      pattern: the expression.

    Returns:
      The first group of the last match, all of it where the expression has no group; "" without a match.

    Raises:
      UserError: RE2 does not read the expression.

    Example:
      >>> last_match("#### 1 #### 23", "#### ([0-9]+)")
      '23'
    """
    text = text.replace(_OPEN, "").replace(_CLOSE, "")
    group = r"\1" if _has_group(pattern) else r"\0"
    marked = substituted(text, pattern, f"{_OPEN}{group}{_CLOSE}")
    return marked.rpartition(_OPEN)[2].partition(_CLOSE)[0] if _OPEN in marked else ""


@functools.lru_cache(1024)
def _has_group(pattern: str) -> bool:
    try:
        substituted("", pattern, r"\1")
    except UserError:
        return False
    return True
