"""Held-out losses of several tasks."""

import contextlib
import types

import numpy as np
import pytest

from jaxpt.evals import heldout
from jaxpt.objectives.masked_lm import MaskedLM


def validated(monkeypatch, batches):
    """Means of an evaluation whose step gives the sums that its batches are."""
    monkeypatch.setattr(heldout.steps, "put", lambda batch, setup: batch)
    setup = types.SimpleNamespace(
        use=contextlib.nullcontext, empty_carry=lambda: None, teacher_params=lambda: (),
        config=types.SimpleNamespace(data=types.SimpleNamespace(batch_size=2)),
    )  # fmt: skip
    feeds = {task: [sums] for task, sums in batches.items()}
    return heldout.validate(setup, MaskedLM(), lambda params, batch, carry: (batch, carry), None, feeds)


def test_a_task_may_be_without_a_part_of_the_loss(monkeypatch):
    """Such as texts of one sentence, which have no next one to guess; the mean of all has the part of the others."""
    pairs = {"masked_lm": (6.0, 2.0), "next_sentence": (2.0, 4.0)}
    single = {"masked_lm": (4.0, 2.0), "next_sentence": (0.0, 0.0)}
    means = validated(monkeypatch, {"pairs": pairs, "single": single})
    assert means["loss"] == pytest.approx(10 / 4 + 2 / 4) and means["pairs/loss"] == pytest.approx(6 / 2 + 2 / 4)
    assert means["single/loss"] == means["single/masked_lm"] == 2.0
    assert "single/next_sentence" not in means  # 0 would be a perfect guess
    assert np.isfinite([*means.values()]).all()
