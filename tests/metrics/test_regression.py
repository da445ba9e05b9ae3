import numpy as np
import pytest
import scipy.stats

from jaxpt.errors import UserError
from jaxpt.metrics import score


def test_equal_to_scipy_with_ties():
    rng = np.random.default_rng(0)
    targets = rng.integers(0, 6, 100).astype(float)
    predictions = np.round(targets + rng.normal(size=100))
    assert score("pearson", predictions, targets)["pearson"] == scipy.stats.pearsonr(targets, predictions)[0]
    assert score("spearman", predictions, targets)["spearman"] == scipy.stats.spearmanr(targets, predictions)[0]
    assert score("mse", predictions, targets)["mse"] == pytest.approx(np.mean((predictions - targets) ** 2))


def test_spearman_by_hand_with_a_tie():
    # ranks 1, 2.5, 2.5, 4 against 1, 2, 3, 4: cov 4.5, var 4.5 and 5
    assert score("spearman", [1, 2, 2, 3], [1, 2, 3, 4])["spearman"] == pytest.approx(4.5 / np.sqrt(4.5 * 5))


@pytest.mark.parametrize("metric", ["pearson", "spearman"])
def test_constant_predictions_constant_targets_and_one_example_have_no_correlation(metric):
    assert score(metric, [2.5, 2.5, 2.5], [1, 2, 3]) == {metric: 0.0}
    assert score(metric, [1, 2, 3], [2, 2, 2]) == {metric: 0.0}
    assert score(metric, [1], [1]) == {metric: 0.0}


@pytest.mark.parametrize("metric", ["pearson", "spearman", "mse"])
def test_predictions_and_targets_are_finite(metric):
    with pytest.raises(UserError, match="row 1: nan is no finite number"):
        score(metric, [1.0, float("nan")], [1.0, 2.0])
    with pytest.raises(UserError, match="row 1: nan is no finite number"):
        score(metric, [1.0, 2.0], [1.0, float("nan")])
