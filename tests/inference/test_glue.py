"""GLUE's submissions: every task's test file to the leaderboard's lines, and what is refused."""

import types
from pathlib import Path

import pytest
import yaml

from jaxpt.config import TaskConfig, resolve
from jaxpt.data.labelled import examples
from jaxpt.data.labelled.files import RowFile
from jaxpt.errors import UserError
from jaxpt.inference.predict import Submission
from jaxpt.metrics.glue import GLUE

RECIPES = Path(__file__).parents[2] / "configs" / "finetune" / "glue"
PAIR = ("sentence1", "sentence2")
COLUMNS = {
    "cola": ("sentence",), "sst2": ("sentence",), "mrpc": ("#1 String", "#2 String"), "qqp": ("question1", "question2"),
    "qnli": ("question", "sentence"),
}  # fmt: skip
"""Columns of text of the test files; others have `PAIR`."""
FILES = {"mnli_matched": "test_matched", "mnli_mismatched": "test_mismatched", "ax": "diagnostic"}
WRITTEN = {
    "cola": ["1", "0"], "sst2": ["1", "0"], "mrpc": ["1", "0"], "qqp": ["1", "0"], "wnli": ["1", "0"],
    "stsb": ["5.000", "0.125"], "qnli": ["not_entailment", "entailment"], "rte": ["not_entailment", "entailment"],
    **{name: ["neutral", "entailment"] for name in FILES},
}  # fmt: skip


def config_of(name, changes=None):
    """What a submission takes of the recipe of a task."""
    file = RECIPES / f"{'mnli' if name in FILES else name}.yaml"
    recipe = yaml.safe_load(file.read_text("utf-8"))["task"] | (changes or {})
    return types.SimpleNamespace(task=resolve(recipe["kind"], "jaxpt.data.tasks", TaskConfig, "task")(**recipe))


@pytest.mark.parametrize("name", GLUE)
def test_every_task(name, tmp_path):
    """The test file as GLUE distributes it: a line of names, an index, no labels."""
    config, texts = config_of(name), COLUMNS.get(name, PAIR)
    file = tmp_path / f"{FILES.get(name, 'test')}.tsv"
    lines = [
        "\t".join(["id" if name == "qqp" else "index", *texts]),
        *("\t".join([n, *["a text"] * len(texts)]) for n in "01"),
    ]
    file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    submission = Submission(config, str(file))
    assert submission.file("out") == Path("out") / GLUE[name].submission and submission.file("a.tsv") == Path("a.tsv")
    rows = examples.read(submission.task, [RowFile(str(file))])
    assert all(len(submission.task.texts(row.row, row.where)) == len(texts) for row in rows)
    predictions = [5.5, 0.125] if name == "stsb" else [1, 0]
    written = list(submission.lines(rows, iter(predictions)))
    assert written == ["index\tprediction", *(f"{n}\t{label}" for n, label in enumerate(WRITTEN[name]))]


def test_text_that_is_no_label_and_rows_without_an_index(tmp_path, capsys):
    (tmp_path / "test.jsonl").write_text('{"sentence": "a"}\n{"sentence": "b"}\n', encoding="utf-8")
    submission = Submission(config_of("sst2"), "test.jsonl")
    rows = examples.read(submission.task, [RowFile(str(tmp_path / "test.jsonl"))])
    assert list(submission.lines(rows, [1, -1])) == ["index\tprediction", "0\t1", "1\t0"]
    assert "texts that are no label: 1, written as 0" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("sst2", {"name": None}, "task.name is missing; --glue wants one of: cola, sst2, "),
        ("sst2", {"name": "imdb"}, "GLUE has no task 'imdb'; one of: cola, sst2, "),
        ("sst2", {"labels": ["0", "bad"], "names": None}, "task.labels: 'bad' is none of SST-2.tsv's labels: 0"),
        ("rte", {"labels": ["0", "entailment"]}, "task.labels: 0, entailment are not the labels of RTE.tsv: ent"),
        ("stsb", {"name": "rte", "metrics": None}, "task.kind: regression: RTE.tsv wants classification"),
        ("rte", {"name": "stsb"}, "task.kind: classification: STS-B.tsv wants regression"),
    ],
)
def test_refusals(name, changes, message):
    with pytest.raises(UserError) as error:
        Submission(config_of(name, changes), "test.tsv")
    assert str(error.value).startswith(message) and "\n" not in str(error.value)
