"""What a recipe of fine-tuning takes from its data: labels."""

import csv

import pytest

from jaxpt import config as configs
from jaxpt import errors
from tests import fine_tuning


def table(path, rows):
    """A CSV of tickets; in Latin-1, with semicolons."""
    with path.open("w", newline="", encoding="latin-1") as file:
        csv.writer(file, delimiter=";").writerows([("text", "label"), *rows])
    return str(path)


@pytest.fixture
def notes(monkeypatch):
    lines = []
    monkeypatch.setattr(errors, "note", lines.append)
    return lines


def test_an_existing_run_keeps_the_labels_of_its_files_and_gives_them_to_no_other_task(tmp_path):
    config = fine_tuning.recipe(tmp_path, task={"labels": ["good", "bad"]})
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text(configs.to_yaml(config), encoding="utf-8")
    assert fine_tuning.recipe(tmp_path).task.labels == ("good", "bad")
    path = table(tmp_path / "tickets.csv", [("Tür klemmt", "böse"), ("fährt", "gut")])
    assert fine_tuning.recipe(tmp_path, data={"path": path}).task.labels == ("böse", "gut")
    assert fine_tuning.recipe(tmp_path, task={"label": "other"}).task.labels[:2] != ("good", "bad")


def test_new_runs_hold_out_whole_groups_and_an_existing_run_keeps_its_splits(tmp_path):
    assert fine_tuning.recipe(tmp_path).task.split_by is None
    config = fine_tuning.recipe(tmp_path, task={"group": "id"})
    assert config.task.split_by == "group"
    (tmp_path / "run").mkdir()
    for split_by in (None, "group"):
        saved = config.model_copy(update={"task": config.task.model_copy(update={"split_by": split_by})})
        (tmp_path / "run" / "config.yaml").write_text(configs.to_yaml(saved), encoding="utf-8")
        assert fine_tuning.recipe(tmp_path, task={"group": "id"}).task.split_by == split_by
    with pytest.raises(errors.UserError, match=r"split_by: group: wants group"):
        fine_tuning.recipe(tmp_path, task={"split_by": "group"})


def test_several_labels_in_one_column(tmp_path, notes):
    path = table(tmp_path / "tickets.csv", [("a", "x"), ("b", "y|x"), ("c", "y")])
    one = fine_tuning.recipe(tmp_path, data={"path": path}).task
    assert one.labels == ("x", "y", "y|x")
    assert notes == [
        f"{path}: fields separated by ';'",
        "label 'y|x' holds several labels; task.kind: multi_label reads them one by one",
    ]
    assert fine_tuning.recipe(tmp_path, data={"path": path}, task={"kind": "multi_label"}).task.labels == ("x", "y")
    assert notes[2:] == ["column 'label': labels separated by '|'"]


def test_a_column_for_each_label(tmp_path):
    rows = [{"text": f"film {n}", "fear": n % 2, "anger": int(n > 3)} for n in range(8)]
    task = {"kind": "multi_label", "label": ["fear", "anger"]}
    assert fine_tuning.recipe(tmp_path, made=rows, task=task).task.labels == ("fear", "anger")
