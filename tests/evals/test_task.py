"""The metrics of a task: which rows they are of."""

import pytest

from jaxpt.data import datasets
from jaxpt.data.tasks.tagging import TaggingTask
from jaxpt.evals.task import TaskMetrics, lines
from jaxpt.train import state
from tests import fine_tuning


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


def test_lines_say_what_a_value_is_of_and_what_it_is_compared_with():
    """Each word's most frequent tag is no constant."""
    task = TaggingTask(labels=("B-A", "O"), metrics=("tag_accuracy", "macro_f1", "span_f1"))
    metrics, trivial = {"tag_accuracy": 0.9, "macro_f1": 0.8}, {"tag_accuracy": 0.8522, "macro_f1": 0.4}
    assert lines("task", metrics, trivial, task.baseline_names(), {"span_f1": task.computed("span_f1", [])}) == [
        "task: tag_accuracy 0.9000 (most-frequent-tag baseline 0.8522)  macro_f1 0.8000 (constant baseline 0.4000)  "
        "[span_f1: micro average over entities, IOB2, conlleval's rules]"
    ]
