"""What is said of the training state of each checkpoint that `jaxpt export --every` writes."""

import doctest
import json

from jaxpt.hf import revisions
from tests.hf.test_convert import imported_bert, source, texts  # noqa: F401 (fixtures)

LINES = [
    {"step": 10, "phase/text_tokens_per_step": 4.0},
    {"step": 12, "train/loss": 3.0},
    {"step": 12, "phase/text_tokens_per_step": 8.0},
]


def test_examples_in_docstrings():
    failed, tried = doctest.testmod(revisions)
    assert tried and not failed


def test_a_run_that_goes_on_from_another_ones_state_does_not_know_its_tokens():
    """Its lines begin with its own first step."""
    assert revisions.tokens_seen(LINES, 10) is revisions.tokens_seen(LINES, 14) is None
    begun = [{"step": 0, "phase/text_tokens_per_step": 2.0}, *LINES]
    assert [revisions.tokens_seen(begun, step) for step in (0, 10, 14)] == [0, 20, 20 + 2 * 4 + 2 * 8]
    assert revisions.tokens_seen([], 0) == 0, "imported weights"


def test_unknown_tokens_are_said_and_written(imported_bert, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.setattr(revisions, "tokens_seen", lambda records, step: None)
    lines = []
    revisions.export_every(imported_bert, tmp_path / "out", report=lines.append)
    assert lines == [f"{tmp_path}/out/step0: an unknown number of tokens of text seen"]
    assert json.loads((tmp_path / "out" / "step0" / revisions.FILE).read_text())["tokens"] is None
