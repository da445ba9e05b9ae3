"""What is said and refused of labelled data: tags that no row has, tags that are repaired."""

import pytest

from jaxpt.data import datasets
from jaxpt.data.labelled import checks
from jaxpt.data.tasks.dialogue import DialogueTask
from jaxpt.errors import UserError
from jaxpt.objectives.dialogue import Dialogue
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
