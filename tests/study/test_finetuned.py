"""Scores and paired differences of finished fine-tunings."""

import dataclasses
import math
import os
import statistics

import numpy as np
import pytest
import yaml
from pydantic import TypeAdapter

from jaxpt.config import AnyTask
from jaxpt.config.finetunings import cells, fine_tuning
from jaxpt.config.studies import load_study
from jaxpt.errors import UserError
from jaxpt.metrics import describe, jackknife
from jaxpt.study import finetuned
from tests.study.helpers import SEEDS, finished, predicted, write


def test_differences_of_given_predictions(tmp_path):
    """Beside the formulas for accuracy, where the jackknife over single examples is exact."""
    plan = load_study(write(tmp_path, grid={}))
    rng, count, right = np.random.default_rng(0), 40, {}
    for cell in cells(plan):
        for seed in SEEDS:
            one = fine_tuning(plan, cell, 0, seed)
            correct = rng.random(count) < (0.9 if cell.start == "pretrained" else 0.6)
            right[cell.start, seed] = correct
            finished(one, test={"accuracy": correct.mean()}, test_constant={"accuracy": 0.5})
            rows = [{"id": i, "target": "good", "prediction": "good" if c else "bad"} for i, c in enumerate(correct)]
            predicted(one, rows)
    pretrained, random = cells(plan)
    difference = finetuned.difference(plan, pretrained, random)
    of_seeds = [right["pretrained", seed].mean() - right["random", seed].mean() for seed in SEEDS]
    assert difference.mean == pytest.approx(statistics.fmean(of_seeds))
    assert difference.over_seeds == pytest.approx(statistics.stdev(of_seeds) / math.sqrt(2))
    of_examples = np.mean([right["pretrained", seed].astype(float) - right["random", seed] for seed in SEEDS], 0)
    assert difference.over_examples == pytest.approx(of_examples.std(ddof=1) / math.sqrt(count))
    assert difference.error == pytest.approx(math.hypot(difference.over_seeds, difference.over_examples))
    assert "\n| constant baseline |  | 50.0 |  |\n" in finetuned.markdown(plan)
    # Predictions that are written anew are read anew, whatever ends of lines are in them.
    for seed in SEEDS:
        one = fine_tuning(plan, pretrained, 0, seed)
        predicted(one, [{"id": i, "text": "a\u2028b", "target": "good", "prediction": "good"} for i in range(count)])
        os.utime(one.run_dir / "evaluations" / "predictions_test.jsonl", ns=(1, 1))
    of_random = np.mean([right["random", seed].astype(float) for seed in SEEDS], 0)
    now = finetuned.difference(plan, pretrained, random).over_examples
    assert now == pytest.approx(of_random.std(ddof=1) / math.sqrt(count))


def test_other_test_sets_are_not_compared_by_example(tmp_path):
    plan = load_study(write(tmp_path, grid={}, seeds=[0]))
    for number, cell in enumerate(cells(plan)):
        one = fine_tuning(plan, cell, 0, 0)
        finished(one, test={"accuracy": 0.5})
        rows = [{"id": i + number, "target": "good", "prediction": "good" if i % 2 else "bad"} for i in range(30)]
        predicted(one, rows)
    found = finetuned.difference(plan, *cells(plan))
    assert found.over_examples is None and found.over_seeds is None and found.error is None
    assert finetuned.tables(plan)[1].rows == (("bert", "mood", "pretrained − random", "+0.0", "", "", "", ""),)


def test_models_are_compared_with_the_first_where_none_is_random(tmp_path):
    path = write(tmp_path, grid={}, starts=["pretrained"])
    tree = yaml.safe_load(path.read_text())
    path.write_text(yaml.safe_dump(tree | {"rows": [*tree["rows"], {"name": "second", "recipe": "bert.yaml"}]}))
    plan = load_study(path)
    for cell in cells(plan):
        for seed in SEEDS:
            one = fine_tuning(plan, cell, 0, seed)
            finished(one, test={"accuracy": 0.9 if cell.row.name == "second" else 0.6})
            right = np.arange(30) % 10 < (9 if cell.row.name == "second" else 6)
            rows = [{"id": i, "target": "good", "prediction": "good" if c else "bad"} for i, c in enumerate(right)]
            predicted(one, rows)
    ((model, task, difference, by, error, of_seeds, of_examples, t),) = finetuned.tables(plan)[1].rows
    assert (model, task, difference, by, of_seeds) == ("second", "mood", "second − bert", "+30.0", "0.0")
    # Of 30 differences 9 are 1, the others 0.
    assert of_examples == error == f"{100 * np.std([1] * 9 + [0] * 21, ddof=1) / math.sqrt(30):.1f}"
    assert float(t) == pytest.approx(30 / float(error), abs=0.05)


def test_without_a_test_set_the_best_checkpoint_counts(tmp_path):
    plan = load_study(write(tmp_path, grid={}, seeds=[0]))
    assert "difference | by" not in finetuned.markdown(plan), "no table without a row"
    for cell in cells(plan):
        one = fine_tuning(plan, cell, 0, 0)
        finished(one, task={"accuracy": 0.5}, best={"accuracy": 0.9}, task_constant={"accuracy": 0.4})
        rows = [{"target": "good", "prediction": "good" if n % 3 else "bad"} for n in range(30)]
        predicted(one, rows, "validation")
    first, other = cells(plan)
    found = finetuned.scores(plan, first)
    assert found.by_seed == {0: 0.9} and found.constant == {"accuracy": 0.4}
    assert finetuned.difference(plan, first, other).over_examples == 0.0
    assert "difference | by" in finetuned.markdown(plan)
    assert found.split == "validation" and f"| {first.task.name}, accuracy (validation) |" in finetuned.markdown(plan)


def test_a_metric_that_was_not_measured_is_named(tmp_path):
    plan = load_study(
        write(tmp_path, grid={}, seeds=[0], tasks=[{"name": "mood", "recipe": "task.yaml", "metric": "acuracy"}])
    )
    finished(fine_tuning(plan, cells(plan)[0], 0, 0), test={"accuracy": 0.9})
    with pytest.raises(UserError, match="tasks: mood: metric: no 'acuracy' was measured; there is accuracy"):
        finetuned.scores(plan, cells(plan)[0])


def test_a_metric_of_probabilities_has_no_error_over_labels_that_were_saved(tmp_path):
    plan = load_study(write(tmp_path, grid={}, seeds=[0]))
    for metric in ("average_precision", "micro_f1"):
        for cell in cells(plan):
            one = fine_tuning(plan, cell, 0, 0)
            finished(one, test={metric: 0.9})
            config = yaml.safe_load((one.run_dir / "config.yaml").read_text())
            config["task"] |= {"kind": "multi_label", "metrics": [metric]}
            (one.run_dir / "config.yaml").write_text(yaml.safe_dump(config))
            predicted(one, [{"id": n, "target": ["good"], "prediction": ["good"] * (n % 2)} for n in range(30)])
            os.utime(one.run_dir / "evaluations" / "predictions_test.jsonl", ns=(len(metric), 1))
        finetuned._without_each_group.cache_clear()
        found = finetuned.difference(plan, *cells(plan))
        assert found.mean == 0.0 and found.over_examples == (None if metric == "average_precision" else 0.0)


def test_a_search_that_lost_points_says_so(tmp_path):
    plan = load_study(write(tmp_path, seeds=[0]))
    first, other = cells(plan)
    for cell, points in ((first, (0,)), (other, (0, 1))):
        for point in points:
            finished(fine_tuning(plan, cell, point, 0), test={"accuracy": 0.5})
    rows = finetuned.tables(plan)[0].rows
    assert [row[2] for row in rows] == ["50.0 (50.0, 50.0; 1; 1 of 2 points)", "50.0 (50.0, 50.0; 1)"]


@pytest.mark.parametrize("metric", ["exact_match", "rouge", "bleu"])
def test_a_mean_is_scored_once_for_each_group(metric):
    task = TypeAdapter(AnyTask).validate_python({"kind": "generation", "metrics": [metric], "inputs": "{text}"})
    texts = [f"the cat sat on mat {n}" for n in range(7)]
    found = [text if n % 3 else "the cat sat there" for n, text in enumerate(texts)]
    value = describe(metric).selection_value
    quick = jackknife.without_groups(task, texts, found, value, 3)
    slow = [
        task.score(*[[one for i, one in enumerate(of) if i % 3 != group] for of in (found, texts)], metric)[value]
        for group in range(3)
    ]
    np.testing.assert_allclose(quick, slow, rtol=1e-12)


def test_an_average_has_one_value_of_each_metric_in_percent(tmp_path):
    plan = load_study(write(tmp_path, grid={}, seeds=[0]))
    task = TypeAdapter(AnyTask).validate_python(
        {"kind": "generation", "metrics": ["exact_match", "rouge"], "inputs": "{a}"}
    )
    means = {"exact_match": 0.5, "rouge1": 80.0, "rouge2": 60.0, "rougeL": 70.0, "rougeLsum": 70.0}
    assert finetuned.others(task, "exact_match", [means]) == {"rouge2": 60.0}
    assert finetuned.others(task, "rouge1", [means]) == {"exact_match": 50.0}
    regression = TypeAdapter(AnyTask).validate_python({"kind": "regression", "metrics": ["pearson", "spearman", "mse"]})
    assert finetuned.others(regression, "pearson", [{"pearson": 0.9, "spearman": 0.7, "mse": 2.0}]) == {
        "spearman": 70.0
    }
    one = finetuned.Scores(
        "bert", "mood", "random", "all", "mse", None, {0: 2.0, 1: 3.0}, {}, "number", {}, lower_is_better=True
    )
    assert one.average is None and finetuned._scored(one).endswith("(2.5, 2.0; 2)")
    old = {**dataclasses.asdict(one), "in_percent": False, "falls": False, "metric": "pearson"}
    old["others"] = {"spearman": 0.7}
    old = {name: value for name, value in old.items() if name not in ("unit", "lower_is_better")}
    assert finetuned.Scores.of_json(old | {"by_seed": {0: 0.9}}).average == pytest.approx(80.0)
    finished(fine_tuning(plan, cells(plan)[0], 0, 0), test={"accuracy": 0.5})
    assert finetuned.scores(plan, cells(plan)[0]).average == 50.0
