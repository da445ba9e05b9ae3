"""Targets that are texts, and answers that are generated."""

import doctest

import pytest
from pydantic import ValidationError

from jaxpt.data.tasks import generation
from jaxpt.data.tasks.classification import ClassificationTask
from jaxpt.data.tasks.generation import GenerationTask
from jaxpt.data.tasks.regression import RegressionTask
from jaxpt.data.tasks.text_format import TextFormatTask
from jaxpt.errors import UserError
from tests.text_pairs import rows


def test_doctests():
    assert doctest.testmod(generation).failed == 0


def test_columns_make_the_input():
    task = GenerationTask(inputs="question: {q}  context: {c}", targets="a")
    (row,) = rows({"q": "Who?", "c": "A dog, {not a column}.", "a": "the dog"})
    assert task.columns() == ("q", "c")
    assert task.input_text(row.row, "x") == "question: Who?  context: A dog, {not a column}."
    assert task.target_text(row.row, "x") == "the dog"
    assert task.vocabulary_texts(row.row, "x") == (task.input_text(row.row, "x"), "the dog")
    one = GenerationTask(inputs="{{x}} {t.de} {0:.2}{1!r}", targets="t.en")
    (nested,) = rows({"t": {"de": "Katze", "en": "cat"}, "0": "abc", "1": 2})
    assert one.input_text(nested.row, "x") == "{x} Katze ab'2'" and one.target_text(nested.row, "x") == "cat"
    assert task.answer_text("a cat", row.row, "x") == {"text": "a cat"}


@pytest.mark.parametrize("inputs", ["no column", "{}", "{open", "a } b", "{a:d}", "{a:{b}}", "{a!x}"])
def test_inputs_without_a_column_are_refused(inputs):
    with pytest.raises(ValidationError, match=r"wants a text with \{column\} in it"):
        GenerationTask(inputs=inputs)


def test_a_column_that_is_missing_is_named():
    task, (row,) = GenerationTask(inputs="{mr}", targets="ref"), rows({"name": "x"})
    with pytest.raises(UserError, match=r"line 2.*'mr'"):
        task.input_text(row.row, "line 2")
    with pytest.raises(UserError, match=r"line 2.*'ref'"):
        task.target_text(row.row, "line 2")


@pytest.mark.parametrize("value", [3, [], ["a", 1], None])
def test_targets_that_are_no_texts_are_refused(value):
    task, (row,) = GenerationTask(inputs="{mr}", targets="ref"), rows({"mr": "x", "ref": value})
    with pytest.raises(UserError, match="line 2"):
        task.target_text(row.row, "line 2")


def test_rows_of_one_input_are_scored_together():
    task = GenerationTask(inputs="{mr}", targets="ref", metrics=("bleu",))
    found, references = task.grouped(
        rows({"mr": "a", "ref": "one"}, {"mr": "b", "ref": "two"}, {"mr": "a", "ref": "ten"}, {"mr": "a", "ref": "one"})
    )
    assert [row.origin for row in found] == [(0, 1), (0, 2)]
    assert references == [["one", "ten"], ["two"]]


def test_a_generated_label_is_its_words_and_nothing_else():
    task = ClassificationTask(labels=("0", "1"), names=("bad", "good"))
    (row,) = rows({"text": "x", "label": "1"})
    assert task.answer_text("good", row.row, "x") == {"text": "good", "label": "good"}
    assert task.answer_text("very good", row.row, "x") == {"text": "very good", "label": None}
    predictions = [task.parse(text, row.row, "x") for text in ("good", "goodness", "")]
    assert task.score(predictions, [1, 1, 0], "accuracy") == {"accuracy": pytest.approx(1 / 3)}, "no label is wrong"


def test_a_generated_number_is_a_number_or_nothing():
    task = RegressionTask()
    (row,) = rows({"text": "x", "label": 1})
    assert task.answer_text("3.8", row.row, "x") == {"text": "3.8", "value": 3.8}
    assert task.answer_text("nan", row.row, "x") == task.answer_text("four", row.row, "x") | {"text": "nan"}
    assert task.answer_text("four", row.row, "x")["value"] is None


def test_a_language_is_a_code():
    assert GenerationTask(language="pt_BR").language == "pt_BR"
    with pytest.raises(ValidationError, match="wants a language's code, such as de or zh-Hant, got 'chinese'"):
        GenerationTask(language="chinese")


def test_metrics_fit_the_language():
    zh = [["我们昨天去了北京的公园。"]]
    task = GenerationTask(metrics=("bleu", "ter", "chrf"))
    assert task.score(["我们今天去了北京的公园。"], zh, "bleu")["bleu"] > 50
    assert task.computed("chrf", [["a", "b"], ["c"]]).startswith("nrefs:var|")
    assert "|tok:zh|" in task.computed("bleu", zh) and "|asian:yes|" in task.computed("ter", zh)
    own = GenerationTask(metrics=("bleu",), language="zh", metric_options={"bleu": {"tokenize": "char"}})
    own.check_metrics()
    assert "|tok:char|" in own.computed("bleu", zh) and "|tok:zh|" in GenerationTask(language="zh").computed(
        "bleu", [["abc"]]
    )
    assert "|tok:zh|" in TextFormatTask(name="translate_en_zh").computed("bleu", [["abc"]])
