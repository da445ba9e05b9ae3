"""What a recipe of fine-tuning takes from its data: labels."""

import csv
import re
from pathlib import Path

import numpy as np
import pytest
from sklearn.utils.class_weight import compute_class_weight

from jaxpt import config as configs
from jaxpt import errors
from jaxpt.data.labelled import examples
from jaxpt.train import preflight
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


def begin(config, checkpoint=True):
    """A run with these settings."""
    run_dir = Path(config.run_dir)
    (run_dir / "checkpoints" / "1" if checkpoint else run_dir).mkdir(parents=True)
    (run_dir / "config.yaml").write_text(configs.to_yaml(config), encoding="utf-8")


def test_an_existing_run_keeps_the_labels_of_its_files_and_gives_them_to_no_other_task(tmp_path):
    begin(fine_tuning.recipe(tmp_path, task={"labels": ["good", "bad"]}))
    assert fine_tuning.recipe(tmp_path).task.labels == ("good", "bad")
    path = table(tmp_path / "tickets.csv", [("Tür klemmt", "böse"), ("fährt", "gut")])
    assert fine_tuning.recipe(tmp_path, data={"path": path}).task.labels == ("böse", "gut")
    assert fine_tuning.recipe(tmp_path, task={"label": "other"}).task.labels[:2] != ("good", "bad")


@pytest.mark.parametrize("kind", ["classification", "multi_label"])
def test_a_run_keeps_what_it_took_from_its_files_from_its_first_checkpoint_on(tmp_path, kind):
    settings = {"task": {"kind": kind}, "objective": {"class_weights": "balanced"}}
    rows = fine_tuning.rows(64)
    config = fine_tuning.recipe(tmp_path, made=rows, **settings)
    begin(config, checkpoint=False)
    assert fine_tuning.recipe(tmp_path, **settings) == config
    edited = fine_tuning.recipe(tmp_path, made=[*rows, {**rows[0], "label": "eggs"}], **settings)
    assert edited.task.labels == ("bad", "eggs", "good") and len(edited.objective.class_weights) == 3
    with pytest.raises(errors.UserError, match=r"belongs to another run: task\.labels is .*'eggs'.* was asked for"):
        preflight.check(edited)
    (tmp_path / "run" / "checkpoints" / "1").mkdir(parents=True)
    resumed = fine_tuning.recipe(tmp_path, **settings)
    assert resumed == config
    words = r"line 65: label 'eggs' is none of task\.labels; .*: bad, good; these are in .*/run/config\.yaml: restore"
    with pytest.raises(errors.UserError, match=words):
        preflight.check(resumed)


@pytest.mark.parametrize("weights", [None, [1.0, 5.0], [0.0, 2.0]])
def test_weights_that_were_not_balanced_are_not_kept_as_such(tmp_path, weights):
    begin(fine_tuning.recipe(tmp_path, objective={"class_weights": weights}))
    asked = fine_tuning.recipe(tmp_path, objective={"class_weights": "balanced"})
    assert sum(1 / weight for weight in asked.objective.class_weights) == pytest.approx(2)
    words = rf"another run: objective\.class_weights is {re.escape(errors.shown(weights))} there, \[[\d., ]*\] was"
    with pytest.raises(errors.UserError, match=words):
        preflight.check(asked)


def trained_labels(config):
    """The labels of each row that is trained on, as ids or 0 and 1."""
    return np.array([config.task.target(row.row, row.where) for row in examples.split_rows(config, "train")])


@pytest.mark.parametrize("chosen", [{"test_fraction": 0.25}, {"train_rows": 20}, {"validation_fraction": 0.4}])
@pytest.mark.parametrize("task", [{}, {"group": "half"}])
def test_balanced_weights_are_of_the_rows_that_are_trained_on(tmp_path, chosen, task):
    made = [row | {"half": n // 2} for n, row in enumerate(fine_tuning.rows(64))]
    config = fine_tuning.recipe(tmp_path, made=made, data=chosen, task=task, objective={"class_weights": "balanced"})
    y = trained_labels(config)
    assert len(y) < 50 and set(y) == {0, 1} and (config.task.split_by == "group") == bool(task)
    expected = compute_class_weight("balanced", classes=np.arange(2), y=y)
    np.testing.assert_allclose(config.objective.class_weights, expected, rtol=1e-6)


def test_balanced_weights_count_a_label_once_in_a_row(tmp_path):
    made = [{"text": f"film {n}", "label": "joy|joy" if n % 4 else "joy|fear"} for n in range(48)]
    settings = {"task": {"kind": "multi_label"}, "objective": {"class_weights": "balanced"}}
    config = fine_tuning.recipe(tmp_path, made=made, **settings)
    y = trained_labels(config)
    assert config.task.labels == ("fear", "joy") and len(y) == 36
    np.testing.assert_allclose(
        config.objective.class_weights, [(36 - y[:, 0].sum()) / y[:, 0].sum(), 1 / 36], rtol=1e-6
    )


def test_a_tag_whose_only_row_is_held_out_has_a_weight(tmp_path):
    made = [{"tokens": ["a", f"{n}"], "tags": ["O", f"T{n}"]} for n in range(40)]
    settings = {"task": {"kind": "tagging"}, "objective": {"class_weights": "balanced"}}
    weights = dict(zip((config := fine_tuning.recipe(tmp_path, made=made, **settings)).task.labels,
                       config.objective.class_weights))  # fmt: skip
    rows = len(examples.split_rows(config, "train"))
    assert rows == 30 and {round(weights[f"T{n}"] / weights["O"], 4) for n in range(40)} == {rows}


def test_a_run_that_goes_on_keeps_the_weights_that_it_saved(tmp_path):
    """Earlier runs have those of all rows of their files."""
    balanced = {"class_weights": "balanced"}
    rows = fine_tuning.rows(64)
    counts = [sum(row["label"] == label for row in rows) for label in ("bad", "good")]
    saved = [64 / (2 * count) for count in counts]
    begin(fine_tuning.recipe(tmp_path, made=rows, objective={"class_weights": saved}))
    assert fine_tuning.recipe(tmp_path, objective=balanced).objective.class_weights == tuple(saved)
    assert fine_tuning.recipe(tmp_path, "run_dir=new", objective=balanced).objective.class_weights != tuple(saved)


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


def test_a_head_is_trained_beside_adapters_but_in_runs_that_began_without(tmp_path):
    lora = {"lora": {"rank": 2}}
    for train, trainable in (
        (lora, ("adapter", "heads")), (lora | {"trainable": ["adapter"]}, ("adapter",)), ({}, None),
    ):  # fmt: skip
        assert fine_tuning.recipe(tmp_path, train=train).train.trainable == trainable
    written = fine_tuning.recipe(tmp_path, of="t5", objective={"kind": "text_to_text"}, train=lora)
    assert written.train.trainable is None
    config = fine_tuning.recipe(tmp_path, train=lora)
    begin(config)
    assert fine_tuning.recipe(tmp_path, train=lora) == config
    old = config.model_copy(update={"train": config.train.model_copy(update={"trainable": None})})
    (tmp_path / "run" / "config.yaml").write_text(configs.to_yaml(old), encoding="utf-8")
    assert fine_tuning.recipe(tmp_path, train=lora) == old


def test_new_texts_of_ulmfit_begin_with_eos_and_an_existing_run_keeps_its_own(tmp_path):
    settings = {"of": "awd_lstm", "objective": {"kind": "recurrent_classification"}}
    config = fine_tuning.recipe(tmp_path, **settings)
    assert config.objective.opening == "eos"
    begin(config)
    assert fine_tuning.recipe(tmp_path, **settings) == config
    old = config.model_copy(update={"objective": config.objective.model_copy(update={"opening": None})})
    text = configs.to_yaml(old).replace("  opening: null\n", "")  # as older runs wrote it
    assert "opening" not in text
    (tmp_path / "run" / "config.yaml").write_text(text, encoding="utf-8")
    assert fine_tuning.recipe(tmp_path, **settings) == old


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
