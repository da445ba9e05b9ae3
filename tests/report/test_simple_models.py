"""`jaxpt baseline`: tables and files of scores, and one line for what is wrong."""

import json
from pathlib import Path

import pytest
import yaml

from jaxpt import cli
from jaxpt import config as configs
from jaxpt.train.run_dir import receipt
from tests import fine_tuning

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


def recipe(path="recipe.yaml", made=None, **sections):
    """A recipe that does not say from which model it starts."""
    fine_tuning.write(Path("train.jsonl"), fine_tuning.rows(60, 0) if made is None else made)
    fine_tuning.write(Path("test.jsonl"), fine_tuning.rows(30, 1))
    tree = {"task": {"kind": "classification"}, "data": {"path": "train.jsonl", "test_path": "test.jsonl"}, **sections}
    Path(path).write_text(yaml.safe_dump(tree))
    return path


def run(capsys, *argv):
    code = cli.main(["--quiet", "baseline", *argv])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_a_table_and_a_file_with_the_same_scores(capsys):
    options = ("data.validation_fraction=0.25", "--models", "words_svm,chars_svm", "--out", "s.json")
    code, out, err = run(capsys, recipe(), *options)
    assert code == 0 and "Traceback" not in err
    found = json.loads(Path("s.json").read_text())
    assert [score["model"] for score in found["scores"]] == ["words_svm", "chars_svm"]
    assert found["rows"]["test"] == 30 and sum(found["rows"].values()) == 90
    first, heads, *rows, last = out.splitlines()
    assert first.startswith("classification: ") and first.endswith("scored on 30 test rows")
    assert heads.split() == ["model", "accuracy", "±", "s.e.", "chosen", "features", "seconds"]
    assert rows[0].split() == ["constant", "baseline", f"{found['constant']['test']['accuracy']:.4f}"]
    for row, score in zip(rows[1:], found["scores"], strict=True):
        cells = [score["model"], f"{score['metrics']['test']['accuracy']:.4f}", f"{score['error']:.4f}"]
        assert row.split()[:5] == [*cells, score["setting"], f"{score['features']:,}"]
    assert last.startswith(f"best on the validation set: {found['best']}, accuracy ")


def test_several_tasks_each_have_a_table(capsys):
    fine_tuning.write(Path("a.jsonl"), fine_tuning.rows(60, 0))
    files = [{"name": task["name"], "path": "a.jsonl"} for task in fine_tuning.TASKS]
    task = {"kind": "mixture", "tasks": fine_tuning.TASKS}
    path = recipe(task=task, data={"mixture": files})
    assert run(capsys, path, "--models", "words_svm")[0] == 2, "a model of labels alone"
    code, out, err = run(capsys, path, "--out", "s.json")
    assert code == 0, err
    found = json.loads(Path("s.json").read_text())
    assert {name: len(scores["scores"]) for name, scores in found.items()} == {"mood": 6, "grade": 3, "about": 6}
    titles = [line.partition(":")[0] for line in out.splitlines() if "training rows" in line]
    assert titles == ["mood", "grade", "about"]
    assert all(scores["split"] == "validation" for scores in found.values())


def test_a_file_of_two_paths_is_refused(capsys):
    path = recipe(data={"path": ["train.jsonl", "./train.jsonl"], "test_path": "test.jsonl"})
    code, out, err = run(capsys, path)
    assert (code, out) == (2, "") and "data.path: ./train.jsonl: is read twice, train.jsonl and ./train.jsonl" in err


def test_a_saved_one_is_as_a_fine_tuning_leaves_it(capsys):
    code, _, err = run(capsys, recipe(run_dir="simple"), "--save", "--models", "words_svm", "seed=3")
    assert code == 0, err
    directory = Path("simple")
    known, rows = receipt(directory), (directory / "evaluations" / "predictions_test.jsonl").read_text().splitlines()
    right = [row["target"] == row["prediction"] for row in map(json.loads, rows)]
    assert known["finished"] and known["test"]["accuracy"] == pytest.approx(sum(right) / 30)
    assert known["simple_model"]["best"] == "words_svm" and known["best_mode"] == "max"
    assert configs.load(directory).task.labels == ("bad", "good") and configs.load(directory).seed == 3
    assert cli.main(["runs", "."]) == 0 and "words_svm · classification" in capsys.readouterr().out
    (directory / "checkpoints").mkdir()
    code, _, err = run(capsys, "recipe.yaml", "--save", "--models", "words_svm")
    assert code == 2 and "simple has a trained model; choose another run_dir" in err


@pytest.mark.parametrize(
    ("argv", "sections", "message"),
    [
        (["--models", "words_smv"], {}, "--models: no model 'words_smv' for task.kind: classification"),
        (["data.path=lost.jsonl"], {}, "lost.jsonl"),
        ([], {"task": {"kind": "dialogue"}}, "task.kind: dialogue: there are no simple models for it"),
        (["task.labels=[good,fine]"], {}, "label 'bad'"),
        (["task.labels=[bad,good]", "data.path=same.jsonl"], {}, "rows have the label 'good'; wants rows of two"),
        (["data.path=same.jsonl"], {}, "wants rows of two labels or more (task.label), got good"),
        (["data.test_path=empty.jsonl"], {}, "empty.jsonl"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_one_line(capsys, argv, sections, message):
    same = [row | {"label": "good"} for row in fine_tuning.rows(40, 0)]
    fine_tuning.write(Path("same.jsonl"), same)
    Path("empty.jsonl").write_text("")
    code, out, err = run(capsys, recipe(**sections), *argv, "--out", "s.json")
    assert code == 2 and message in err and len(err.strip().splitlines()) == 1, err
    assert not out and not Path("s.json").exists()


def test_a_recipe_without_labels_is_refused(capsys):
    code, _, err = run(capsys, str(ROOT / "configs" / "smoke" / "gpt2_tiny.yaml"))
    assert code == 2 and "gpt2_tiny.yaml: key task is missing: simple models are for labelled tasks" in err
    code, _, err = run(capsys, str(ROOT / "configs" / "tasks" / "boolq.yaml"))
    assert code == 2 and "boolq.yaml: is a task of the harness: jaxpt eval --tasks has baselines" in err
