import numpy as np
import pytest

from jaxpt.errors import UserError
from jaxpt.metrics.glue import GLUE, glue_labels, glue_submission, glue_task, glue_test
from jaxpt.metrics.text_tasks import TASKS


def test_the_leaderboards_files():
    assert {task.submission for task in GLUE.values()} == {
        "CoLA.tsv", "SST-2.tsv", "MRPC.tsv", "STS-B.tsv", "QQP.tsv", "MNLI-m.tsv", "MNLI-mm.tsv", "QNLI.tsv", "RTE.tsv",
        "WNLI.tsv", "AX.tsv",
    }  # fmt: skip


@pytest.mark.parametrize("name", GLUE)
def test_labels_agree_with_the_text_format(name):
    task, text = GLUE[name], TASKS[name]
    assert task.words == text.labels and len(task.labels) == len(task.words)


@pytest.mark.parametrize(
    ("name", "predictions", "written"),
    [
        ("sst2", [0, 1, "1", "positive"], ["0", "1", "1", "1"]),
        ("SST-2", np.array([1, 0]), ["1", "0"]),
        ("cola", ["acceptable", 0], ["1", "0"]),
        ("wnli", ["not_entailment", 1], ["0", "1"]),
        ("rte", [0, 1], ["entailment", "not_entailment"]),
        ("MNLI-mm", [0, 1, 2], ["entailment", "neutral", "contradiction"]),
        ("ax", [2], ["contradiction"]),
        ("stsb", [-1.0, 0.12345, 5.5, 3], ["0.000", "0.123", "5.000", "3.000"]),
    ],
)
def test_submissions(name, predictions, written):
    lines = glue_submission(name, range(10, 10 + len(written)), predictions)
    assert lines == ["index\tprediction", *(f"{10 + i}\t{word}" for i, word in enumerate(written))]


def test_bad_submissions():
    with pytest.raises(UserError, match=r"QNLI\.tsv: 1 predictions for 2 ids"):
        glue_submission("qnli", [0, 1], [0])
    with pytest.raises(UserError, match=r"RTE\.tsv: the id 0 stands twice"):
        glue_submission("rte", [0, 1, 0], [0, 1, 0])
    for wrong in (-1, 2, "maybe", None):
        with pytest.raises(UserError, match=r"RTE\.tsv: the prediction .* is none of: entailment, not_entailment"):
            glue_submission("rte", [0], [wrong])
        assert glue_submission("rte", [0], [wrong], default="entailment")[1] == "0\tentailment"
    for wrong in ("x", float("nan"), None):
        with pytest.raises(UserError, match=r"STS-B\.tsv: the prediction .* is no finite number"):
            glue_submission("stsb", [0], [wrong])
        assert glue_submission("stsb", [0], [wrong], default="0")[1] == "0\t0.000"
    with pytest.raises(UserError, match="GLUE has no task 'boolq'; one of: cola, sst2, "):
        glue_task("boolq")


def test_the_test_set_of_a_file():
    files = ("MNLI/test_matched.tsv", "a/test_mismatched.tsv", "diagnostic.tsv")
    assert [glue_test("mnli", file) for file in files] == ["mnli_matched", "mnli_mismatched", "ax"]
    for name in ("mnli_matched", "mnli_mismatched", "ax"):
        assert [glue_test(name, file) for file in files] == ["mnli_matched", "mnli_mismatched", "ax"]
    assert glue_test("ax", "test.tsv") == "ax" and glue_test("mnli_mismatched", "test.tsv") == "mnli_mismatched"
    assert glue_test("sst2", "mismatched.tsv") == "sst2"


@pytest.mark.parametrize("name", [name for name in GLUE if GLUE[name].labels])
def test_labels_by_value_word_and_class_id(name):
    task = GLUE[name]
    ids = [str(number) for number in range(len(task.labels))]
    assert glue_labels(name, task.words) == task.labels
    assert glue_labels(name, ids) == glue_labels(name, task.labels) == task.labels
    assert glue_labels(name, task.labels[::-1]) == task.labels[::-1]


@pytest.mark.parametrize(
    ("name", "labels", "said"),
    [
        ("rte", ["entailment", "maybe"], "'maybe' is none of RTE.tsv's labels: entailment, not_entailment"),
        ("cola", ["0", "1", "2"], "'2' is none of CoLA.tsv's labels: 0, 1, unacceptable, acceptable"),
        # one is missing, or there twice
        ("rte", ["entailment"], "entailment are not the labels of RTE.tsv: entailment, not_entailment"),
        ("rte", ["entailment", "0"], "entailment, 0 are not the labels of RTE.tsv: entailment, not_entailment"),
        ("wnli", ["0", "1", "1"], "0, 1, 1 are not the labels of WNLI.tsv: 0, 1"),
    ],
)
def test_labels_that_are_not_the_leaderboards_are_named(name, labels, said):
    with pytest.raises(UserError) as caught:
        glue_labels(name, labels)
    assert str(caught.value) == f"task.labels: {said}"


def test_a_model_without_a_name_of_a_task_is_asked_for_it():
    with pytest.raises(UserError, match=r"^task\.name is missing; --glue wants one of: cola, sst2, .*, ax$"):
        glue_test(None, "test.tsv")
