"""Text to text from rows to predictions: labels by generation and by likelihood, and `jaxpt.load` of the run."""

import json

import pytest

import jaxpt
from jaxpt.config import TokenizerConfig
from jaxpt.data import tokenizers
from jaxpt.inference.predict import predict
from jaxpt.train.loop import train
from tests import fine_tuning

RUNS = {
    "gpt2": {"decide_by": "likelihood", "targets_length": 8},
    "t5": {"decide_by": "generation", "targets_length": 8, "label_smoothing": 0.1},
}


@pytest.fixture(scope="module", params=RUNS)
def run(request, tmp_path_factory):
    """A directory with a finished run in `run`."""
    directory, kind = tmp_path_factory.mktemp(request.param), {"gpt2": "bpe", "t5": "sentencepiece"}[request.param]
    rows = fine_tuning.rows(96)
    settings = TokenizerConfig(kind=kind, extra_ids=5 if kind == "sentencepiece" else None)
    texts = [f"classification text: {row['text']} {row['label']}" for row in rows]
    tokenizers.train(texts, settings, {"bpe": 280, "sentencepiece": 60}[kind], directory / "tokenizer")
    fine_tuning.write(directory / "test.jsonl", fine_tuning.rows(21, seed=1))
    sections = {
        "objective": {"kind": "text_to_text", **RUNS[request.param]},
        "model": {"vocab_size": 300, "layers": 1, **({"max_positions": 96} if kind == "bpe" else {})},
        "data": {
            "test_path": str(directory / "test.jsonl"), "length": 96,
            "tokenizer": {"kind": kind, "path": str(directory / "tokenizer")},
        },
        "train": {"steps": 60, "eval_every": 60, "log_every": 60},
    }  # fmt: skip
    assert train(fine_tuning.recipe(directory, of=request.param, made=rows, **sections)) == 0
    return directory


@pytest.mark.slow
def test_answers_are_labels(run, tmp_path):
    rows = fine_tuning.rows(21, seed=1)
    file = fine_tuning.write(tmp_path / "rows.jsonl", [{"id": row["id"], "text": row["text"]} for row in rows])
    predict(str(run / "run"), file, str(tmp_path / "p.jsonl"))
    found = [json.loads(line) for line in (tmp_path / "p.jsonl").read_text("utf-8").splitlines()]
    assert [one["id"] for one in found] == [row["id"] for row in rows]
    accuracy = sum(one["label"] == row["label"] for one, row in zip(found, rows)) / 21
    assert accuracy == pytest.approx(json.loads((run / "run" / "run.json").read_text())["test"]["accuracy"])
    assert accuracy > 0.4, "about half of a model that has learnt no more than to answer"

    kept = (run / "run" / "evaluations" / "predictions_test.jsonl").read_text("utf-8").splitlines()
    assert [json.loads(line)["prediction"] for line in kept] == [one["label"] for one in found]
    assert all(json.loads(line)["loss"] > 0 for line in kept)

    model = jaxpt.load(run / "run")
    prompts = [f"classification text: {row['text']}" for row in rows]
    texts = [model.tokenizer.decode(samples[0].tokens) for samples in model.generate(prompts, max_new_tokens=8)]
    if "probabilities" in found[0]:
        assert all(abs(sum(one["probabilities"].values()) - 1) < 1e-5 for one in found)
    else:
        assert texts == [one["predicted_text"] for one in found], "the file has a column text"
    assert set(texts) & {"good", "bad"}


@pytest.mark.slow
def test_a_submission_to_glue(run, tmp_path):
    """Text to text and likelihoods alike; a text that is no label counts as the first."""
    rows = [{"index": n, "text": row["text"]} for n, row in enumerate(fine_tuning.rows(5, seed=1))]
    file = fine_tuning.write(tmp_path / "test.jsonl", rows)
    overrides = ["task.name=sst2", "task.names=[negative,positive]", "objective.targets_length=12"]
    predict(str(run / "run"), file, str(tmp_path), overrides, glue=True)
    head, *lines = (tmp_path / "SST-2.tsv").read_text("utf-8").splitlines()
    assert head == "index\tprediction" and [line.split("\t")[0] for line in lines] == list("01234")
    assert {line.split("\t")[1] for line in lines} <= {"0", "1"}
