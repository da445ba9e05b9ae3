"""Rows in memory as splits of a task."""

from jaxpt.data.tables import Row
from jaxpt.data.tasks.base import LocatedRow
from jaxpt.evals.simple_models.base import Splits


def located(rows):
    return [LocatedRow(Row(n, row), f"line {n}", (0, n)) for n, row in enumerate(rows)]


def splits_of(task, seed=0, **rows):
    """Splits with these rows: train=…, validation=…, and test=… if any."""
    by_split = {split: located(of_split) for split, of_split in rows.items()}
    targets = {split: [task.target(r.row, r.where) for r in of_split] for split, of_split in by_split.items()}
    return Splits(task, by_split, targets, seed)


def candidates(models, name, splits):
    """{setting: candidate} of a model."""
    model = next(model for model in models if model.name == name)
    return {candidate.setting: candidate for candidate in model.candidates(splits)}
