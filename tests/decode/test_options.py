"""Options and stop strings: what is accepted, what is refused and how; options are the key of a compiled function."""

import ast
import dataclasses
import doctest
import inspect
import itertools

import jax
import numpy as np
import pytest

from jaxpt.decode import options
from jaxpt.decode.options import Options, StopStrings
from jaxpt.errors import UserError


def test_the_defaults_are_greedy_and_hashable():
    assert Options() == Options() and hash(Options()) == hash(Options())
    assert Options().temperature == 0 and Options().beams == 1 and Options().samples == 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        Options().seed = 1
    assert doctest.testmod(options).failed == 0


def test_values_become_plain_and_hashable():
    made = Options(
        max_new_tokens=np.int64(3), temperature=np.float32(0.5), top_p=1, eos=[2, np.int32(5)], bad_words=[[1], (2, 3)],
        stop="\n",
    )  # fmt: skip
    assert made == Options(
        max_new_tokens=3, temperature=0.5, top_p=1.0, eos=(2, 5), bad_words=((1,), (2, 3)), stop=("\n",)
    )
    assert hash(made) is not None
    assert type(made.max_new_tokens) is int and type(made.temperature) is type(made.top_p) is float
    assert Options(eos=7).eos == (7,) and Options(stop=["a", "b"]).stop == ("a", "b")


NAN, INF = float("nan"), float("inf")
SAMPLED = {"temperature": 1.0}
REFUSED = [
    ({"max_new_tokens": 0}, "max_new_tokens is 0: must be an integer from 1 on"),
    ({"max_new_tokens": 2.5}, "max_new_tokens is 2.5: must be an integer from 1 on"),
    ({"max_new_tokens": True}, "max_new_tokens is True: must be an integer from 1 on"),
    ({"max_new_tokens": None}, "max_new_tokens is None: must be an integer from 1 on"),
    ({"min_new_tokens": -1}, "min_new_tokens is -1: must be an integer from 0 on"),
    ({"min_new_tokens": 9, "max_new_tokens": 8}, "min_new_tokens is 9: must be at most max_new_tokens, 8"),
    ({"min_length": "3"}, "min_length is '3': must be an integer from 0 on"),
    ({"temperature": -0.1}, "temperature is -0.1: must be 0 or a number from 1e-6 on"),
    ({"temperature": 1e-40}, "temperature is 1e-40: must be 0 or a number from 1e-6 on"),
    ({"temperature": NAN}, "temperature is nan: must be 0 or a number from 1e-6 on"),
    ({"temperature": INF}, "temperature is inf: must be 0 or a number from 1e-6 on"),
    ({"temperature": "hot"}, "temperature is 'hot': must be 0 or a number from 1e-6 on"),
    ({"temperature": True}, "temperature is True: must be 0 or a number from 1e-6 on"),
    ({"temperature": None}, "temperature is None: must be 0 or a number from 1e-6 on"),
    ({"top_k": 0} | SAMPLED, "top_k is 0: must be an integer from 1 on, or None"),
    ({"top_p": 0.0} | SAMPLED, "top_p is 0.0: must be a number above 0 and at most 1, or None"),
    ({"top_p": 1.01} | SAMPLED, "top_p is 1.01: must be a number above 0 and at most 1, or None"),
    ({"top_p": NAN} | SAMPLED, "top_p is nan: must be a number above 0 and at most 1, or None"),
    ({"min_p": -0.1} | SAMPLED, "min_p is -0.1: must be a number from 0 to 1, or None"),
    ({"typical_p": 1.0} | SAMPLED, "typical_p is 1.0: must be a number between 0 and 1, or None"),
    ({"top_k": 5}, "top_k is 5: must be None at temperature 0: set temperature above 0 to sample"),
    ({"top_p": 0.5}, "top_p is 0.5: must be None at temperature 0: set temperature above 0 to sample"),
    ({"repetition_penalty": 0}, "repetition_penalty is 0: must be a number above 0"),
    ({"presence_penalty": NAN}, "presence_penalty is nan: must be a number"),
    ({"frequency_penalty": "a"}, "frequency_penalty is 'a': must be a number"),
    ({"no_repeat_ngram": -2}, "no_repeat_ngram is -2: must be an integer from 0 on"),
    ({"bad_words": ((),)}, "bad_words is ((),): must be sequences of at least one id each, such as ((5,), (7, 8))"),
    ({"bad_words": (5, 6)}, "bad_words is (5, 6): must be sequences of at least one id each, such as ((5,), (7, 8))"),
    ({"bad_words": ["no"]}, "bad_words is ['no']: must be sequences of at least one id each, such as ((5,), (7, 8))"),
    ({"bad_words": ((-1,),)}, "bad_words is -1: must be an integer from 0 on"),
    ({"first_sentinel": -1}, "first_sentinel is -1: must be an integer from 0 on, or None"),
    ({"forced_first": -1}, "forced_first is -1: must be an integer from 0 on, or None"),
    ({"forced_last": 1.0}, "forced_last is 1.0: must be an integer from 0 on, or None"),
    ({"forced_last": (3, -1)}, "forced_last is -1: must be an integer from 0 on"),
    ({"suppress": (1.5,)}, "suppress is 1.5: must be an integer from 0 on"),
    ({"forced_last": (3, 4), "suppress": (4, 5, 3)}, "forced_last is (3, 4): must be an id that suppress leaves"),
    (
        {"forced_last": 5, "suppress_first": (5,), "max_new_tokens": 1},
        "forced_last is 5: must be an id that suppress_first leaves, at max_new_tokens 1",
    ),
    ({"suppress_first": "7"}, "suppress_first is '7': must be ids, such as (2,)"),
    ({"eos": None}, "eos is None: must be ids, such as (2,)"),
    ({"eos": "2"}, "eos is '2': must be ids, such as (2,)"),
    ({"eos": (2, -1)}, "eos is -1: must be an integer from 0 on"),
    ({"beams": 0}, "beams is 0: must be an integer from 1 on"),
    ({"beams": 4} | SAMPLED, "temperature is 1.0: must be 0 with beams=4, which draw no samples"),
    ({"beams": 4, "samples": 5}, "samples is 5: must be at most beams, 4"),
    ({"samples": 2}, "samples is 2: must be 1 at temperature 0: set temperature above 0, or beams"),
    ({"samples": 0}, "samples is 0: must be an integer from 1 on"),
    ({"length_penalty": 2.0}, "length_penalty is 2.0: must be 1.0 without beams: set beams above 1"),
    ({"length_penalty": NAN, "beams": 2}, "length_penalty is nan: must be a number"),
    ({"early_stopping": True}, "early_stopping is True: must be False without beams: set beams above 1"),
    ({"early_stopping": "yes", "beams": 2}, "early_stopping is 'yes': must be true, false or \"never\""),
    ({"early_stopping": 1, "beams": 2}, 'early_stopping is 1: must be true, false or "never"'),
    ({"seed": -1}, "seed is -1: must be an integer from 0 to 4294967295"),
    ({"seed": 2**32}, "seed is 4294967296: must be an integer from 0 to 4294967295"),
    ({"stop": ("",)}, "stop is ('',): must be texts of at least one character"),
    ({"stop": 5}, "stop is 5: must be texts"),
    ({"scores": 1}, "scores is 1: must be true or false"),
]


@pytest.mark.parametrize("given, message", REFUSED)
def test_refusals_name_option_value_and_remedy(given, message):
    with pytest.raises(UserError) as caught:
        Options(**given)
    assert str(caught.value) == message


def test_every_option_has_a_case_of_refusal_and_a_docstring():
    names = {field.name for field in dataclasses.fields(Options)}
    assert {next(iter(given)) for given, _ in REFUSED} >= names
    body = ast.parse(inspect.getsource(Options)).body[0].body
    documented = {
        field.target.id for field, text in itertools.pairwise(body)
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr)
    }  # fmt: skip
    assert documented == names


@pytest.mark.parametrize(
    "given",
    [
        {"temperature": 1.0, "samples": 5},
        {"beams": 4, "samples": 4, "length_penalty": -1.0, "early_stopping": "never"},
        {"top_p": 1.0, "min_p": 0.0},  # both off: no effect that is missed at temperature 0
        {"min_new_tokens": 8, "max_new_tokens": 8},
        {"seed": 2**32 - 1},
    ],
)
def test_accepted(given):
    assert all(getattr(Options(**given), name) == value for name, value in given.items())


def test_ids_are_checked_against_the_vocabulary():
    fine = Options(eos=(9,), bad_words=((1, 9),), forced_first=9, forced_last=(8, 9), suppress=7)
    fine.check_vocabulary(10)
    wrong = {"eos": (10,), "bad_words": ((1, 10),), "forced_first": 10, "forced_last": (9, 10), "suppress": (10,)}
    for name, value in wrong.items():
        with pytest.raises(UserError, match=f"^{name} is 10: must be ids below the vocabulary's size, 10$"):
            dataclasses.replace(fine, **{name: value}).check_vocabulary(10)


def test_a_compiled_function_is_kept_for_other_seeds_and_stop_strings():
    traced = []

    def run(x, options):
        traced.append(options)
        return x * options.temperature

    run = jax.jit(run, static_argnums=1)
    for given in ({"seed": 3}, {"seed": 4, "stop": ("\n",)}, {"temperature": 2.0}):
        run(1.0, Options(**{"temperature": 0.5} | given).static)
    assert [options.temperature for options in traced] == [0.5, 2.0]


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
