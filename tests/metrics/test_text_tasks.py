"""T5's formats equal the released code's: text_golden.json has what it made of the rows of `text_rows.py`."""

import json
import math
from pathlib import Path

import pytest

from jaxpt.errors import UserError
from jaxpt.metrics.text_pronouns import names_referent
from jaxpt.metrics.text_tasks import TASKS, generic_inputs, label_word, text_task
from tests.metrics.text_rows import PAIR, PREMISE, ROWS, SQUAD, WSC

GOLDEN = json.loads((Path(__file__).parent / "text_golden.json").read_text("utf-8"))
CLOSED_BOOK = ("natural_questions", "trivia_qa", "web_questions")


@pytest.mark.parametrize(
    ("row", "golden"), zip([row for _, row in ROWS], GOLDEN, strict=True), ids=[task for task, _ in ROWS]
)
def test_texts_are_those_of_the_released_code(row, golden):
    name, inputs, targets = golden
    task = text_task(name)
    assert task.inputs(row) == inputs
    if name == "wsc_simple" and not row["label"]:
        targets = []  # T5 leaves these out in training
    assert list(task.targets(row)) == targets


def test_all_tasks_have_been_compared():
    assert {name for name, _ in ROWS} | {"xsum", "mnli_matched", "mnli_mismatched", *CLOSED_BOOK} == {
        *TASKS, "translate_en_de", "translate_ro_en",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "row", "inputs", "targets", "answers"),
    [  # by the preprocessors of t5_cbqa: a prefix each
        (
            "natural_questions",
            {"question": "who is it", "answer": ["Ann", "Anna"]},
            "nq question: who is it", ("Ann",), ["Ann", "Anna"],
        ),
        (
            "trivia_qa",
            {"question": "Who?", "answer": {"value": "Ann", "aliases": ["Anna", "Ann"]}},
            "trivia_qa question: Who?", ("Ann",), ["Anna", "Ann"],
        ),
        (
            "web_questions",
            {"question": "who?", "answers": ["Ann", "Anna"]},
            "wq question: who?", ("Ann",), ["Ann", "Anna"],
        ),
    ],
)  # fmt: skip
def test_closed_book_questions(name, row, inputs, targets, answers):
    task = text_task(name)
    assert (task.inputs(row), task.targets(row), task.gold(row)) == (inputs, targets, answers)
    assert task.parse(" any text", row) == " any text"


@pytest.mark.parametrize("name", [name for name, task in TASKS.items() if task.labels])
def test_label_words_come_back_as_ids_and_other_text_as_none_of_them(name):
    task = text_task(name)
    for number, word in enumerate(task.labels):
        assert task.targets({"label": number}) == task.targets({"label": word}) == (word,)
        assert task.gold({"label": number}) == task.gold({"label": word}) == task.parse(word, {}) == number
    for text in ("", "no such", task.labels[0] + " ", task.labels[0].swapcase(), "<unk>"):
        assert task.parse(text, {}) == -1
    assert task.targets({"label": -1}) == task.targets({}) == ("<unk>",)
    assert task.gold({}) == -1


def test_labels_of_files():
    assert label_word("1", ["negative", "positive"]) == "positive"  # GLUE's files have numbers
    assert label_word(True, ["False", "True"]) == "True"  # SuperGLUE's true and false
    assert label_word(None, ["negative", "positive"]) == label_word(-1, ["negative", "positive"]) == "<unk>"
    for wrong in (2, "2", "neutral", 0.5, "-2"):
        with pytest.raises(UserError, match="is none of: negative, positive"):
            label_word(wrong, ["negative", "positive"])


def test_numbers_of_stsb():
    task = text_task("stsb")
    assert [task.parse(text, {}) for text in ("3.8", "5", " 2.0", "x", "", "nan", "inf")] == [3.8, 5, 2, -1, -1, -1, -1]
    assert task.gold(PAIR | {"label": 3.333}) == 3.333  # what is scored is not rounded
    assert all(math.isclose(float(task.targets({"label": i / 5})[0]), i / 5) for i in range(26))


@pytest.mark.parametrize(
    ("text", "referent", "expected"),
    [
        ("The Bunny", "the bunny", 1), ("fuzzy bunny", "bunny", 1), ("bunny", "fuzzy bunny", 1), ("rabbit", "bunny", 0),
        ("Bob", "Bob's hat", 0), ("Bob's", "Bob's hat", 1), ("", "Bob", -1), ("the", "Bob", -1), (" bob ", "Bob", 1),
    ],
)  # fmt: skip
def test_referents(text, referent, expected):
    assert names_referent(text, referent) == expected
    assert text_task("wsc_simple").parse(text, {"span1_text": referent}) == expected


def test_pronouns_are_scored_by_the_rows_label():
    task = text_task("wsc_simple")
    assert task.gold(WSC) == 1 and task.gold(WSC | {"label": False}) == 0 and task.gold({"span1_text": "x"}) == -1
    assert task.targets(WSC | {"label": 0}) == ()
    wnli = text_task("wnli_simple")
    row = {"sentence1": "The fish ate the worm. It was tasty.", "sentence2": "The worm was tasty.", "label": 0}
    assert (wnli.targets(row), wnli.parse("worm", row), wnli.gold(row)) == (("The worm",), 1, 0)


def test_a_word_between_hypothesis_and_pronoun_may_have_any_signs():
    """They are no part of a pattern."""
    wnli = text_task("wnli_simple")
    for sign in ("(quietly", "c++", "[sic]", "what?!", "\\", "a|b", "$1"):
        told = f"He told Bob {sign} that"
        row = {"sentence1": f"{told} it rained.", "sentence2": f"{told} snow rained."}
        assert wnli.inputs(row) == f"wsc: {told} *it* rained."
        assert wnli.targets(row) == ("snow",)


@pytest.mark.parametrize(
    ("premise", "hypothesis", "inputs"),
    [
        ("Bob ate. It rained.", "Cats sleep.", "wsc: Bob ate. *It* rained."),  # no word in common
        ("Rain it snow.", "Snow rain.", "wsc: Rain *it* snow."),  # the other way round, nothing between them
    ],
)
def test_a_hypothesis_that_names_no_referent(premise, hypothesis, inputs):
    """The released code gives an empty target, too; no answer names it."""
    row, wnli = {"sentence1": premise, "sentence2": hypothesis}, text_task("wnli_simple")
    assert (wnli.inputs(row), wnli.targets(row)) == (inputs, ("",))
    assert [wnli.parse(text, row) for text in ("Bob", "cats", "")] == [0, 0, -1]


def test_answers_of_squad_are_spaced_as_its_texts():
    task = text_task("squad")
    assert task.gold(SQUAD) == ["Brazil", "Brazil ( 5 - time champion ) ", ' " it " . ']
    assert task.gold({"answers": ["U.S."]}) == ["U . S . "]  # a plain list of answers


def test_any_task_with_columns():
    assert generic_inputs("topics", {"b": "two", "a": 1}) == "topics a: 1 b: two"
    assert generic_inputs("mnli", PREMISE) == text_task("mnli").inputs(PREMISE)


def test_xsum_has_the_format_of_summaries():
    task = text_task("xsum")
    row = {"document": "Long.", "summary": "Short."}
    assert (task.inputs(row), task.targets(row), task.gold(row)) == ("summarize: Long.", ("Short.",), ["Short."])


@pytest.mark.parametrize("name", [*TASKS, "translate_en_de"])
def test_a_column_that_is_missing_is_named(name):
    with pytest.raises(UserError, match=r"the row has no column '\w+'; it has: id$"):
        text_task(name).inputs({"id": 1})


def test_bad_rows():
    with pytest.raises(UserError, match="stsb: the row has no column 'label'; it has: sentence1, sentence2"):
        text_task("stsb").targets(PAIR)
    with pytest.raises(UserError, match="dpr: the row has no column 'candidates'; it has: sentence, label"):
        text_task("dpr").targets({"sentence": "x", "label": 0})
    with pytest.raises(UserError, match="qqp: the row has no column 'question2'; it has: question1, label"):
        text_task("qqp").inputs({"question1": "x", "label": 0})
    with pytest.raises(UserError, match=r"wsc: word 3 \(from 0\) of .* is not 'He', which span2_index says"):
        text_task("wsc_simple").inputs(WSC | {"span2_index": 3})
    with pytest.raises(UserError, match=r"wnli: the premise 'No one\.' has no pronoun"):
        text_task("wnli_simple").inputs({"sentence1": "No one.", "sentence2": "x"})
    row = {"sentence1": "The fish ate the worm. It was tasty.", "sentence2": "The small , old worm was tasty."}
    words = r"wnli: 'the small old worm' is not in the hypothesis 'The small , old .*; there must be one space between"
    with pytest.raises(UserError, match=words):
        text_task("wnli_simple").targets(row)
    with pytest.raises(UserError, match="no text format for the task 'sst-2'; one of: sst2"):
        text_task("sst-2")
    with pytest.raises(UserError, match="translate: no language 'xx'; one of: ar, "):
        text_task("translate_en_xx")
