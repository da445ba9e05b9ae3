"""Dialogues: what is a target, padded and packed rows, and a run that a chat goes on with."""

import io
import json
import sys

import jax
import numpy as np
import pytest

from jaxpt.cli import main
from jaxpt.data import checks, tokenizers
from jaxpt.data.chat_template import BUILT_IN
from jaxpt.data.preprocessors import features
from jaxpt.data.records.shard import Ragged
from jaxpt.data.tasks.classification import ClassificationTask
from jaxpt.data.tasks.dialogue import DialogueTask
from jaxpt.errors import UserError
from jaxpt.objectives.dialogue import Dialogue
from tests import families
from tests.models.heads.test_heads import bound
from tests.models.helpers import EVERY
from tests.objectives.helpers import alike

SIZES = (7, 4, 9)


def objective(**keys):
    return Dialogue(task=DialogueTask(), **keys)


def batch_of(length, packs=None, **keys):
    """Random dialogues whose last three tokens, and one inside, are answers."""
    rng = np.random.default_rng(0)
    answers = [np.isin(np.arange(size), (2, size - 3, size - 2, size - 1)) for size in SIZES]
    lengths = np.array(SIZES)
    records = {
        "tokens": Ragged(rng.integers(3, 30, lengths.sum()).astype(np.int32), lengths),
        "answers": Ragged(np.concatenate(answers).astype(np.int32), lengths),
    }
    return features.decoder.rows(records, length, packs, **keys), answers


def test_targets_are_answers_tokens():
    batch, answers = batch_of(8, answers_only=True)
    for row, own in enumerate(answers):
        assert batch["decoder_answers"][row, : len(own) - 1].tolist() == own[1:].tolist()
        assert not batch["decoder_answers"][row, len(own) - 1 :].any()
    np.testing.assert_array_equal(batch["decoder_loss_weights"], batch["decoder_answers"])
    everything, _ = batch_of(8)
    assert everything["decoder_loss_weights"].sum() == sum(SIZES) - 3
    np.testing.assert_array_equal(everything["decoder_answers"], batch["decoder_answers"])
    assert objective().baseline.eval_mask(everything, None) is everything["decoder_answers"]


@pytest.mark.parametrize("train_on", ["answers", "all"])
def test_padded_and_packed_rows_have_the_same_loss(train_on):
    h = objective(train_on=train_on)
    config = EVERY["gpt2"](layers=1)
    model, _ = bound(config, h.heads(config))

    @jax.jit
    def run(batch):
        sums, metrics = h.loss(model, batch | {"eval_mask": batch["decoder_answers"].astype(np.float32)})
        return sums["dialogue"], *metrics["target_loss"], h.weights(batch)["dialogue"]

    ways = ((8, None), (16, np.array([0, 2, 3])))
    batches = alike(*(batch_of(length, packs, answers_only=train_on == "answers")[0] for length, packs in ways))
    found = jax.device_get([run(batch) for batch in batches])
    np.testing.assert_allclose(found[0], found[1], rtol=1e-5)
    assert (found[0][0] == found[0][1]) == (train_on == "answers")


def test_what_does_not_fit_is_refused():
    with pytest.raises(UserError, match=r"objective.kind: dialogue does not fit task.kind: classification"):
        Dialogue(task=ClassificationTask()).check(EVERY["gpt2"](), 8, None)


def test_a_templates_file_is_read_until_the_run_has_it(tmp_path):
    """A run, and prepared batches, keep the template with their tokenizer."""
    (tmp_path / "qa.jsonl").write_text('{"prompt": "Hi", "completion": "Ho"}\n')
    config = families.config(
        "gpt2", task={"kind": "dialogue"}, objective={"kind": "dialogue", "template": "chatlm"},
        data={"path": str(tmp_path / "qa.jsonl"), "cache_dir": str(tmp_path / "cache")},
        model={"vocab_size": 300}, run_dir=str(tmp_path / "run"),
    )  # fmt: skip
    with pytest.raises(UserError, match=r"objective.template: chatlm: cannot be read"):
        checks.check(config)
    (tmp_path / "run" / "tokenizer").mkdir(parents=True)
    checks.check(config)
    config.objective.check(config.model, 32, None)  # as prepared batches do


RECIPE = """
task: {kind: dialogue, prompt: question, answer: answer}
objective: {kind: dialogue, template: plain}
data: {path: FILE, validation_fraction: 0.1, length: 64, batch_size: 8, packing: true, cache_dir: CACHE}
optimizer: {kind: adamw, learning_rate: 1e-2, schedule: {kind: constant}}
train: {steps: STEPS, eval_every: STEPS, log_every: STEPS}
"""
MODEL = """
model: {kind: gpt2, vocab_size: 300, layers: 1, embed_dim: 32, heads: 2, max_positions: 64}
objective: {kind: causal_lm}
data: {path: TEXT, tokenizer: {kind: bpe}, length: 64, batch_size: 8, cache_dir: CACHE, validation_fraction: 0.1}
optimizer: {kind: adamw, learning_rate: 1e-3, schedule: {kind: constant}}
train: {steps: 2, eval_every: 2, log_every: 2, eval_examples: 8}
"""


@pytest.mark.slow
def test_a_run_learns_to_answer(tmp_path, capsys, monkeypatch):
    """A base model learns one-word answers; the run's tokenizer has the template, and a chat ends its answers."""
    rng = np.random.default_rng(0)
    rows = [{"question": f"Is it {n}?", "answer": "yes"} for n in rng.integers(100, 999, 200).tolist()]
    rows += [{"question": "very " * 60, "answer": "yes"}]
    (tmp_path / "qa.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "text.txt").write_text("".join(f"{row['question']}\n{row['answer']}\n" for row in rows))
    for name, text in (("base", MODEL), ("tune", RECIPE)):
        text = text.replace("CACHE", str(tmp_path / "cache")).replace("FILE", str(tmp_path / "qa.jsonl"))
        text = text.replace("TEXT", str(tmp_path / "text.txt"))
        (tmp_path / f"{name}.yaml").write_text(text.replace("STEPS", "60"))
    base, run = tmp_path / "base", tmp_path / "run"
    assert main(["train", str(tmp_path / "base.yaml"), f"run_dir={base}"]) == 0
    assert main(["train", str(tmp_path / "tune.yaml"), f"run_dir={run}", f"init_from.path={base}"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "1 of 1" in said and "rows were left out: they are longer than data.length" in said
    assert "nats per answer token" in said and "(base " in said and f"to try it: jaxpt chat {run}" in said
    measured = json.loads((run / "run.json").read_text())["answers"]
    assert measured["nats"] < 0.5 < 3 < measured["base_nats"]
    assert tokenizers.load(run / "tokenizer").chat_templates == {"default": BUILT_IN["plain"]}
    monkeypatch.setattr(sys, "stdin", io.StringIO("Is it 123?\nIs it 456?\n"))
    assert main(["chat", str(run), "--max-new-tokens", "8"]) == 0
    assert capsys.readouterr().out.split() == ["yes", "yes"]
    assert main(["predict", str(run), str(tmp_path / "qa.jsonl"), "--out", str(tmp_path / "p.jsonl")]) == 2
    assert "`jaxpt chat" in capsys.readouterr().err
