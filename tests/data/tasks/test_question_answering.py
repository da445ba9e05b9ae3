"""Answers and where they stand; spans of several windows become one answer, or none."""

import json
import math

import numpy as np
import pytest

from jaxpt.data.tables import Row
from jaxpt.data.tasks.question_answering import Found, QuestionAnsweringTask
from jaxpt.errors import UserError

ONE, TWO = QuestionAnsweringTask(), QuestionAnsweringTask(metrics=("squad_v2",))
CONTEXT = "Ada met Charles in London."
NONE = (-math.inf, 0, 0)


def row(answers, **more):
    return Row(7, {"id": "q", "question": "Whom?", "context": CONTEXT, "answers": answers, **more})


def span(text, start):
    return {"text": text, "answer_start": start}


def test_spans_point_into_the_context():
    found = ONE.spans(row([span("Charles", 8), span("Charles in London", 8)]), "f: row 7")
    assert [CONTEXT[slice(*one)] for one in found] == ["Charles", "Charles in London"]
    assert ONE.spans(row({"text": ["Ada"], "answer_start": [0]}), "") == [(0, 3)]  # TFDS


@pytest.mark.parametrize(
    "answer, there", [(("Charles", 9), "harles "), (("Ada", -1), "Ada"), (("London.", 99), ""), (("", 3), "")]
)
def test_an_answer_elsewhere_names_row_and_both_texts(answer, there):
    with pytest.raises(UserError) as error:
        ONE.spans(row([span(*answer)]), "f: row 7")
    said = f"f: row 7: answer {answer[0]!r} is not at answer_start {answer[1]}, where {there!r} stands"
    assert str(error.value) == said


def test_no_answer_wants_squad_v2():
    with pytest.raises(UserError, match=r"^f: row 7: the question has no answer; task.metrics=\[squad_v2\]"):
        ONE.target(row([]), "f: row 7")
    assert TWO.target(row([]), "") == [] and TWO.spans(row([]), "") == []
    assert TWO.target(row([span("Ada", 0)], is_impossible=True), "") == []


def test_answers_and_flags_as_cells_of_a_table():
    for answers in ([span("Ada", 0)], {"text": ["Ada"], "answer_start": [0]}):
        assert TWO.spans(row(json.dumps(answers), is_impossible="false"), "") == [(0, 3)]
        assert TWO.spans(row(json.dumps(answers), is_impossible="True"), "") == []
    with pytest.raises(UserError, match="f: row 7: answers wants a list, got 'Ada'"):
        TWO.spans(row("Ada"), "f: row 7")


def test_empty_context():
    with pytest.raises(UserError, match=r"column 'context' \(task.context\) is empty"):
        ONE.texts(Row(1, {"question": "Whom?", "context": " "}), "f: row 1")


def test_the_best_span_of_all_windows_and_the_least_null_score():
    outputs = [
        np.array([(3.0, 0, 0), (5.0, 8, 15)]),
        np.array([(1.0, 0, 0), (6.0, 19, 25)]),
        np.array([(2.0, 0, 0), NONE]),
    ]
    assert ONE.decide(outputs, CONTEXT) == Found("London", 19, 5.0)
    assert ONE.answer(outputs, CONTEXT) == {"answer": "London", "score": 5.0, "start": 19}
    assert ONE.decide(outputs[2:], CONTEXT) == Found("", None, -math.inf)
    assert ONE.answer(outputs[2:], CONTEXT) == {"answer": "", "score": None, "start": None}


def test_threshold():
    """No answer where the null score is larger by more than the threshold; SQuAD 1.1 always has one."""
    outputs = [np.array([(3.0, 0, 0), (2.0, 8, 15)])]
    none, charles = {"answer": "", "score": -1.0, "start": None}, {"answer": "Charles", "score": -1.0, "start": 8}
    assert ONE.answer(outputs, CONTEXT) == charles
    assert TWO.answer(outputs, CONTEXT) == none
    assert TWO.model_copy(update={"null_threshold": 1.0}).answer(outputs, CONTEXT) == charles
    assert TWO.model_copy(update={"null_threshold": 0.9}).answer(outputs, CONTEXT) == none


def test_the_likeliest_answers():
    """Each text once, the softmax of their scores; where questions may have no answer, that is always among them."""
    outputs = [
        np.array([(1.0, 0.5, 0), (3.0, 8, 15), (2.0, 0, 3)]),
        np.array([(0.0, 1.5, 0), (2.5, 8, 15), (2.2, 19, 25)]),
    ]
    found = ONE.model_copy(update={"nbest": 2}).answer(outputs, CONTEXT)
    p = np.exp([3.0, 2.2]) / np.exp([3.0, 2.2]).sum()
    assert found["answer"] == "Charles" and [one["text"] for one in found["nbest"]] == ["Charles", "London"]
    np.testing.assert_allclose([one["probability"] for one in found["nbest"]], p, atol=1e-6)
    found = TWO.model_copy(update={"nbest": 2}).answer(outputs, CONTEXT)["nbest"]
    p = np.exp([3.0, 2.2, 0.0]) / np.exp([3.0, 2.2, 0.0]).sum()
    assert [one["text"] for one in found] == ["Charles", "London", ""]
    np.testing.assert_allclose([one["probability"] for one in found], p, atol=1e-6)
    empty = [np.array([(0.0, 1.0, 0), NONE])]
    assert ONE.model_copy(update={"nbest": 2}).answer(empty, CONTEXT)["nbest"] == [{"text": "", "probability": 1.0}]
    assert "nbest" not in ONE.answer(outputs, CONTEXT) and ONE.loss(outputs, ["Charles"]) == 1.0


@pytest.mark.parametrize("task", [ONE, TWO])
def test_the_likeliest_answers_are_those_of_berts_code(task):
    """google-research/bert eedf571, run_squad.py, write_predictions, as far as it is about nbest."""
    rng = np.random.default_rng(0)
    for _ in range(50):
        outputs = []
        for _ in range(int(rng.integers(1, 4))):
            starts = rng.integers(0, 20, int(rng.integers(1, 6)))
            scores = np.sort(rng.normal(size=len(starts)))[::-1]
            spans = np.stack([scores, starts, starts + rng.integers(1, 6, len(starts))], 1)
            outputs.append(np.vstack([(rng.normal(), 0, 0), spans]))
        prelim = [(score, CONTEXT[int(start) : int(end)]) for one in outputs for score, start, end in one[1:]]
        null = min(one[0, 0] for one in outputs)
        if task is TWO:
            prelim.append((null, ""))
        nbest, seen = [], set()
        for score, text in sorted(prelim, key=lambda one: one[0], reverse=True):
            if len(nbest) >= 4:
                break
            if text not in seen:
                seen.add(text)
                nbest.append((score, text))
        if task is TWO and "" not in seen:
            nbest.append((null, ""))
        p = np.exp([score for score, _ in nbest]) / np.exp([score for score, _ in nbest]).sum()
        found = task.model_copy(update={"nbest": 4}).best(outputs, CONTEXT)
        assert [one["text"] for one in found] == [text for _, text in nbest]
        np.testing.assert_allclose([one["probability"] for one in found], p, atol=1e-6)


def test_shown_answers_follow_the_threshold():
    found = Found("Charles", 8, -1.0)
    assert ONE.named(found, row([]), "") == "Charles" and TWO.named(found, row([]), "") == ""
    assert TWO.difference([], found, row([]), "") == "(none) → (none)" and TWO.text_of(row([]), "") == "Whom?"
    assert ONE.difference(["Ada", "Ada L."], found, row([]), "") == "Ada, Ada L. → Charles"


def test_the_best_threshold_of_the_validation_set_is_taken():
    predictions = [Found("Charles", 8, -1.0), Found("Ada", 0, -3.0)]
    scores = TWO.score(predictions, [["Charles"], []], "squad_v2")
    assert scores["exact"] == 50.0 and scores["best_exact"] == scores["best_f1"] == 100.0
    metrics = {f"task/{name}": value for name, value in scores.items()}
    chosen = TWO.with_measured(metrics)
    assert chosen.null_threshold == 1.0
    assert chosen.score(predictions, [["Charles"], []], "squad_v2")["exact"] == 100.0
    own = TWO.model_copy(update={"null_threshold": 0.5})
    assert own.with_measured(metrics) is own and ONE.with_measured({}) is ONE


def test_a_threshold_under_which_nothing_is_answered():
    """Where that is best, it is the saved threshold that gives the best values."""
    predictions, targets = [Found("Ada", 0, 2.0), Found("London", 19, -1.0)], [[], []]
    values = TWO.score(predictions, targets, "squad_v2")
    chosen = TWO.with_measured({f"task/{name}": value for name, value in values.items()})
    assert chosen.score(predictions, targets, "squad_v2")["exact"] == values["best_exact"] == 100.0


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2), (2, 1, 0)])
def test_written_answers_have_no_threshold(order):
    """Their scores are infinite: with a threshold between equal ones the best values depended on the order of rows."""
    pairs = [(TWO.parse(text, row([]), ""), target) for text, target in (("a", ["a"]), ("b", []), ("", []))]
    predictions, targets = zip(*(pairs[n] for n in order))
    values = TWO.score(predictions, targets, "squad_v2")
    assert values["best_exact"] == values["best_f1"] == values["exact"] == values["f1"] == pytest.approx(200 / 3)
    assert TWO.with_measured({f"task/{name}": value for name, value in values.items()}) is TWO


def test_squad_counts_any_answer():
    found = [Found("the Charles", 8, 1.0), Found("London", 19, 1.0)]
    assert ONE.score(found, [["Ada", "Charles"], ["Paris"]], "squad") == {"exact_match": 50.0, "f1": 50.0}


def test_questions_of_a_context_are_held_out_together():
    assert ONE.content(row([]), "") == (CONTEXT,)
