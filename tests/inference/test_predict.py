"""Fine-tuning from rows to predictions: train, best checkpoint, test set, predict, export."""

import json
import types
from collections import Counter

import numpy as np
import pytest

import jaxpt
from jaxpt.cli import main
from jaxpt.data import tables
from jaxpt.data.tasks.base import LocatedRow
from jaxpt.data.tasks.multi_label import MultiLabelTask
from jaxpt.errors import UserError
from jaxpt.hf import convert
from jaxpt.inference.predict import check_top_k, predict, report_metrics
from jaxpt.train import checkpoint
from jaxpt.train.loop import train
from tests import fine_tuning


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A directory with a finished run in `run`, and rows that it has not seen in `test.jsonl`."""
    directory = tmp_path_factory.mktemp("fine_tuned")
    fine_tuning.write(directory / "test.jsonl", fine_tuning.rows(21, seed=1))
    sections = {
        "data": {"test_path": str(directory / "test.jsonl")},
        "train": {"steps": 40, "eval_every": 10, "log_every": 40},
    }
    assert train(fine_tuning.recipe(directory, **sections)) == 0
    return directory


def lines(path):
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


@pytest.mark.slow
def test_each_row_has_its_line_in_order(run, tmp_path, capsys):
    without = [{"id": row["id"], "text": row["text"]} for row in fine_tuning.rows(21, seed=1)]
    path = fine_tuning.write(tmp_path / "rows.jsonl", without)
    predict(str(run / "run"), path, str(tmp_path / "p.jsonl"))
    found, wanted = lines(tmp_path / "p.jsonl"), fine_tuning.rows(21, seed=1)
    assert [one["id"] for one in found] == [row["id"] for row in wanted]
    accuracy = sum(one["label"] == row["label"] for one, row in zip(found, wanted)) / 21
    receipt = json.loads((run / "run" / "run.json").read_text())
    assert accuracy == pytest.approx(receipt["test"]["accuracy"]) and accuracy > 0.9
    assert all(abs(sum(one["probabilities"].values()) - 1) < 1e-5 for one in found)
    assert "accuracy" not in capsys.readouterr().out
    predict(str(run / "run"), fine_tuning.write(tmp_path / "labelled.jsonl", wanted), str(tmp_path / "q.jsonl"))
    assert f"{run / 'run'}: accuracy {accuracy:.4f}" in capsys.readouterr().out


@pytest.mark.slow
def test_a_table_of_a_spreadsheet_is_joined_to_its_predictions(run, tmp_path, capsys):
    """`;` and Latin-1 in; CSV, TSV, Parquet, and lines on stdout out, of a file and of texts."""
    texts = ["a good film, très good", "a bad plot"]
    (tmp_path / "t.csv").write_bytes(
        ("text;day\n" + "".join(f"{text};{n}\n" for n, text in enumerate(texts))).encode("cp1252")
    )
    for suffix in ("csv", "parquet"):
        command = ["predict", str(run / "run"), "--top-k", "2", "--out", str(tmp_path / f"p.{suffix}")]
        assert main([*command, str(tmp_path / "t.csv"), "task.names=[sad,fine]"]) == 0
        rows = [row.values for row in tables.read(tmp_path / f"p.{suffix}")]
        assert list(rows[0]) == ["id", "text", "day", "label", "probability", "label_2", "probability_2"]
        assert [row["text"] for row in rows] == texts and [row["label"] for row in rows] == ["fine", "sad"]
        assert [int(row["id"]) for row in rows] == [0, 1] == [int(row["day"]) for row in rows]
    capsys.readouterr()
    assert main(["predict", str(run / "run"), "task.names=[sad,fine]", "--text", texts[0], "--text", texts[1]]) == 0
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [one["label"] for one in printed] == ["fine", "sad"] and [one["text"] for one in printed] == texts
    assert [one["probability"] for one in printed] == pytest.approx(
        [float(row["probability"]) for row in rows], abs=2e-6
    )


@pytest.mark.slow
def test_the_predictions_of_the_test_set_are_kept(run, tmp_path, capsys):
    """One line for each row; a finished run writes the same bytes again; `jaxpt eval` shows the validation set's."""
    file = run / "run" / "evaluations" / "predictions_test.jsonl"
    found, rows = lines(file), fine_tuning.rows(21, seed=1)
    assert [(one["id"], one["target"]) for one in found] == [(row["id"], row["label"]) for row in rows]
    receipt = json.loads((run / "run" / "run.json").read_text())
    assert np.mean([one["target"] == one["prediction"] for one in found]) == pytest.approx(receipt["test"]["accuracy"])
    predict(str(run / "run"), str(run / "test.jsonl"), str(tmp_path / "p.jsonl"))
    for one, other in zip(found, lines(tmp_path / "p.jsonl"), strict=True):
        assert one["prediction"] == other["predicted_label"] and one["target"] == other["label"]
        assert one["loss"] == pytest.approx(-np.log(other["probabilities"][one["target"]]), abs=2e-6)
    before = file.read_bytes()
    file.unlink()
    assert main(["train", str(run / "run")]) == 0
    names = {"lines.jsonl", "mistakes_test.jsonl", file.name}
    assert file.read_bytes() == before and {path.name for path in file.parent.iterdir()} == names

    said = capsys.readouterr().out
    assert "target ↓  bad  good ← predicted" in said and "largest losses of 21 rows:" in said
    worst = max(found, key=lambda one: one["loss"])
    assert f"\n{worst['loss']:.4f} {worst['id']}: {worst['target']} → {worst['prediction']}  " in said
    assert main(["eval", str(run / "run")]) == 0
    assert "target ↓  bad  good ← predicted" in capsys.readouterr().out and file.read_bytes() == before
    assert main(["eval", str(run / "run"), f"data.test_path={run / 'test.jsonl'}"]) == 0
    assert f"test: accuracy {receipt['test']['accuracy']:.4f}" in capsys.readouterr().out


@pytest.mark.slow
def test_what_a_report_shows_is_kept(run):
    """How often the labels occur, the rows with the largest loss with their texts, the best constant prediction."""
    directory, rows = run / "run" / "evaluations", fine_tuning.rows(21, seed=1)
    (part,) = lines(directory / "mistakes_test.jsonl")
    assert part["task"] == "" and part["labels"]["test"] == dict(Counter(row["label"] for row in rows).most_common())
    assert part["labels"]["train"].keys() == part["labels"]["test"].keys()
    worst = sorted(lines(directory / "predictions_test.jsonl"), key=lambda one: -one["loss"])[:20]
    texts = {row["id"]: row["text"] for row in rows}
    assert part["worst"] == [one | {"text": texts[one["id"]]} for one in worst]
    said = {one["evaluator"]: one["lines"] for one in lines(directory / "lines.jsonl")}
    assert any("(constant baseline " in line for line in said["task"])
    constant = json.loads((run / "run" / "run.json").read_text())["test_constant"]["accuracy"]
    most_frequent = max(part["labels"]["train"], key=part["labels"]["train"].get)
    assert constant == pytest.approx(part["labels"]["test"][most_frequent] / 21)


@pytest.mark.slow
def test_the_best_simple_model_stands_beside_a_fine_tuned_one(run, capsys):
    """Those of `jaxpt baseline` on the run; of the same rows, so that the error is that of paired examples."""
    receipt = json.loads((run / "run" / "run.json").read_text())
    entry = receipt["simple_models"][""]
    models = "words_svm,chars_svm"
    assert main(["baseline", str(run / "run"), "--models", models, "--out", str(run / "simple.json")]) == 0
    found = json.loads((run / "simple.json").read_text())
    (best,) = (score for score in found["scores"] if score["model"] == found["best"])
    assert (entry["model"], entry["setting"], entry["value"]) == (
        best["model"], best["setting"], best["metrics"]["test"]["accuracy"],
    )  # fmt: skip
    assert entry["difference"] == pytest.approx(receipt["test"]["accuracy"] - entry["value"])
    assert entry["constant"] == receipt["test_constant"]["accuracy"]
    assert main(["train", str(run / "run")]) == 0
    said = capsys.readouterr().out
    assert f"best simple model: {entry['model']}" in said
    assert ("than that of a simple baseline" in said) == (entry["verdict"] != "better")
    assert main(["report", str(run / "run")]) == 0
    assert f"simple model {entry['model']}" in (run / "run" / "report.html").read_text("utf-8")


@pytest.mark.slow
def test_a_submission_to_glue(run, tmp_path, capsys):
    names = ["task.name=sst2", "task.names=[negative,positive]"]
    arguments = ["predict", str(run / "run"), str(run / "test.jsonl"), "--glue", "--out", str(tmp_path / "glue")]
    assert main([*arguments, *names]) == 0
    predict(str(run / "run"), str(run / "test.jsonl"), str(tmp_path / "p.jsonl"))
    wanted = [f"{one['id']}\t{['bad', 'good'].index(one['predicted_label'])}" for one in lines(tmp_path / "p.jsonl")]
    assert (tmp_path / "glue" / "SST-2.tsv").read_text("utf-8").splitlines() == ["index\tprediction", *wanted]
    capsys.readouterr()
    for more, words in ((names, "SST-2.tsv: already exists"), (names[:1], "task.labels: 'bad' is none of SST-2.tsv's")):
        assert main([*arguments, *more]) == 2
        said = capsys.readouterr().err
        assert words in said and said.count("\n") == 1


@pytest.mark.slow
def test_a_classifier_is_no_writer(run):
    model = jaxpt.load(run / "run")
    with pytest.raises(UserError, match=r"was fine-tuned with objective.kind: classification.* use jaxpt predict"):
        model.generate(["a film"])
    assert model.embed(["a film"]).shape == (1, 32)


@pytest.mark.slow
def test_the_best_checkpoint_is_the_one_that_is_used(run, tmp_path):
    receipt = json.loads((run / "run" / "run.json").read_text())
    metrics = lines(run / "run" / "metrics.jsonl")
    values = {one["step"]: one["task/accuracy"] for one in metrics if "task/accuracy" in one}
    best = max(values.values())
    assert values[receipt["best_step"]] == best
    assert checkpoint.find(run / "run") == (run / "run", receipt["best_step"])
    convert.export(run / "run", tmp_path / "hf", report=lambda line: None)
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert config["architectures"] == ["BertForSequenceClassification"]
    assert config["id2label"] == {"0": "bad", "1": "good"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("row", "words"),
    [({"texts": "a film"}, "line 1 (task.text): no column 'text'"), ({"text": 3}, "column 'text' wants text, got 3")],
)
def test_a_bad_row_leaves_no_file(row, words, run, tmp_path, capsys):
    path = fine_tuning.write(tmp_path / "rows.jsonl", [row])
    assert main(["predict", str(run / "run"), path, "--out", str(tmp_path / "p.jsonl")]) == 2
    said = capsys.readouterr().err
    assert words in said and said.count("\n") == 1
    assert [file.name for file in tmp_path.iterdir()] == ["rows.jsonl"]


@pytest.mark.slow
def test_an_existing_file_is_kept(run, tmp_path):
    (tmp_path / "p.jsonl").write_text("mine")
    with pytest.raises(UserError, match="already exists"):
        predict(str(run / "run"), str(run / "test.jsonl"), str(tmp_path / "p.jsonl"))
    assert (tmp_path / "p.jsonl").read_text() == "mine"


@pytest.mark.slow
def test_a_new_head_for_other_labels(run, tmp_path, capsys):
    """The encoder comes from the run, the head of other labels is new; that of the same labels is taken."""
    made = [{**row, "label": {"bad": "no", "good": "yes"}[row["label"]]} for row in fine_tuning.rows(40)]
    (tmp_path / "other").mkdir()
    for of, train_rows, is_new in (("same", None, False), ("other", made, True)):
        (tmp_path / of).mkdir(exist_ok=True)
        config = fine_tuning.recipe(
            tmp_path / of, made=train_rows, model=None, init_from={"path": str(run / "run")},
            data={"tokenizer": None},
        )  # fmt: skip
        assert config.model.kind == "bert" and config.data.tokenizer.path == str(run / "run" / "tokenizer")
        assert train(config.model_copy(update={"train": config.train.model_copy(update={"steps": 1})})) == 0
        said = capsys.readouterr().out
        assert ("new: heads/classes" in said) == is_new


def test_the_metrics_of_several_labels_are_said_where_rows_have_them():
    """A row may have none, but not all rows."""
    task = MultiLabelTask(labels=("a", "b"), metrics=("micro_f1", "exact_match", "average_precision"))
    answers = [
        {"labels": ["a"], "probabilities": {"a": 0.9, "b": 0.3}},
        {"labels": [], "probabilities": {"a": 0.1, "b": 0.2}},
    ]

    def said(*values):
        lines = []
        rows = [LocatedRow(tables.Row(n, value), f"line {n}", (0, n)) for n, value in enumerate(values)]
        report_metrics("run", task, rows, answers, lines.append)
        return lines

    wanted = "run: micro_f1 0.6667  exact_match 0.5000  average_precision 1.0000"
    assert said({"label": "a|b"}, {"label": ""}) == [wanted]
    assert said({"label": "a|c"}, {"label": ""})[0].startswith("run: no metrics: line 0")
    assert said({"label": ""}, {"label": None}) == said({}, {}) == said({"label": "a"}, {}) == []


def test_top_k_is_refused_where_it_has_no_effect():
    def config(kind, targets, decide_by="likelihood"):
        task = types.SimpleNamespace(kind=kind, metric_targets=targets)
        return types.SimpleNamespace(task=task, objective=types.SimpleNamespace(decide_by=decide_by))

    check_top_k(config("classification", "label"), "run")
    for other, glue, message in (
        (config("tagging", "tags"), False, "has no effect on run: task.kind: tagging gives no probabilities of labels"),
        (config("classification", "label", "generation"), False, "has no effect on run: it writes its labels as text"),
        (config("classification", "label"), True, "has no effect beside --glue"),
    ):
        with pytest.raises(UserError, match=f"^--top-k: {message}.*; leave it out$"):
            check_top_k(other, "run", glue)
