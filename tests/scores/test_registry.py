import subprocess
import sys

import pytest

from jaxpt.errors import UserError
from jaxpt.scores import in_percent, known, score, values

EXAMPLES = {  # right predictions
    "accuracy f1 macro_f1 micro_f1 matthews balanced_accuracy average_precision cb multirc axg": [0, 1],
    "pearson spearman mse": [1.0, 2.0],
    "tag_accuracy span_f1": [["B-A", "O"], ["B-B"]],
    "record squad squad_v2 trivia_qa natural_questions web_questions exact_match bleu chrf rouge": [
        "a small cat sat", "two big dogs ran",
    ],
}  # fmt: skip


def test_the_names():
    assert known() == (
        "accuracy", "f1", "macro_f1", "micro_f1", "matthews", "balanced_accuracy", "average_precision", "pearson",
        "spearman", "mse", "tag_accuracy", "span_f1", "cb", "multirc", "axg", "record", "squad", "squad_v2",
        "trivia_qa", "natural_questions", "web_questions", "exact_match", "bleu", "chrf", "rouge",
    )  # fmt: skip


@pytest.mark.parametrize("metric", known())
def test_right_predictions_have_the_best_score_in_the_metrics_unit(metric):
    rows = next(rows for metrics, rows in EXAMPLES.items() if metric in metrics.split())
    options = {"groups": [0, 0] if metric == "multirc" else [0, 1]} if metric in ("multirc", "axg") else {}
    scores = score(metric, rows, rows, **options)
    best = 0.0 if metric == "mse" else 100.0 if in_percent(metric) else 1.0
    assert list(scores.values()) == pytest.approx([best] * len(scores))
    assert all(type(value) is float for value in scores.values())
    assert tuple(scores) == values(metric)[: len(scores)]  # of squad_v2 some want questions without an answer


def test_a_wrong_name_is_answered_with_the_nearest():
    with pytest.raises(UserError, match=r"no metric 'mathews'; did you mean matthews\?"):
        score("mathews", [1], [1])
    with pytest.raises(UserError, match="no metric 'zzz'; one of: accuracy, f1, "):
        score("zzz", [1], [1])


def test_options():
    with pytest.raises(UserError, match=r"f1: no option 'postive'; did you mean positive\?"):
        score("f1", [1], [1], postive=1)
    with pytest.raises(UserError, match="mse: no option 'labels'; it has none"):
        score("mse", [1], [1], labels=[1])
    with pytest.raises(UserError, match="multirc needs the option 'groups', one id for each example"):
        score("multirc", [1], [1])


@pytest.mark.parametrize("metric", known())
def test_unequal_numbers_and_no_examples(metric):
    with pytest.raises(UserError, match=f"{metric}: 1 predictions for 2 targets"):
        score(metric, ["x"], ["x", "y"])
    with pytest.raises(UserError, match=f"{metric}: there are no examples to score"):
        score(metric, [], [])


def test_importing_costs_nothing():
    code = "import sys, jaxpt.scores, jaxpt.scores.text_tasks; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = {"numpy", "scipy", "sklearn", "sacrebleu", "rouge_score", "nltk", "seqeval", "jax", "pydantic"}
    assert not heavy & set(done.stdout.split())
