"""What is told of the best checkpoint of a task: a line for each row, and the rows with the largest loss."""

import doctest
import json

from jaxpt.data.tables import Row
from jaxpt.data.tasks.base import LocatedRow
from jaxpt.data.tasks.classification import ClassificationTask
from jaxpt.data.tasks.generation import GenerationTask
from jaxpt.evals import error_analysis

TASK = ClassificationTask(labels=("no", "yes"))


def rows(*texts):
    return [LocatedRow(Row(n, {"id": f"r{n}", "text": text}), f"line {n}", (0, n)) for n, text in enumerate(texts)]


def test_examples_in_docstrings():
    assert doctest.testmod(error_analysis).attempted


def test_every_row_and_the_worst_first():
    losses = [0.1, 2.5, 0.3, 0.2, 0.0, 0.7, 0.6]
    found = error_analysis.details(
        TASK, rows(*"abc", "a\n film " * 40, *"efg"), [0, 1, 0, 1, 0, 1, 0], [0, 0, 0, 1, 0, 1, 0], losses
    )
    assert found.rows[1] == {"id": "r1", "target": "yes", "prediction": "no", "loss": 2.5}
    assert [json.loads(json.dumps(one))["loss"] for one in found.rows] == losses
    table, worst = found.lines[:3], found.lines[3:]
    assert [line.split() for line in table[1:]] == [["no", "4", "0"], ["yes", "1", "2"]]
    assert worst[:3] == ("largest losses of 7 rows:", "2.5000 r1: yes → no  b", "0.7000 r5: yes → yes  f")
    assert len(worst) == 1 + error_analysis.WORST and worst[5].startswith("0.2000 r3: yes → yes  a film a film")
    assert all("\n" not in line and len(line) <= 162 for line in worst)
    (part,) = found.parts
    assert [one["loss"] for one in part["worst"]] == sorted(losses, reverse=True)
    assert part["worst"][0] == found.rows[1] | {"text": "b"}, "with their texts"


def test_labels_are_counted_where_they_are_classes():
    located = [LocatedRow(Row(n, {"label": label}), "", (0, n)) for n, label in enumerate(("no", "yes", "no"))]
    assert error_analysis.label_counts(TASK, located) == {"no": 2, "yes": 1}
    many = [LocatedRow(Row(n, {"label": str(n)}), "", (0, n)) for n in range(error_analysis.MOST_LABELS + 1)]
    assert error_analysis.label_counts(TASK, many) == {} == error_analysis.label_counts(GenerationTask(), located)


def test_texts_have_no_matrix():
    task = GenerationTask(inputs="{text}", targets="target")
    found = error_analysis.details(task, rows("a", "b"), [["x", "y"], ["z"]], ["x", ""], [0.25, 1.5])
    assert found.lines == ("largest losses of 2 rows:", "1.5000 r1: z → (none)  b", "0.2500 r0: x, y → x  a")
    assert found.rows[0] == {"id": "r0", "target": ["x", "y"], "prediction": "x", "loss": 0.25}
