"""What is said and refused of labelled data: tags that no row has, tags that are repaired."""

import pytest

from jaxpt.data import datasets
from jaxpt.data.checks import repeated_file
from jaxpt.data.labelled import checks
from jaxpt.data.labelled.files import RowFile
from jaxpt.data.tasks.dialogue import DialogueTask
from jaxpt.errors import UserError
from jaxpt.objectives.dialogue import Dialogue
from jaxpt.runtime import progress
from tests import fine_tuning

TAGS = ["O", "B-good", "I-good"]


def rows(*tags):
    return [{"tokens": ["a", "film", f"{n}"], "tags": list(of_row)} for n, of_row in enumerate(tags)]


def test_a_tag_that_no_row_has_is_refused(tmp_path):
    made = rows(*[("O", "B-good", "O")] * 8)
    config = fine_tuning.recipe(tmp_path, made=made, task={"kind": "tagging", "labels": TAGS})
    with pytest.raises(UserError) as error:
        datasets.prepare(config, report=lambda line: None)
    assert str(error.value) == ("data.path: no row has the label 'I-good'; add some, or take it out of task.labels")


def test_a_tag_whose_only_row_is_held_out_is_said(tmp_path):
    """Nobody chose the tags, nor the rows that are held out."""
    made = rows(*(("O", "O", f"T{n}") for n in range(40)))
    config = fine_tuning.recipe(tmp_path, made=made, task={"kind": "tagging"})
    said = []
    data = datasets.prepare(config, report=said.append)
    held_out = len(data.validation)
    (line,) = [line for line in said if "without a row to train on" in line]
    assert line.startswith("labels without a row to train on, as 'T") and f": {held_out} of 41; " in line


@pytest.mark.parametrize(
    ("split", "row", "label", "words"),
    [
        ("validation", 60, "gud", "line 61: label 'gud' is none of task.labels; did you mean good"),
        ("train", 300, "gud", "line 301: label 'gud' is none of task.labels; did you mean good"),
        ("test", 60, "gud", "line 61: label 'gud' is none of task.labels; did you mean good"),
        ("test", 0, "", "line 1: column 'label' (task.label) is empty"),
        ("test", 0, None, "line 1: no column 'label'; it has text"),
    ],
)
def test_every_label_is_looked_at_before_a_run(split, row, label, words, tmp_path):
    """Of the test set, too, which is scored only when the run is at its end."""
    sizes, keys = {"train": 320, "validation": 80, "test": 80}, {"train": "path"}
    paths = {}
    for name, size in sizes.items():
        made = [{"text": f"a film {n}", "label": ("bad", "good")[n % 2]} for n in range(size)]
        if name == split:
            made[row] = {"text": "a play"} | ({} if label is None else {"label": label})
        paths[keys.get(name, f"{name}_path")] = fine_tuning.write(tmp_path / f"{name}.jsonl", made)
    config = fine_tuning.recipe(tmp_path, data=paths, task={"kind": "classification", "labels": ["bad", "good"]})
    with pytest.raises(UserError) as error:
        checks.check(config)
    assert f"{split}.jsonl: {words}" in str(error.value)


@pytest.mark.parametrize(
    ("label", "words"),
    [
        ("gud", "line 4: label 'gud' is none of task.labels"),
        ("", "line 4: column 'label' .* is empty; .*; 2 such rows"),
    ],
)
def test_a_test_set_that_is_no_local_file_is_looked_at_before_a_run(label, words, tmp_path, monkeypatch):
    """Its rows are read once the others are prepared, whose targets are looked at there."""
    monkeypatch.setattr(RowFile, "state", None)  # as of a data set
    made = [row | ({"label": label} if n in (3, 5) else {}) for n, row in enumerate(fine_tuning.rows(8))]
    paths = {"test_path": fine_tuning.write(tmp_path / "test.jsonl", made)}
    config = fine_tuning.recipe(tmp_path, data=paths, task={"kind": "classification", "labels": ["bad", "good"]})
    checks.check(config)
    with pytest.raises(UserError, match=rf"test\.jsonl: {words}"):
        list(checks.lines(config, {}))


def test_a_file_that_two_paths_of_a_split_name_is_said(tmp_path):
    (tmp_path / "more").mkdir()
    for name in ("dev.jsonl", "more/test.jsonl"):
        fine_tuning.write(tmp_path / name, fine_tuning.rows(8))
    paths = {"validation_path": [str(tmp_path / "dev.jsonl")] * 2}
    assert repeated_file(fine_tuning.recipe(tmp_path, data=paths)) is None
    paths["test_path"] = [str(tmp_path / "more"), str(tmp_path / "more" / "*.jsonl")]
    line = repeated_file(fine_tuning.recipe(tmp_path, data=paths))
    both = " and ".join(paths["test_path"])
    assert line == f"data.test_path: {tmp_path}/more/test.jsonl: is read twice, {both} both name it; leave one out"


@pytest.mark.parametrize(
    ("size", "row", "words"),
    [(100_001, {"label": "gud"}, "line 100001: label 'gud'"), (64, {"text": None}, "line 64 .*: no column 'text'")],
)
def test_each_row_is_looked_at(tmp_path, monkeypatch, capsys, size, row, words):
    """However many there are; who waits for it is told."""
    table = [{"text": "a film", "label": ("bad", "good")[n % 2]} for n in range(size)]
    table[-1] = {key: value for key, value in (table[-1] | row).items() if value is not None}
    task = {"kind": "classification", "labels": ["bad", "good"]}
    config = fine_tuning.recipe(tmp_path, made=table, task=task)
    monkeypatch.setattr(progress, "SECONDS", 0.1)
    with pytest.raises(UserError, match=words):
        checks.check(config)
    assert size < 100_000 or "checking the rows of the train set: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("task", "wants"),
    [
        ({"kind": "classification"}, "a label"),
        ({"kind": "classification", "labels": ["0", "1"]}, "a label"),
        ({"kind": "regression"}, "a number"),
    ],
)
def test_rows_without_a_label_are_counted(task, wants, tmp_path):
    """In one line, wherever the labels are looked at first; the first few rows are named."""
    made = [{"text": f"a film {n}", "label": " " if n % 3 == 1 else n % 2} for n in range(16)]
    with pytest.raises(UserError) as error:
        checks.check(fine_tuning.recipe(tmp_path, made=made, task=task))
    assert str(error.value) == (
        f"{tmp_path}/train.jsonl: line 2: column 'label' (task.label) is empty; wants {wants}, or leave out the row; "
        "5 such rows: line 2, line 5, line 8 and 2 more"
    )


def test_a_number_is_looked_at_before_a_run(tmp_path):
    made = [{"text": f"a film {n}", "score": n} for n in range(64)]
    made[50]["score"] = "many"
    config = fine_tuning.recipe(
        tmp_path, made=made, task={"kind": "regression", "label": "score"}, data={"validation_path": None}
    )
    with pytest.raises(UserError, match=r"line 51: column 'score' \(task\.label\) wants a number, got 'many'"):
        checks.check(config)


@pytest.mark.parametrize(
    ("metric", "words"),
    [
        ("task/accuracy", None),
        ("task/temperature", None),
        ("validation/loss", None),
        ("task/f1", "task/f1: task.metrics gives no such value; it gives accuracy, macro_f1"),
        ("task", "task/: task.metrics gives no such value; it gives accuracy, macro_f1"),
    ],
)
def test_the_best_metric_is_one_of_the_tasks(metric, words, tmp_path):
    task = {"kind": "classification", "metrics": ["accuracy", "macro_f1"]}
    config = fine_tuning.recipe(tmp_path, task=task, checkpoint={"best_metric": metric})
    if words is None:
        checks.check(config)
        return
    with pytest.raises(UserError) as error:
        checks.check(config)
    assert f"checkpoint.best_metric: {words}" in str(error.value)


def test_the_best_metric_is_one_of_a_task_of_a_mixture(tmp_path):
    checks.check(fine_tuning.mixture(tmp_path, checkpoint={"best_metric": "task/mood/accuracy"}))
    with pytest.raises(UserError, match=r"task/mood/acuracy: task\.metrics gives no .*did you mean accuracy"):
        checks.check(fine_tuning.mixture(tmp_path, checkpoint={"best_metric": "task/mood/acuracy"}))


def test_repaired_tags_are_said(tmp_path):
    fine_tuning.write(tmp_path / "dev.jsonl", rows(("O", "B-good", "I-good")))
    train = rows(("I-good", "I-good", "O"), ("I-good", "O", "I-good"), ("O", "O", "O"))
    data = {"validation_path": str(tmp_path / "dev.jsonl")}
    config = fine_tuning.recipe(tmp_path, made=train, data=data, task={"kind": "tagging", "labels": TAGS})
    assert list(checks.lines(config, {})) == [
        "train: 3 tags I-X that continue no entity were read as B-X (task.scheme: auto)",
        "1 of 1 validation texts stand in the training set too",
    ]


def test_dialogues_that_are_cut_are_said(tmp_path):
    config = fine_tuning.recipe(tmp_path, made=rows("OOO"), task={"kind": "tagging", "labels": TAGS})
    config = config.model_copy(update={"objective": Dialogue(task=DialogueTask())})
    line = next(checks.lines(config, {"train": (3, 1000)}))
    assert line == f"train: 3 of 1,000 examples were cut to data.length {config.data.length}"


def test_a_validation_set_that_is_small_for_its_labels_is_said(tmp_path):
    made = [{"text": f"a film {n}", "label": f"l{n % 12}"} for n in range(120)]
    config = fine_tuning.recipe(tmp_path, made=made, data={"validation_fraction": 0.1})
    (line,) = checks.lines(config, {})
    assert line.startswith("validation: 12 rows for 12 labels: few to choose the best checkpoint by")
    assert line.endswith("more rows: data.validation_fraction")
    fine_tuning.write(tmp_path / "dev.jsonl", [{"text": f"a play {n}", "label": f"l{n % 11}"} for n in range(88)])
    config = fine_tuning.recipe(tmp_path, data={"validation_path": str(tmp_path / "dev.jsonl")})
    assert ["88 rows for 12 labels, 1 of them without a row: few" in line for line in checks.lines(config, {})] == [
        True
    ]
