"""Tasks of T5's code by name: examples of the training set, the way back, and metrics on cases by hand."""

import doctest
import json

import pytest

from jaxpt.config.check import _first_metric
from jaxpt.data.labelled.text_pairs import TextPairsEncoder
from jaxpt.data.tables import Row
from jaxpt.data.tasks import text_format
from jaxpt.data.tasks.multiple_choice import MultipleChoiceTask
from jaxpt.data.tasks.text_format import TextFormatTask
from jaxpt.errors import UserError
from jaxpt.metrics.text_tasks import text_task
from tests.text_pairs import Words, ids, rows

RECORD = TextFormatTask(name="record", metrics=("record",))
WSC = TextFormatTask(name="wsc_simple", metrics=("accuracy",))
QUERY = {"query": "@placeholder ran", "entities": ["cat", "dog", "one"], "answers": ["cat", "dog"], "passage": "it is"}
PRONOUN = {"text": "the cat ran , it is good", "span1_text": "the cat", "span2_text": "it", "span2_index": 4}


def test_examples_in_docstrings():
    assert doctest.testmod(text_format).failed == 0


def targets(task, values, train):
    words = Words()
    encoder = TextPairsEncoder(task, 32, 6, after=(1,))
    return [record["targets"].tolist() for record in encoder(rows(values), words, True, train)]


def test_training_has_an_example_for_each_answer_of_record_and_scoring_one():
    assert targets(RECORD, QUERY, train=True) == [ids(Words(), "cat </s>"), ids(Words(), "dog </s>")]
    assert targets(RECORD, QUERY, train=False) == [ids(Words(), "cat </s>")]


@pytest.mark.parametrize("label", [False, "False", 0, "0"])
def test_training_leaves_wrong_referents_out(label):
    right, wrong = PRONOUN | {"label": not label if label is False else 1}, PRONOUN | {"label": label}
    assert targets(WSC, right, train=True) == [ids(Words(), "the cat </s>")]
    assert targets(WSC, wrong, train=True) == []
    assert targets(WSC, wrong, train=False) == targets(WSC, right, train=False) == targets(WSC, right, train=True)
    assert (WSC.target(Row(1, right), ""), WSC.target(Row(1, wrong), "")) == (1, 0)


def test_labels_that_tfds_hides_are_no_labels():
    assert text_task("wsc_simple").gold(PRONOUN | {"label": None}) == -1
    assert text_task("wnli_simple").gold({"label": "entailment"}) == 1


@pytest.mark.parametrize(
    "name, values, words",
    [
        ("squad", {"question": "q", "context": "c", "answers": None}, "squad (column 'answers' is empty)"),
        ("translate_en_de", {"en": None, "de": "x"}, "translate_en_de (column 'en' is empty)"),
        ("wsc_simple", PRONOUN | {"span2_index": "x", "label": 1}, "wsc_simple (ValueError: invalid literal for int"),
    ],
)
def test_rows_that_do_not_fit_are_named(name, values, words):
    task, row = TextFormatTask(name=name), Row(3, values)
    with pytest.raises(UserError) as error:
        print(task.input_text(row, "f: line 3"), task.target(row, "f: line 3"), task.target_texts(row, "f: line 3"))
    assert f"f: line 3: does not fit task.name: {words}" in str(error.value) and "\n" not in str(error.value)


def test_record_takes_the_best_of_several_answers():
    given = [Row(1, QUERY), Row(2, QUERY | {"answers": ["New York City"]})]
    gold = [RECORD.target(row, "") for row in given]
    said = [RECORD.parse(text, row, "") for text, row in zip(("the dog", "York City"), given)]
    assert RECORD.score(said, gold, "record") == {"exact_match": 0.5, "f1": pytest.approx((1 + 0.8) / 2)}
    assert RECORD.majority("record", [], [], gold) is None


def test_wsc_is_scored_by_what_the_text_names():
    given = [Row(n, PRONOUN | {"label": label}) for n, label in enumerate((True, False, True, False), 1)]
    said = ["cat", "dog", "dog", "the"]  # right: names it · right: does not · wrong · nothing said
    predictions = [WSC.parse(text, row, "") for text, row in zip(said, given)]
    assert predictions == [1, 0, 0, -1]
    assert WSC.score(predictions, [WSC.target(row, "") for row in given], "accuracy") == {"accuracy": 0.5}


def test_class_ids_are_shown_as_words():
    row = Row(1, PRONOUN | {"label": False})
    shown = [WSC.difference(target, prediction, row, "") for target, prediction in ((0, 1), (1, 0), (0, -1))]
    assert shown == ["False → True", "True → False", "False → (none)"]
    assert TextFormatTask(name="cola").difference(0, 1, row, "") == "unacceptable → acceptable"
    assert TextFormatTask(name="stsb").difference(0.0, -1.0, row, "") == "0 → -1"
    assert RECORD.difference(["cat", "dog"], "", row, "") == "cat, dog → (none)"


def test_lists_as_cells_of_a_table():
    cells = QUERY | {name: json.dumps(QUERY[name]) for name in ("entities", "answers")}
    given, cell = Row(1, QUERY), Row(1, cells)
    for read in (RECORD.input_text, RECORD.target, RECORD.target_texts, MultipleChoiceTask(name="record").input_text):
        assert read(cell, "") == read(given, "")
    assert RECORD.target(Row(1, QUERY | {"answers": "cat"}), "") == ["cat"], "one answer, not its letters"
    squad = TextFormatTask(name="squad")
    assert squad.target(Row(1, {"answers": json.dumps({"text": ["a b"], "answer_start": [0]})}), "") == ["a b"]
    assert squad.target(Row(1, {"answers": "a b"}), "") == ["a b"]
    with pytest.raises(UserError, match=r"^f: column 'answers' wants a list of JSON, "):
        RECORD.target(Row(1, QUERY | {"answers": "['cat' 'dog']"}), "f")


def test_names_and_rows_that_do_not_fit():
    with pytest.raises(ValueError, match="no text format for the task 'recrod'; one of: record"):
        TextFormatTask(name="recrod")
    with pytest.raises(UserError, match=r"^f: line 3: record: the row has no column 'query'"):
        RECORD.input_text(Row(3, {"text": "a"}), "f: line 3")
    with pytest.raises(UserError, match=r"task.metrics: f1: a task of kind text_format has no such metric"):
        RECORD.model_copy(update={"metrics": ("f1",)}).check_metrics()


@pytest.mark.parametrize(
    ("name", "fits", "others"),
    [
        ("wsc_simple", ("accuracy",), ("exact_match", "pearson")),
        ("cola", ("accuracy",), ("bleu",)),
        ("stsb", ("pearson", "spearman"), ("accuracy", "exact_match")),
        ("squad", ("exact_match",), ("accuracy", "spearman")),
        ("translate_en_de", ("exact_match",), ("accuracy",)),
    ],
)
def test_metrics_fit_the_format(name, fits, others):
    task = TextFormatTask(name=name)
    task.check_metrics()
    assert task.scored == fits == task.model_copy(update={"metrics": fits}).scored
    for metric in others:
        message = rf"^task.metrics: {metric}: predictions of task.name: {name} are [\w ]+; one of: .*\b{fits[0]}\b"
        with pytest.raises(UserError, match=message):
            task.model_copy(update={"metrics": (metric,)}).check_metrics()


def test_a_recipe_without_metrics_chooses_the_checkpoint_by_one_that_fits():
    best = {name: _first_metric({"name": name}, TextFormatTask) for name in ("wsc_simple", "stsb", "squad", 7)}
    assert best == {"wsc_simple": "accuracy", "stsb": "pearson", "squad": "exact_match", 7: "exact_match"}
    stsb = TextFormatTask(name="stsb")
    parsed = [stsb.parse(text, Row(1, {}), "") for text in ("1.0", "2.4")]
    assert stsb.score(parsed, [1.0, 3.0], "pearson") == pytest.approx({"pearson": 1})
