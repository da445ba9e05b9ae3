"""The types of arguments: each converts the text of an argument, or says what it expects."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from typing import Any

from jaxpt.errors import UserError
from jaxpt.runtime import disk


def output(text: str) -> str:
    """A file or directory to be written."""
    try:
        disk.check_mounted(text)
    except UserError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def _checked(convert: Callable[[str], Any], is_right: Callable[[Any], bool], expected: str) -> Callable[[str], Any]:
    def parse(text: str) -> Any:
        try:
            parsed = convert(text)
        except ValueError:
            parsed = None
        if parsed is None or not is_right(parsed):
            raise argparse.ArgumentTypeError(f"expected {expected}, got {text!r}")
        return parsed

    return parse


def _integers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(",")))


def _words(text: str) -> list[str]:
    return [word for word in text.split(",") if word]


count = _checked(int, lambda number: number >= 1, "a positive integer")
index = _checked(int, lambda number: number >= 0, "an index ≥ 0")
positive = _checked(float, lambda number: 0 < number < math.inf, "a number above 0")
nonnegative = _checked(float, lambda number: 0 <= number < math.inf, "a number from 0 on")
share = _checked(float, lambda number: 0 <= number <= 1, "a share from 0 to 1")
numbers = _checked(_integers, lambda numbers: min(numbers) >= 0, "numbers such as 0,5")
words = _checked(_words, bool, "names such as a,b")
