"""Temperature, calibration error and thresholds."""

import doctest

import numpy as np

from jaxpt.metrics import calibration


def test_examples_in_docstrings():
    assert doctest.testmod(calibration).failed == 0


def test_the_temperature_that_made_the_outputs_is_found():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(4000, 5)) * 2
    p = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    targets = [int(rng.choice(5, p=row)) for row in p]
    for scale in (0.5, 1.0, 3.0):
        assert abs(calibration.fit_temperature(logits * scale, targets) / scale - 1) < 0.06


def test_rows_that_are_all_right_are_not_certain():
    logits = np.random.default_rng(0).normal(size=(60, 3)) + 9 * np.eye(3)[np.arange(60) % 3]
    temperature = calibration.fit_temperature(logits, list(np.arange(60) % 3))
    p = np.exp(logits / temperature) / np.exp(logits / temperature).sum(-1, keepdims=True)
    assert 0.97 < p.max(-1).mean() < 61 / 62 + 0.005


def test_the_error_is_what_is_too_sure():
    rng = np.random.default_rng(0)
    p = rng.uniform(0.5, 1, 5000)
    right = rng.random(5000) < p
    assert calibration.expected_calibration_error(p, right) < 0.02
    assert abs(calibration.expected_calibration_error(np.sqrt(p), right) - np.mean(np.sqrt(p) - p)) < 0.02
    assert sum(bin.count for bin in calibration.reliability(p, right)) == 5000
    assert [bin.count for bin in calibration.reliability([0.0, 1.0], [False, True], 10)] == [1, 1], "the ends are in"


def test_the_threshold_of_the_largest_f1():
    rng = np.random.default_rng(0)
    target = rng.random(300) < 0.3
    p = np.clip(0.3 * target + rng.uniform(0, 0.5, 300), 0, 1).round(2)

    def f1(threshold):
        predicted = p > threshold
        return 2 * (predicted & target).sum() / (predicted.sum() + target.sum())

    assert f1(calibration.fit_threshold(p, target)) == max(f1(threshold) for threshold in np.arange(0, 1, 0.005))
