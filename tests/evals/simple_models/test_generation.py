"""Texts without a decoder: leads, copies, targets of training rows."""

import doctest

from jaxpt.data.tasks.generation import GenerationTask
from jaxpt.data.tasks.text_format import TextFormatTask
from jaxpt.evals.simple_models import generation
from tests.evals.simple_models.helpers import candidates, splits_of

TASK = GenerationTask(inputs="summarize: {article}", targets="highlights")
TRAIN = [
    {"article": "Rain fell all day in the north.", "highlights": "Rain in the north."},
    {"article": "The cat slept on a chair. Nobody woke it.", "highlights": "A cat slept."},
    {"article": "Snow fell in the south.", "highlights": "A cat slept."},
]
TEST = [{"article": 'It rained. "Why?" he said. No one knew! The rest is long.', "highlights": "Rain."},
        {"article": "A cat on a chair", "highlights": ["Cat.", "A cat."]}]  # fmt: skip


def predicted(name, task=TASK, train=TRAIN, test=TEST):
    (candidate,) = candidates(generation.MODELS, name, splits_of(task, train=train, validation=test)).values()
    return candidate.predictions["validation"]


def test_examples_in_docstrings():
    assert doctest.testmod(generation).failed == 0


def test_each_is_what_its_name_says():
    assert predicted("lead_3") == ['It rained.\n"Why?"\nhe said.', "A cat on a chair"]
    assert predicted("copy") == [row["article"] for row in TEST], "without the words of the template"
    assert predicted("commonest") == ["A cat slept."] * 2
    assert predicted("nearest")[1] == "A cat slept."


def test_of_a_format_of_t5_the_prediction_is_what_the_text_means():
    rows = [{"text": "Ann asked Tom if he came .", "span1_text": name, "span2_text": "he", "span2_index": 4, "label": n}
            for n, name in enumerate(("Ann", "Tom"))]  # fmt: skip
    task = TextFormatTask(name="wsc_simple", metrics=("accuracy",))
    assert predicted("commonest", task, rows, rows) == [0, 1], "Tom, of the right rows"
