"""The metrics of a task: which rows they are of."""

import pytest

from jaxpt.data import datasets
from jaxpt.evals.task import TaskMetrics
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
