"""Stop strings: one rule for streams, commands and the few-shot harness."""

import doctest

import pytest

from jaxpt.decode import stop_strings
from jaxpt.decode.stop_strings import StopStrings
from jaxpt.errors import UserError


@pytest.mark.parametrize(
    ("text", "stops", "cut"),
    [
        ("Q: abcd", ["bcd", "c"], "Q: ab"),  # "c" is complete before "bcd" is
        ("Q: abcd", ["cd", "bcd"], "Q: a"),  # both end here: the longest
        ("Q: abcd", ["x"], "Q: abcd"),
        ("Q: abcd", [], "Q: abcd"),
        ("abab", ["ab"], ""),
    ],
)
def test_the_text_ends_before_the_first_string_that_is_complete(text, stops, cut):
    assert StopStrings(stops).cut(text) == cut


def test_an_empty_string_is_refused():
    with pytest.raises(UserError, match=r"^--stop: is empty; wants a text that ends the generation$"):
        StopStrings(["a", ""])


def test_examples_in_docstrings():
    failed, tried = doctest.testmod(stop_strings)
    assert tried and not failed
