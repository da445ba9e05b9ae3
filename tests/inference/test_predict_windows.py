"""Rows with sets of labels and texts beyond `data.length`, read in windows: train, evaluate, predict, report."""

import json

import numpy as np
import pytest

import jaxpt
from jaxpt.cli import main
from jaxpt.inference import inspecting
from jaxpt.inference.predictor import RunPredictor
from jaxpt.train.loop import train
from tests import fine_tuning

pytestmark = pytest.mark.slow


def rows(count, seed=0):
    """Texts of up to 90 words; the word that tells a label stands in each window of them."""
    rng = np.random.default_rng(seed)
    made = []
    for number in range(count):
        labels = [name for name in ("praise", "blame") if rng.integers(2)]
        words = list(rng.choice(fine_tuning.WORDS[:4], rng.integers(2, 60)))
        for at in range(0, 90 if len(words) > 20 else 1, 9):
            words[at:at] = ["good" if name == "praise" else "bad" for name in labels]
        made.append({"text": f"{' '.join(words)} {number}", "label": "|".join(labels)})
    return made


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    directory = tmp_path_factory.mktemp("windows")
    sections = {
        "task": {"kind": "multi_label", "windows": "max"},
        "objective": {"class_weights": "balanced"},
        "train": {"steps": 80, "eval_every": 40, "log_every": 40},
    }
    config = fine_tuning.recipe(directory, made=rows(120), **sections)
    assert train(config) == 0
    return directory


def test_a_text_has_the_largest_output_of_its_windows(run):
    receipt = json.loads((run / "run" / "run.json").read_text())
    assert receipt["best"]["micro_f1"] > 0.8, receipt["best"]
    predictor = RunPredictor.of(run / "run")
    long = "bad " + "film " * 70
    parts = [" ".join(long.split()[start : start + 30]) for start in range(0, len(long.split()), 15)]
    whole, *pieces = inspecting.predict(predictor, [long, *parts])
    assert whole["labels"] == ["blame"]
    for label in ("praise", "blame"):
        largest = max(piece["probabilities"][label] for piece in pieces)
        assert whole["probabilities"][label] == pytest.approx(largest, abs=1e-5)


def test_tokenizer_and_dtype_of_the_loaded_model_count(run, tmp_path):
    """A vocabulary in which two words have changed places."""
    words = (run / "run/tokenizer/vocab.txt").read_text().splitlines()
    good, bad = map(words.index, ("good", "bad"))
    words[good], words[bad] = "bad", "good"
    (tmp_path / "vocab.txt").write_text("".join(f"{word}\n" for word in words))
    texts, exchanged = ["good film", "bad film"], ["bad film", "good film"]
    wanted = jaxpt.load(run / "run").predict(texts)
    assert jaxpt.load(run / "run", tokenizer=tmp_path / "vocab.txt").predict(exchanged) == wanted
    (near, _) = jaxpt.load(run / "run", dtype="bfloat16").predict(texts)
    assert near != wanted[0] and near["probabilities"] == pytest.approx(wanted[0]["probabilities"], abs=0.05)


def test_the_page_shows_each_label(run, tmp_path, capsys):
    assert main(["report", str(run / "run"), "--out", str(tmp_path / "page.html")]) == 0
    page = (tmp_path / "page.html").read_text()
    for words in ("Scores of each label", "threshold", "calibration error", "Rows with a label by its probability"):
        assert words in page, words
    (part,) = map(json.loads, (run / "run/evaluations/mistakes_validation.jsonl").read_text().splitlines())
    assert len(part["worst"]) == 20 and all(row["text"] for row in part["worst"])
    assert set(part["reliability"]["thresholds"]) == {"praise", "blame"}
