"""The metrics of a task: which rows they are of, and what is told of each row and of those with the largest loss."""

import doctest
import json

import pytest

from jaxpt.data import datasets
from jaxpt.data.labelled import examples
from jaxpt.data.tables import Row
from jaxpt.data.tasks.base import LocatedRow
from jaxpt.data.tasks.classification import ClassificationTask
from jaxpt.data.tasks.generation import GenerationTask
from jaxpt.data.tasks.tagging import TaggingTask
from jaxpt.evals import task
from jaxpt.evals.task import TaskMetrics, lines
from jaxpt.train import evaluation, state
from tests import fine_tuning

TASK = ClassificationTask(labels=("no", "yes"))


@pytest.mark.slow
def test_of_the_validation_set_the_first_rows_are_scored(tmp_path):
    files = {
        f"{split}_path": fine_tuning.write(tmp_path / f"{split}.jsonl", fine_tuning.rows(12, seed))
        for seed, split in enumerate(("validation", "test"))
    }
    config = fine_tuning.recipe(tmp_path, "train.eval_examples=5", data=files)
    data, setup = datasets.prepare(config), state.setup(config)
    params = setup.init().params

    def scored(split):
        found = TaskMetrics(split=split).prepare(setup, data)(params, {}, lambda: False)
        rows = found.details(params, {}).rows
        right = [row["prediction"] == row["target"] for row in rows]
        assert found.metrics["accuracy"] == pytest.approx(sum(right) / len(rows))
        return [row["id"] for row in rows]

    assert scored("validation") == [f"r{n}" for n in range(5)]
    assert len(scored("test")) == 12


@pytest.mark.slow
def test_rows_that_are_scored_in_groups_are_told_one_by_one(tmp_path):
    settings = {"kind": "classification", "group": "other", "metrics": ["multirc", "accuracy"]}
    config = fine_tuning.recipe(tmp_path, task=settings)
    data, setup = datasets.prepare(config), state.setup(config)
    params = setup.init().params
    found = TaskMetrics().prepare(setup, data)(params, {}, lambda: False)
    rows = found.details(params, {}).rows
    right = [row["prediction"] == row["target"] for row in rows]
    assert found.metrics["accuracy"] == pytest.approx(sum(right) / len(rows))
    assert {row["target"] for row in rows} == {"bad", "good"} and all(row["loss"] > 0 for row in rows)


@pytest.mark.slow
def test_a_result_is_scored_again_without_the_model(tmp_path, monkeypatch):
    """With the thresholds of the validation set, which another evaluation would be given."""
    settings = {"kind": "multi_label", "label": "topics", "labels": ["film"]}
    config = fine_tuning.recipe(tmp_path, task=settings, made=fine_tuning.rows(256))
    data, setup = datasets.prepare(config), state.setup(config)
    params = setup.init().params
    evaluate = TaskMetrics().prepare(setup, data)
    first = evaluate(params, {}, lambda: False)
    measured = evaluation.figures({"task": first})
    wanted = evaluate(params, measured, lambda: False)
    assert "task/threshold_0" in measured and wanted.metrics != first.metrics
    monkeypatch.setattr(task._OneTask, "outputs", None)
    again = first.rescored(measured)
    assert (again.metrics, again.lines) == (wanted.metrics, wanted.lines)
    assert again.details(params, measured) == wanted.details(params, measured)


def test_lines_say_what_a_value_is_of_and_what_it_is_compared_with():
    """Each word's most frequent tag is no constant."""
    tagging = TaggingTask(labels=("B-A", "O"), metrics=("tag_accuracy", "macro_f1", "span_f1"))
    metrics, trivial = {"tag_accuracy": 0.9, "macro_f1": 0.8}, {"tag_accuracy": 0.8522, "macro_f1": 0.4}
    assert lines("task", metrics, trivial, tagging.baseline_names(), {"span_f1": tagging.computed("span_f1", [])}) == [
        "task: tag_accuracy 0.9000 (most-frequent-tag baseline 0.8522)  macro_f1 0.8000 (constant baseline 0.4000)  "
        "[span_f1: micro average over entities, IOB2, conlleval's rules]"
    ]


def rows(*texts):
    return [LocatedRow(Row(n, {"id": f"r{n}", "text": text}), f"line {n}", (0, n)) for n, text in enumerate(texts)]


def test_examples_in_docstrings():
    assert doctest.testmod(task).attempted


def test_every_row_and_the_worst_first():
    losses = [0.1, 2.5, 0.3, 0.2, 0.0, 0.7, 0.6]
    found = task.row_details(
        TASK, rows(*"abc", "a\n film " * 40, *"efg"), [0, 1, 0, 1, 0, 1, 0], [0, 0, 0, 1, 0, 1, 0], losses
    )
    assert found.rows[1] == {"id": "r1", "target": "yes", "prediction": "no", "loss": 2.5}
    assert [json.loads(json.dumps(one))["loss"] for one in found.rows] == losses
    table, worst = found.lines[:3], found.lines[3:]
    assert [line.split() for line in table[1:]] == [["no", "4", "0"], ["yes", "1", "2"]]
    assert worst[:3] == ("largest losses of 7 rows:", "2.5000 r1: yes → no  b", "0.7000 r5: yes → yes  f")
    assert len(worst) == 1 + task.WORST and worst[5].startswith("0.2000 r3: yes → yes  a film a film")
    assert all("\n" not in line and len(line) <= 162 for line in worst)
    (part,) = found.parts
    assert [one["loss"] for one in part["worst"]] == sorted(losses, reverse=True)
    assert part["worst"][0] == found.rows[1] | {"text": "b"}, "with their texts"


def test_a_row_without_an_id_is_called_by_its_number_as_in_predictions(tmp_path):
    """Not by its line, so that the rows of a run join those of `jaxpt predict`; also where they are held out."""
    table = tmp_path / "train.csv"
    table.write_text("text,label\n" + "".join(f'"film {n}\n{n}",{TASK.labels[n % 2]}\n' for n in range(40)))
    config = fine_tuning.recipe(tmp_path, data={"path": str(table)})
    held_out = examples.split_rows(config, "validation")
    found = task.row_details(TASK, held_out, [0] * len(held_out), [0] * len(held_out), [0.0] * len(held_out))
    assert [f"film {one['id']}\n{one['id']}" for one in found.rows] == [row.row.values["text"] for row in held_out]
    assert 0 < len(held_out) < 20 and found.lines[-1].split()[1] == f"{found.parts[0]['worst'][4]['id']}:"


def test_labels_are_counted_where_they_are_classes():
    located = [LocatedRow(Row(n, {"label": label}), "", (0, n)) for n, label in enumerate(("no", "yes", "no"))]
    assert task.label_counts(TASK, located) == {"no": 2, "yes": 1}
    many = [LocatedRow(Row(n, {"label": str(n)}), "", (0, n)) for n in range(task.MOST_LABELS + 1)]
    assert task.label_counts(TASK, many) == {} == task.label_counts(GenerationTask(), located)


def test_texts_have_no_matrix():
    generation = GenerationTask(inputs="{text}", targets="target")
    found = task.row_details(generation, rows("a", "b"), [["x", "y"], ["z"]], ["x", ""], [0.25, 1.5])
    assert found.lines == ("largest losses of 2 rows:", "1.5000 r1: z → (none)  b", "0.2500 r0: x, y → x  a")
    assert found.rows[0] == {"id": "r0", "target": ["x", "y"], "prediction": "x", "loss": 0.25}
