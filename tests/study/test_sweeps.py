"""The table and the charts of a study with a grid and seeds, from run_dirs as training leaves them."""

import dataclasses
import doctest
import json
import math
from pathlib import Path

import pytest
import yaml

from jaxpt.config.studies import load_study
from jaxpt.study import svg, sweeps, tables
from jaxpt.study.charts import Dots
from tests import families
from tests.study.test_tables import canned, record

LOSSES = {("0.001", 0): 3.0, ("0.001", 1): 4.0, ("0.01", 0): 2.0, ("0.01", 1): 2.5, ("0.1", 0): 5.0}


@pytest.fixture
def plan(tmp_path):
    """Three rates and two seeds, of which one run is not started."""
    (tmp_path / "gpt2.yaml").write_text(yaml.safe_dump(families.tree("gpt2")))
    tree = {"question": "which rate?", "run_dir": str(tmp_path / "study"), "seeds": [0, 1]}
    tree |= {"rows": [{"name": "gpt2", "recipe": "gpt2.yaml"}], "grid": {"optimizer.learning_rate": [0.1, 0.001, 0.01]}}
    (tmp_path / "rates.yaml").write_text(yaml.safe_dump(tree))
    plan = load_study(tmp_path / "rates.yaml")
    for (rate, seed), loss in LOSSES.items():
        receipt = {"validation": {"loss": loss, "target_loss": loss}, "baseline": 6.0, "step": 20}
        name = f"gpt2-learning_rate={rate}-seed={seed}"
        canned(plan, name, receipt, [record(20, validation__loss=loss, validation__target_loss=loss)])
        path = Path(plan.run_dir) / name / "run.json"
        run = json.loads(path.read_text())
        run["data"]["fingerprint"] |= {"seed": seed, "records": {"validation": f"masks of {seed}"}}
        path.write_text(json.dumps(run))
    return plan


def test_rows_are_means_over_seeds(plan):
    results = tables.write(plan)
    assert sweeps.table(results).rows == (
        ("gpt2", "0.1", "1 of 2", "5.000", "1.000", "A"),
        ("gpt2", "0.001", "2 of 2", "3.500 ± 0.707", "2.500 ± 0.707", "A"),
        ("gpt2", "0.01", "2 of 2", "2.250 ± 0.354", "3.750 ± 0.354", "A"),
    )
    assert "| gpt2 | 0.01 | 2 of 2 | 2.250 ± 0.354 |" in (Path(plan.run_dir) / "table.md").read_text()


def test_the_loss_is_drawn_against_the_swept_value(plan):
    (chart,) = sweeps.charts(tables.write(plan))
    mean, first, second = chart.series
    assert (mean.x, mean.y) == ([0.001, 0.01, 0.1], [3.5, 2.25, 5.0]), "by value"
    assert (first.y, second.y) == ([3.0, 2.0, 5.0], [4.0, 2.5]) and first.is_faint and not mean.is_faint
    assert (Path(plan.run_dir) / "picture.png").is_file()
    note = "dashed: trivial baseline; bold: the first seed"  # each has one point, so that the other seed has no line
    assert f"<!-- {note} -->" in (Path(plan.run_dir) / "picture.svg").read_text()


def test_fine_tunings_are_compared_by_their_metric(plan):
    results = [
        dataclasses.replace(result, metric="task/f1", score=result.validation.get("loss"))
        for result in tables.write(plan)
    ]
    swept = sweeps.table(results)
    assert swept.heads[3:] == ("target loss", "margin", "task/f1", "task") and swept.rows[1][5] == "3.500 ± 0.707"
    (chart,) = sweeps.charts(results)
    assert chart.title == "score of the best checkpoint against learning_rate, task/f1"
    assert (
        "task/f1" in tables.table(plan, results).heads and "task/f1" not in tables.table(plan, tables.write(plan)).heads
    )


def test_what_is_not_finished_chooses_no_chart(plan):
    """It has a validation loss, and no score yet."""
    results = [dataclasses.replace(x, metric="task/f1", score=x.validation.get("loss")) for x in tables.write(plan)]
    first = next(n for n, result in enumerate(results) if result.point[0][1] == "0.001")
    results[first] = dataclasses.replace(results[first], status="under way", metric=None, score=None)
    (chart,) = sweeps.charts(results)
    assert chart.title == "score of the best checkpoint against learning_rate, task/f1"
    assert chart.series[0].y == [4.0, 2.25, 5.0]


def test_words_and_seeds_alone_are_dots(plan):
    results = tables.write(plan)
    words = [
        dataclasses.replace(result, point=[("objective.unit", json.dumps(result.point[0][1]))]) for result in results
    ]
    (dots,) = sweeps.charts(words)
    assert isinstance(dots, Dots) and dots.rows[1].name == "gpt2, unit 0.001" and dots.rows[1].values == [3.0, 4.0]
    (dots,) = sweeps.charts([dataclasses.replace(result, point=()) for result in results])
    assert [row.name for row in dots.rows] == ["gpt2"] and len(dots.rows[0].values) == 5
    other = [dataclasses.replace(result, point=(), row="glove", unit="weighted squared error") for result in results]
    drawn = sweeps.charts([*(dataclasses.replace(result, point=()) for result in results), *other])
    assert [dots.x for dots in drawn] == ["nats", "weighted squared error"]


def test_a_seed_that_diverged_is_told_and_not_drawn(plan):
    """Table and picture are written; the mean is that of the others."""
    path = Path(plan.run_dir) / "gpt2-learning_rate=0.001-seed=1" / "run.json"
    run = json.loads(path.read_text())
    run["validation"] = dict.fromkeys(run["validation"], math.nan)
    path.write_text(json.dumps(run))
    results = tables.write(plan)
    assert sweeps.table(results).rows[1] == ("gpt2", "0.001", "2 of 2", *["3.000, 1 not finite"] * 2, "A")
    words = [dataclasses.replace(result, point=()) for result in results]
    assert "gpt2, 1 not finite" in svg.figure(*sweeps.charts(words))


def test_examples_in_docstrings():
    failed, tried = doctest.testmod(sweeps)
    assert tried and not failed
