"""WikiText as running text: its tokens are separated by spaces, and hyphens and commas inside of numbers are marked."""

from __future__ import annotations

import re

_RULES = [
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


def detokenized(text: str) -> str:
    """The text without WikiText's spaces and marks.

    Args:
      text: a page as WikiText has it.

    Example:
      >>> detokenized(" = Robert = \\n He ( born 1 @,@ 930 ) is an actor , isn 't he ? ")
      " = Robert =\\nHe (born 1,930) is an actor, isn 't he? "
    """
    for pattern, new in _RULES:
        text = re.sub(pattern, new, text)
    return text
