"""Tagging and question answering from rows to predictions, with texts longer than a window."""

import contextlib
import itertools
import json

import numpy as np
import pytest

from jaxpt.cli import main
from jaxpt.errors import UserError
from jaxpt.inference.predict import predict
from jaxpt.train.loop import train
from tests import fine_tuning
from tests.fine_tuning import BAD, GOOD, WORDS

QUALITY = dict.fromkeys(GOOD, "good") | dict.fromkeys(BAD, "bad")


def tagged(count, seed=0):
    """Words of which each has one tag: entities of good and bad words."""
    rng = np.random.default_rng(seed)
    for number in range(count):
        words = [str(word) for word in rng.choice(WORDS, int(rng.integers(1, 40)))]
        kinds = ["", *(QUALITY.get(word, "") for word in words)]
        tags = [(kind and f"{'IB'[kind != last]}-{kind}") or "O" for last, kind in itertools.pairwise(kinds)]
        yield {"id": f"r{number}", "tokens": words, "tags": tags}


def asked(count, seed=0):
    """Contexts with a good word, a bad word, or both, and a question for one of them: some have no answer."""
    rng = np.random.default_rng(seed)
    for number in range(count):
        words = [str(word) for word in rng.choice(WORDS[:4] + WORDS[10:], int(rng.integers(2, 40)))]
        wanted = ("good", "bad")[int(rng.integers(2))]
        answers = []
        if rng.random() < 0.7:
            at = int(rng.integers(len(words)))
            words[at] = str(rng.choice(GOOD if wanted == "good" else BAD))
            answers = [{"text": words[at], "answer_start": len(" ".join([*words[:at], ""]))}]
        yield {"id": f"q{number}", "question": f"is {wanted}", "context": " ".join(words), "answers": answers}


def trained(directory, made, **sections):
    fine_tuning.write(directory / "test.jsonl", made(41, seed=1))
    sections["model"] = {"layers": 1}
    data = {"test_path": str(directory / "test.jsonl"), "length": 16, "packing": True, "batch_size": 16}
    steps = {"steps": 150, "eval_every": 50, "log_every": 150}
    assert train(fine_tuning.recipe(directory, made=list(made(200)), data=data, train=steps, **sections)) == 0
    predict(str(directory / "run"), str(directory / "test.jsonl"), str(directory / "p.jsonl"))
    found = [json.loads(line) for line in (directory / "p.jsonl").read_text("utf-8").splitlines()]
    kept = (directory / "run" / "evaluations" / "predictions_test.jsonl").read_text("utf-8").splitlines()
    key = "predicted_tags" if "tags" in found[0] else "answer"
    assert [json.loads(line)["prediction"] for line in kept] == [one[key] for one in found]
    wanted = list(made(41, seed=1))
    assert [one["id"] for one in found] == [row["id"] for row in wanted]
    return found, wanted, json.loads((directory / "run" / "run.json").read_text())


@pytest.mark.slow
def test_every_word_has_its_tag(tmp_path):
    task = {"kind": "tagging", "metrics": ["span_f1", "tag_accuracy"]}
    found, wanted, receipt = trained(tmp_path, tagged, task=task)
    assert [one["tokens"] for one in found] == [row["tokens"] for row in wanted]
    pairs = [pair for one, row in zip(found, wanted) for pair in zip(one["predicted_tags"], row["tags"], strict=True)]
    accuracy = np.mean([got == tag for got, tag in pairs])
    assert accuracy == pytest.approx(receipt["test"]["tag_accuracy"]) and accuracy > 0.9
    assert receipt["test"]["f1"] > 0.7
    assert all(0.2 <= p <= 1 for one in found for p in one["probabilities"])


@pytest.mark.slow
def test_answers_stand_in_their_contexts_and_the_threshold_is_that_of_the_validation_set(tmp_path):
    task = {"kind": "question_answering", "metrics": ["squad_v2"]}
    own = {"stride": 5, "max_query": 3, "max_answer": 3}
    found, wanted, receipt = trained(tmp_path, asked, task=task, objective=own)
    for one, row in zip(found, wanted):
        start, answer = one["start"], one["answer"]
        assert answer == "" if start is None else row["context"][start : start + len(answer)] == answer
    right = [one["answer"] == (row["answers"] or [{"text": ""}])[0]["text"] for one, row in zip(found, wanted)]
    assert 100 * np.mean(right) == pytest.approx(receipt["test"]["exact"])
    assert receipt["test"]["exact"] > 80
    metrics = tmp_path / "run" / "checkpoints" / str(receipt["best_step"]) / "metrics" / "metrics"
    threshold = json.loads(metrics.read_text())["task/best_f1_thresh"]
    assert all((one["answer"] == "") == (-one["score"] > threshold) for one in found)
    run, rows = str(tmp_path / "run"), str(tmp_path / "test.jsonl")
    predict(run, rows, str(tmp_path / "nbest.jsonl"), ["task.nbest=3"])
    for line, one in zip((tmp_path / "nbest.jsonl").read_text("utf-8").splitlines(), found, strict=True):
        best = json.loads(line).pop("nbest")
        assert json.loads(line) == {**one, "nbest": best} and "" in [other["text"] for other in best]
        assert one["answer"] in [other["text"] for other in best] and len(best) <= 4
        assert abs(sum(other["probability"] for other in best) - 1) < 1e-5


@pytest.mark.parametrize("command, task, row, message", [
    ("train", {"kind": "tagging"}, {"tokens": ["a", "the"], "tags": ["O"]},
     "line 9: 2 words (tokens) and 1 tags (tags); "),
    ("train", {"kind": "tagging"}, {"tokens": [], "tags": []},
     "jsonl: line 9: column 'tokens' (task.tokens) has no words"),
    ("train", {"kind": "question_answering"},
     {"question": "a", "context": "b", "answers": [{"text": "c", "answer_start": 0}]},
     "train.jsonl: line 9: answer 'c' is not at answer_start 0, where 'b' stands"),
    ("inspect", {"kind": "question_answering"}, {"question": "a", "context": "b", "answers": []},
     "train.jsonl: line 9: the question has no answer; task.metrics=[squad_v2]"),
])  # fmt: skip
def test_a_bad_row_ends_the_command_in_one_line(command, task, row, message, tmp_path, capsys):
    made = [*(tagged if task["kind"] == "tagging" else asked)(8), row]
    if task["kind"] != "tagging":
        made[:8] = [one | {"context": "good", "answers": [{"text": "good", "answer_start": 0}]} for one in made[:8]]
    objective = {"max_query": 3} if task["kind"] == "question_answering" else None
    with contextlib.suppress(UserError):  # labels are read with the recipe
        fine_tuning.recipe(tmp_path, made=made, task=task, objective=objective)
    assert main([command, str(tmp_path / "recipe.yaml")]) == 2
    assert message in capsys.readouterr().err
