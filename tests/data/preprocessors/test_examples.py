"""The worked examples in the preprocessors' docstrings are true."""

import doctest
import importlib

import pytest


@pytest.mark.parametrize(
    "name",
    ["batched", "denoising", "documents", "features", "masked_lm", "sentence_pairs", "span_corruption", "windows"],
)
def test_docstrings(name):
    failed, attempted = doctest.testmod(importlib.import_module(f"jaxpt.data.preprocessors.{name}"))
    assert failed == 0
    assert attempted > 0
