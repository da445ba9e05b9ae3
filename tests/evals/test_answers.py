"""The evaluator of dialogues: what it reports with a base model and without one."""

import math

import pytest

from jaxpt.evals import answers
from jaxpt.evals.answers import Answers


@pytest.mark.parametrize("base", [None, 2.0])
def test_what_is_reported(base, monkeypatch):
    measured = []

    def measure(stop):
        measured.append(stop())
        return None if measured[-1] else base

    monkeypatch.setattr(answers, "base_loss", lambda setup, data: None if base is None else measure)
    evaluate = Answers().prepare(None, None)
    assert evaluate(None, {}, lambda: False).metrics == {}
    earlier = {"validation/target_loss": 1.0, "validation/loss": 3.0}
    if base is not None:
        assert evaluate(None, earlier, lambda: True) is None  # stopped
    for _ in range(2):
        result = evaluate(None, earlier, lambda: False)
    assert measured == ([] if base is None else [True, False])  # once
    assert result.metrics["nats"] == 1.0 and result.metrics["perplexity"] == pytest.approx(math.e)
    assert result.metrics.get("base_perplexity") == (None if base is None else pytest.approx(math.exp(2)))
    want = "answers: 1.0000 nats per answer token, perplexity 2.72"
    assert result.lines == (want if base is None else f"{want} (base 2.0000 nats, perplexity 7.39)",)
