"""Multiple choice: where choices and labels stand in rows, and what is refused."""

import doctest
import json

import numpy as np
import pytest

from jaxpt.data.tables import Row
from jaxpt.data.tasks import multiple_choice
from jaxpt.data.tasks.base import LocatedRow
from jaxpt.data.tasks.multiple_choice import MultipleChoiceTask
from jaxpt.errors import UserError

HELLASWAG = {"ctx": "A man sits.", "endings": ["He eats.", "He flies."], "label": 1}
ARC = {"question": "Why?", "choices": {"text": ["a", "b", "c"], "label": ["A", "B", "C"]}, "answerKey": "C"}
OPENBOOK = {
    "question": {"stem": "Why?", "choices": [{"text": "x", "label": "1"}, {"text": "y", "label": "2"}]},
    "answerKey": "2",
}
COPA = {"premise": "It rained.", "question": "so", "choice1": "I got wet.", "choice2": "I flew.", "label": "0"}
SWAG = {"sent1": "She sits.", "sent2": "She", "ending0": "sings.", "ending1": "flies.", "label": "sings."}


def test_examples_in_docstrings():
    assert doctest.testmod(multiple_choice).failed == 0


@pytest.mark.parametrize(
    ("keys", "values", "pairs", "target"),
    [
        (
            {"text": "ctx", "choices": "endings"}, HELLASWAG,
            [("A man sits.", "He eats."), ("A man sits.", "He flies.")], 1,
        ),
        ({"text": "question", "label": "answerKey"}, ARC, [("Why?", "a"), ("Why?", "b"), ("Why?", "c")], 2),
        (
            {"text": "question.stem", "choices": "question.choices", "label": "answerKey"},
            OPENBOOK, [("Why?", "x"), ("Why?", "y")], 1,
        ),
        (
            {"text": "premise", "question": "question", "question_in": "context", "choices": ("choice1", "choice2")},
            COPA, [("It rained. so", "I got wet."), ("It rained. so", "I flew.")], 0,
        ),
        (
            {"text": "sent1", "question": "sent2", "choices": ("ending0", "ending1")},
            SWAG, [("She sits.", "She sings."), ("She sits.", "She flies.")], 0,
        ),
    ],
)  # fmt: skip
def test_published_formats(keys, values, pairs, target):
    task, row = MultipleChoiceTask(**keys), Row(1, values)
    assert task.pairs(row, "line 1") == pairs and task.target(row, "line 1") == target
    assert set(task.content(row, "line 1")) > {*task.choices_in(row, "line 1").texts}


def test_choices_and_labels_as_cells_of_a_table():
    task, row = MultipleChoiceTask(text="question", label="answerKey"), Row(1, ARC)
    for choices in (ARC["choices"], [{"text": "a", "label": "A"}, {"text": "b", "label": "C"}], ["a", "b", "c"]):
        given, cell = (Row(1, ARC | {"choices": value}) for value in (choices, json.dumps(choices)))
        assert task.choices_in(cell, "") == task.choices_in(given, "")
        assert task.target(cell, "") == task.target(given, "")
    assert task.pairs(Row(1, ARC | {"choices": "['a', 'b']"}), "") == [("Why?", "a"), ("Why?", "b")]
    assert task.target(Row(1, ARC | {"answerKey": '["z", "b"]'}), "") == 1
    assert task.target(Row(1, ARC | {"choices": ["[1]", "[2]"], "answerKey": "[2]"}), "") == 1
    with pytest.raises(
        UserError, match=r"^f: column 'choices' \(task.choices\) wants a list of JSON, .* got \"\['a' 'b'"
    ):
        task.choices_in(Row(1, row.values | {"choices": "['a' 'b']"}), "f")


def test_labels_as_numbers_letters_names_and_texts():
    def target(label, names=None, **keys):
        choices = {"text": ["4", "2", "six"], "label": names} if names else ["4", "2", "six"]
        return MultipleChoiceTask(**keys).target(Row(1, {"text": "t", "choices": choices, "label": label}), "line 1")

    assert [target(label) for label in (0, "2", "A", "c", "six")] == [0, 2, 0, 2, 2]
    assert target("2") == 2 and target("2", first_number=1) == 1
    assert target("2", ["2", "3", "4"]) == 0  # the row's own names come first
    assert target("4") == 0  # no number of a choice
    assert target(["2"]) == target(["7", "2"]) == 1 and target([0]) == 0  # of a list the texts come first


@pytest.mark.parametrize(
    ("values", "keys", "words"),
    [
        (
            {"label": 3},
            {},
            r"line 7: label '3' \(task.label\) is none of 3 choices; wants 0 to 2, A to C, or a choice's",
        ),
        ({"label": "D"}, {}, "label 'D'"),
        ({"label": 0}, {"first_number": 1}, "wants 1 to 3"),
        ({"label": None}, {}, "line 7: column 'label' .* is empty"),
        ({"choices": "a b"}, {}, r"column 'choices' \(task.choices\) wants a list of texts"),
        ({"choices": ["a"]}, {}, "wants two choices or more, got 1"),
        ({"choices": ["a", " "]}, {}, "choice 2 is empty"),
        ({"choices": {"text": ["a", "b"], "label": ["A"]}}, {}, "has 2 texts and 1 labels"),
        ({}, {"most_choices": 2}, "3 choices; task.most_choices is 2: set task.most_choices=3"),
        ({"text": 3}, {}, r"task.text\): column 'text' wants text"),
        ({}, {"choices": ("a", "c")}, "no column 'a'"),
    ],
)
def test_bad_rows(values, keys, words):
    row = Row(7, {"text": "t", "choices": ["a", "b", "c"], "label": 0} | values)
    task = MultipleChoiceTask(**keys)
    with pytest.raises(UserError, match=words) as error:
        task.target(row, "line 7"), task.pairs(row, "line 7")
    assert "\n" not in str(error.value)


def test_answers():
    outputs, task = [np.array([[0.0, 2.0, 1.0]])], MultipleChoiceTask(text="question", first_number=1, most_choices=4)
    p = np.exp([0.0, 2.0, 1.0]) / np.exp([0.0, 2.0, 1.0]).sum()
    found = task.answer(outputs, Row(1, ARC), "line 1")
    assert found == {"label": "B", "text": "b", "probabilities": pytest.approx(dict(zip("ABC", p)))}
    found = task.answer(outputs, Row(1, {"choices": ["a", "a", "c"]}), "line 1")
    assert found == {"label": 2, "text": "a", "probabilities": pytest.approx(dict(zip("123", p)))}
    assert task.loss(outputs, 2) == pytest.approx(-np.log(p[2]))
    assert task.named(2, Row(1, ARC), "line 1") == "c" and task.text_of(Row(1, ARC), "line 1") == "Why?"
    assert task.confusions([0, 1], [0, 2])[3].split() == ["3", "0", "1", "0", "0"]


RECORD = {"passage": "Ann met Bob and Eve.", "query": "@placeholder met Ann.", "entities": ["Ann", "Bob", "Eve"]}
CLOZE = MultipleChoiceTask(
    text="passage", question="query", placeholder="@placeholder", choices="entities", label="answers",
    metrics=("record", "accuracy"),
)  # fmt: skip


def test_a_question_in_words():
    keys = {"text": "premise", "question": "question", "choices": ("choice1", "choice2")}
    task = MultipleChoiceTask(**keys, question_in="context", question_words={"cause": "Why?", "effect": "And then?"})
    row = Row(1, {**COPA, "question": "effect"})
    assert task.pairs(row, "line 1")[0] == ("It rained. And then?", "I got wet.")
    with pytest.raises(UserError, match=r"^line 1: question 'so' is none of task.question_words: cause, effect"):
        task.pairs(Row(1, COPA), "line 1")
    with pytest.raises(ValueError, match="question_words: wants question"):
        MultipleChoiceTask(question_words={"a": "b"})


def test_choices_in_the_place_of_a_placeholder_of_which_any_right_one_counts():
    row = Row(1, {**RECORD, "answers": ["Eve", "Bob"]})
    assert CLOZE.pairs(row, "")[1] == ("Ann met Bob and Eve.", "Bob met Ann.")
    assert CLOZE.target(row, "") == 2, "training learns the first"
    rows = [LocatedRow(row, "", (0, n)) for n in range(3)]
    _, targets = CLOZE.grouped(rows)
    assert CLOZE.score([2, 1, 0], targets, "record") == {
        "exact_match": pytest.approx(2 / 3),
        "f1": pytest.approx(2 / 3),
    }
    assert CLOZE.score([2, 1, -1], targets, "accuracy") == {"accuracy": pytest.approx(2 / 3)}
    assert CLOZE.majority("record", rows, rows, targets) is None
    assert [CLOZE.row_target(target) for target in targets] == [1] * 3, "of each row one that is right"
    plain = MultipleChoiceTask(choices="entities")
    assert [task.named(index, row, "") for task in (CLOZE, plain) for index in (2, -1)] == ["Eve", None] * 2
    with pytest.raises(UserError, match=r"label 'Zoe' \(task.label\) is none of 3 choices"):
        CLOZE.target(Row(1, {**RECORD, "answers": ["Zoe"]}), "")


def test_choices_as_text():
    """UnifiedQA's format; T5's where its code knows the task."""
    task, row = MultipleChoiceTask(question="q"), Row(1, {"text": "It rained.", "q": "And then?", "label": 1})
    row.values["choices"] = ["I got wet.", "I flew away."]
    assert task.input_text(row, "") == "And then? \\n (A) I got wet. (B) I flew away. \\n It rained."
    assert task.target_text(row, "") == "I flew away."
    said = ("I flew away.", "he flew", "I", "no")
    assert [task.parse(text, row, "") for text in said] == [1, 1, 0, -1]
    answers = [task.answer_text(text, row, "")["label"] for text in ("he flew", "I", "no")]
    assert answers == [1, 0, None]
    assert task.answer_text("he flew", row, "") == {"text": "he flew", "label": 1}
    copa = MultipleChoiceTask(name="copa", text="premise", question="question", choices=("choice1", "choice2"))
    row = Row(1, COPA)
    wanted = "copa choice1: I got wet. choice2: I flew. premise: It rained. question: so"
    assert (copa.input_text(row, ""), copa.target_text(row, "")) == (wanted, "choice1")
    assert [copa.parse(text, row, "") for text in ("choice2", "I flew.")] == [1, -1]
