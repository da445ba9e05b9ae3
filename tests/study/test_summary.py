"""One table and one picture of a study: costs add up over the rows that a model begins from; scores have errors."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import yaml

from jaxpt.config.finetunings import cells, fine_tuning
from jaxpt.config.studies import load_study
from jaxpt.study import finetuned, summary, svg, tables
from jaxpt.study.charts import Dots, Row
from jaxpt.study.finetuned import Scores
from tests.study.helpers import SEEDS, finished, write

COUNT = 40


@pytest.fixture
def plan(tmp_path):
    """A row, and one that begins from it; both are finished, and so are the fine-tunings of the second."""
    path = write(tmp_path, grid={}, starts=["pretrained"])
    tree = yaml.safe_load(path.read_text())
    second = {"name": "second", "recipe": "bert.yaml", "set": {"init_from.path": "{study}/bert"}}
    tree["rows"] = [tree["rows"][0] | {"finetune": None}, second]
    path.write_text(yaml.safe_dump(tree))
    plan = load_study(path)
    for row, steps in (("bert", 10), ("second", 4)):
        run_dir = Path(plan.run_dir) / row
        run_dir.mkdir(parents=True)
        lines = [
            {"step": 0, "phase/text_tokens_per_step": 100.0, "phase/flops_per_step": 1e6},
            {"step": steps, "speed/steps_per_second": 0.1, "validation/loss": 1.0},
        ]
        (run_dir / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)))
        (run_dir / "run.json").write_text(json.dumps({"step": steps, "parameters": 1234, "wall_seconds": 200.0}))
    return plan


def test_costs_add_up_and_scores_have_errors(plan):
    rng, right = np.random.default_rng(0), {}
    (cell,) = cells(plan)
    for seed in SEEDS:
        one = fine_tuning(plan, cell, 0, seed)
        right[seed] = rng.random(COUNT) < 0.8
        finished(one, test={"accuracy": right[seed].mean()}, test_constant={"accuracy": 0.5})
        rows = [{"id": i, "target": "good", "prediction": "good" if x else "bad"} for i, x in enumerate(right[seed])]
        (one.run_dir / "evaluations" / "predictions_test.jsonl").write_text("\n".join(map(json.dumps, rows)))
    scores = finetuned.scores(plan, cell)
    values = [right[seed].mean() for seed in SEEDS]
    of_examples = np.mean([right[seed] for seed in SEEDS], 0).std(ddof=1) / math.sqrt(COUNT)
    assert scores.over_seeds == pytest.approx(np.std(values, ddof=1) / math.sqrt(len(SEEDS)))
    assert scores.over_examples == pytest.approx(of_examples), "of a mean over examples the jackknife is exact"
    assert scores.error == pytest.approx(math.hypot(scores.over_seeds, scores.over_examples))
    table = summary.table(plan)
    score = f"{100 * np.mean(values):.1f} ± {100 * scores.error:.1f}"
    assert table.rows == (("second", "1,234", "1.4k", "14", "14M", "2m20s", "6m40s", score),)
    assert table.heads[-1] == "mood, accuracy" and len(table.heads) == 8
    written = summary.markdown(plan, has_glove=False)
    assert "GloVe" not in written and "GloVe reads pairs of words" in summary.note(has_glove=True)
    assert f"| second | 1,234 | 1.4k | 14 | 14M | 2m20s | 6m40s | {score} |" in written


def test_what_is_not_there_yet_is_empty(plan):
    assert summary.table(plan).rows == (("second", "1,234", "1.4k", "14", "14M", "2m20s", "6m40s", ""),)
    (Path(plan.run_dir) / "second" / "run.json").unlink()
    assert summary.table(plan).rows == (("second", *[""] * 7),)
    (Path(plan.run_dir) / "bert" / "run.json").unlink()
    tables.write(plan)
    saved = json.loads((Path(plan.run_dir) / "table.json").read_text())
    assert saved["tables"][0]["title"] == summary.TITLE


@pytest.mark.parametrize(
    "settings", [('init_from.path="{study}/bert/checkpoints/5"',), ('init_from={"path": "{study}/bert", "step": 5}',)]
)
def test_a_row_counts_up_to_the_checkpoint_that_is_taken(plan, settings):
    first, second = plan.rows
    third = second.model_copy(update={"name": "third", "set": ('init_from.path="{study}/second"',)})
    plan = plan.model_copy(update={"rows": (first, second.model_copy(update={"set": settings}), third)})
    assert summary.table(plan).rows[0] == ("second", "1,234", "900", "9", "9M", "1m30s", "5m00s", "")
    assert plan.ancestors(plan.rows[2]) == {"second": None, "bert": 5}
    teacher = third.model_copy(update={"set": (*third.set, 'objective.teacher="{study}/bert"')})
    assert plan.ancestors(teacher) == {"second": None, "bert": None}, "of two checkpoints the later one"


def test_steps_of_a_state_that_was_taken_are_counted_once(plan):
    """A row that goes on from another one's state has lines from its step on."""
    file = Path(plan.run_dir) / "second" / "metrics.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    file.write_text("\n".join(json.dumps({**line, "step": line["step"] + 10}) for line in lines))
    assert summary.table(plan).rows[0][1:6] == ("1,234", "1.4k", "14", "14M", "2m20s")
    file.write_text(file.read_text().splitlines()[1])  # of an earlier version, or the first line is damaged
    assert summary.table(plan).rows[0][3] == "24"


def test_a_chart_for_each_task_in_the_order_of_the_rows():
    def score(row, task, start, values, **errors):
        return Scores(row, task, start, "all", "accuracy", None, dict(enumerate(values)), {}, "fraction",
                      {"accuracy": 0.5}, **errors)  # fmt: skip

    scores = [
        score("linear", "a", "simple", [0.7]),
        score("bert", "a", "pretrained", [0.8, 0.9], over_seeds=0.03, over_examples=0.04),
        score("bert", "b", "pretrained", [0.6, 0.7], over_seeds=0.03),
    ]
    first, second = summary.charts(scores)
    assert [row.name for row in first.rows] == ["constant baseline", "linear", "bert"]
    assert first.rows[2].error == pytest.approx(5.0) and first.rows[1].error is None
    assert second.rows[1].error is None, "of the examples nothing is known"
    assert len({row.colour for row in first.rows}) == 3


def test_a_bar_is_as_long_as_the_error():
    drawn = svg.drawing(Dots("a", "%", [Row("x", [50.0, 60.0], 0, error=10.0), Row("y", [40.0], 0)]))
    assert "55 ± 10: 50, 60" in drawn and drawn.count('class="curve"') == 3


def test_tokens_and_flops_that_are_not_counted_are_blank(plan):
    for run in ("bert", "second"):  # as GloVe: pairs of words, and products of no matrices
        file = Path(plan.run_dir) / run / "metrics.jsonl"
        file.write_text(file.read_text().replace("100.0", "0.0").replace("1000000.0", "0.0"))
    assert summary.table(plan).rows[0][1:6] == ("1,234", "", "14", "", "2m20s")
