"""Grids: the examples, and names of runs that are names of directories."""

import doctest

from jaxpt.config import sweeps


def test_examples_in_docstrings():
    failed, tried = doctest.testmod(sweeps)
    assert tried and not failed


def test_names_of_runs_have_no_slash_or_space():
    point = (("data.path", '"a b/c.txt"'), ("objective", '{"kind": "x"}'))
    names = sweeps.labels(tuple((key, ()) for key, _ in point))
    assert sweeps.run_name("row", point, None, names) == "row-path=a_b_c.txt-objective=kind_x"


def test_keys_that_end_alike_are_written_out():
    assert set(sweeps.labels((("a.x", ()), ("b.x", ())))) == set(sweeps.labels((("a.x", ()), ("b.x", ()))).values())
