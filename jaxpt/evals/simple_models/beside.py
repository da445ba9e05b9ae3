"""The best simple model beside a fine-tuned one, on the same rows: stored, so that the runs of a recipe share it."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxpt.config import Config
from jaxpt.data.tasks.base import LocatedRow
from jaxpt.errors import UserError
from jaxpt.evals.simple_models import measure as measuring
from jaxpt.evals.simple_models.base import Splits
from jaxpt.evals.simple_models.measure import Measured, Score
from jaxpt.metrics import jackknife
from jaxpt.runtime import disk, packages

VERSION = 2
"""Another one where the same rows give other scores: stored scores are not read then."""
MEAN_CHARACTERS = 250
"""Of a row, up to which the limit on training rows holds; longer rows count as several."""
SIGNIFICANT = 2.0
"""Standard errors by which a model has to be better."""


class Comparison(NamedTuple):
    """What is said of a fine-tuned model."""

    lines: tuple[str, ...]
    entry: dict[str, Any]
    """For run.json."""


def is_within(config: Config, trained: Sequence[LocatedRow], limit: int) -> bool:
    """True if simple models take no more than seconds at the end of a run.

    Args:
      config: of one task.
      trained: the rows of its training set.
      limit: rows of the usual length at most.
    """
    is_short = len(trained) <= limit and config.task.kind in measuring.MODELS
    return is_short and measuring.characters(config.task, trained) <= MEAN_CHARACTERS * limit


def compare(
    config: Config, split: str, predictions: Sequence[Any], targets: Sequence[Any], metrics: Mapping[str, float]
) -> Comparison:
    """Compares predictions with those of the quick simple models, the best of which the validation set chooses.

    Args:
      config: of one task.
      split: whose predictions they are.
      predictions: of its rows, in their order.
      targets: likewise.
      metrics: of these predictions.

    Raises:
      UserError: simple models cannot be fitted.
    """
    measured = stored(config, split)
    best, value = measured.best, metrics[measured.metric]
    reference = best.metrics[split][measured.metric]
    without = measuring.leave_out(config.task, targets, predictions, measured.metric)
    is_paired = without is not None and len(without) == len(best.without)
    error = jackknife.standard_error(without - np.array(best.without)) if is_paired else None
    difference = value - reference
    gain = -difference if measured.lower_is_better else difference
    verdict = "not significantly better" if gain > 0 else "no better"
    verdict = "better" if gain > SIGNIFICANT * (error or 0.0) else verdict
    constant = measured.constant[split].get(measured.metric)
    entry = {
        "split": split, "metric": measured.metric, "model": best.model, "setting": best.setting,
        "value": reference, "error": best.error, "constant": constant,
        "difference": difference, "difference_error": error, "verdict": verdict,
    }  # fmt: skip
    return Comparison(tuple(lines(entry, measured.baseline_names)), entry)


def lines(entry: Mapping[str, Any], baseline_names: Mapping[str, str]) -> list[str]:
    """What the user is shown of a comparison.

    Args:
      entry: of `compare`.
      baseline_names: {value: name of the constant baseline}, where it is no constant.

    Example:
      >>> entry = {"metric": "accuracy", "model": "words_svm", "setting": "C=1", "value": 0.81, "error": 0.013,
      ...          "constant": 0.51, "difference": 0.02,
      ...          "difference_error": 0.011, "verdict": "not significantly better"}
      >>> for line in lines(entry, {}):
      ...     print(line)
      best simple model: words_svm (C=1), accuracy 0.8100 ± 0.0130, constant baseline 0.5100; this model \
+0.0200 ± 0.0110
      accuracy is not significantly better than that of a simple baseline: the difference is below 2 standard errors; \
jaxpt baseline has them all
    """
    metric, model = entry["metric"], entry["model"]
    setting = f" ({entry['setting']})" if entry["setting"] else ""
    name = baseline_names.get(metric, "constant baseline")
    constant = "" if entry["constant"] is None else f", {name} {entry['constant']:.4f}"
    difference = f"{entry['difference']:+.4f}{_error(entry['difference_error'])}"
    reference = f"{metric} {entry['value']:.4f}{_error(entry['error'])}"
    texts = [f"best simple model: {model}{setting}, {reference}{constant}; this model {difference}"]
    if entry["verdict"] != "better":
        why = f": the difference is below {SIGNIFICANT:g} standard errors" if entry["verdict"].startswith("not") else ""
        texts.append(f"{metric} is {entry['verdict']} than that of a simple baseline{why}; jaxpt baseline has them all")
    return texts


def _error(error: float | None) -> str:
    return "" if error is None else f" ± {error:.4f}"


def stored(config: Config, split: str) -> Measured:
    """The scores of the quick simple models on a split; of the cache, where the same rows were measured before."""
    from jaxpt.data.checks import cache_root

    splits, left_out = measuring.read_splits(config, split)
    models = [model for model in measuring.offered(config) if model.is_quick]
    file = cache_root(config) / "simple_models" / f"{_digest(config, splits, [model.name for model in models])}.json"
    if (known := _read(file)) is not None:
        return known
    measured, _ = measuring.measure(config, models, splits, left_out)
    file.parent.mkdir(parents=True, exist_ok=True)
    disk.write_text(file, json.dumps(dataclasses.asdict(measured)) + "\n")
    return measured


def _read(file: Path) -> Measured | None:
    """None where there is no such file, or a damaged one."""
    if not file.is_file():
        return None
    try:
        fields = disk.read_json(file)
        return Measured(**fields | {"scores": [Score(**score) for score in fields["scores"]]})
    except (UserError, TypeError, KeyError):
        return None


def _digest(config: Config, splits: Splits, models: Sequence[str]) -> str:
    """Of all that the scores depend on."""
    task = config.task.model_dump(mode="json")
    versions = [VERSION, packages.version("scikit-learn"), packages.version("numpy")]
    known = [versions, models, task, config.checkpoint.best_metric]
    digest = hashlib.blake2b(json.dumps(known).encode(), digest_size=16)
    for split, rows in splits.rows.items():
        for row in rows:
            digest.update(json.dumps([split, row.row.values], default=str).encode())
    return digest.hexdigest()
