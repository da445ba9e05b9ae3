"""The line that says how much text a run has."""

import types

import pytest

from jaxpt.train.amounts import line, of_source
from tests import families


def config(**data):
    return families.config("gpt2", data={"length": 16, "batch_size": 4, **data})


def data(summary, text_per_row):
    return types.SimpleNamespace(summary=summary, text_per_row=text_per_row)


def test_documents_tokens_and_epochs():
    found = data({"train": {"documents": 38, "records": 50, "tokens": 3200}, "validation": {"documents": 2}}, 16.0)
    said = line(config(path="mytexts/*.txt"), found, 25)
    assert said == "train: 38 documents, 3.2k tokens of mytexts/*.txt; 0.5 epochs in 25 steps"


def test_records_of_several_passes_hold_a_text_several_times():
    found = data({"train": {"documents": 38, "records": 50, "tokens": 3200}}, 16.0)
    pairs = families.config("bert", objective={"dupe_factor": 4}, data={"length": 16, "batch_size": 4, "path": "a.txt"})
    assert line(pairs, found, 25) == "train: 38 documents, 800 tokens of a.txt; 2 epochs in 25 steps"


def test_tasks_of_a_mixture_add_up():
    mixture = [{"name": "a", "path": "a.txt"}, {"name": "b", "path": "b.txt"}]
    found = data({f"{name}/train": {"documents": 5, "records": 5, "tokens": 80} for name in "ab"}, 16.0)
    said = line(config(path=None, mixture=mixture), found, 5)
    assert said == "train: 10 documents, 160 tokens of a.txt, b.txt; 2 epochs in 5 steps"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"path": None}, "CPython's documentation (no data.path)"),
        ({"path": ["a", "b", "c", "d", "e"], "source": "text"}, "a + b + c and 2 more"),
        ({"path": None, "source": "builtin"}, "CPython's documentation"),
        ({"path": None, "source": "task", "task": "c4_en"}, "c4_en"),
    ],
)
def test_where_the_text_is_from(given, words):
    assert of_source(config(**given).data) == words
