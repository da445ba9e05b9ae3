"""What differs between the data of two runs."""

import importlib
import os

import pytest

from jaxpt.data import fingerprint
from jaxpt.data.tasks import base

FIRST = {
    *("answer", "answers", "choices", "context", "first_number", "group", "header", "id", "input", "inputs"),
    *("is_symmetric", "kind", "label", "labels", "messages", "metrics", "most_choices", "name", "names", "nbest"),
    *("null_threshold", "pair", "placeholder", "prompt", "question", "question_in", "question_words", "scheme"),
    *("separator", "system", "tags", "targets", "tasks", "text", "threshold", "tokens", "use"),
}
"""Fields of tasks that fingerprints have had from the first."""
KINDS = [name.partition(".")[0] for name in os.listdir(os.path.dirname(base.__file__)) if name.endswith(".py")]


def task_classes():
    modules = [importlib.import_module(f"jaxpt.data.tasks.{kind}") for kind in sorted({*KINDS} - {"__init__"})]
    classes = {value for module in modules for value in vars(module).values() if isinstance(value, type)}
    return sorted((c for c in classes if issubclass(c, base.Task)), key=lambda c: c.__name__)


@pytest.mark.parametrize("task", task_classes(), ids=lambda task: task.__name__)
def test_runs_from_before_a_field_came_have_what_they_did(task):
    """Both ways: a run that has the field at its default does not differ from one without it."""
    later = {name: field.default for name, field in task.model_fields.items() if name not in FIRST}
    for name, default in fingerprint.as_json(later).items():
        # As `describe` writes it.
        default = {} if name == "metric_options" else default
        with_it, without = {"task": {"kind": "x", name: default}}, {"task": {"kind": "x"}}
        assert not fingerprint.changes(without, with_it) and not fingerprint.changes(with_it, without), name


def test_another_value_of_a_field_that_came_later_is_a_difference():
    plain = {"task": {"kind": "x"}}
    assert fingerprint.changes(plain, {"task": {"kind": "x", "comments": True}}) == {"task.comments": (False, True)}
    options = {"task": {"metric_options": {"bleu": {"tokenize": "zh"}}}}
    assert fingerprint.changes(plain, {"task": {"kind": "x"} | options["task"]})


def test_what_differs_is_named_by_its_key():
    was, now = {"source": {"a": 1, "b": [1, 2]}}, {"source": {"a": 1, "b": [1, 3]}, "seed": 4}
    assert fingerprint.changes(was, now) == {"source.b.1": (2, 3), "seed": (None, 4)}


def test_runs_from_before_the_order_had_a_version_have_the_first():
    old, new = {"seed": 0}, {"seed": 0, "order": 2}
    assert fingerprint.changes(old, new) == {"order": (1, 2)} and not fingerprint.changes(old, {"seed": 0, "order": 1})
    assert (fingerprint.order_of(old), fingerprint.order_of(new), fingerprint.order_of(None)) == (1, 2, 5)


def of_data_set(kind, name, *splits, content="x"):
    files = {split: [{"name": f"{name} ({split})"}] for split in splits}
    return {"files": files, kind: {f"{name} ({split})": {"content": content} for split in splits}}


@pytest.mark.parametrize("kind", ["hf", "tfds"])
def test_a_data_set_that_was_moved_is_known_by_its_content(kind):
    here = of_data_set(kind, "a/films", "train", "dev")
    for source in (lambda known: {"source": known}, lambda known: {"source": {"task": known}}):
        moved = of_data_set(kind, "/b.c/my films", "train", "dev")
        assert not fingerprint.changes(source(here), source(moved))
        other = fingerprint.changes(source(here), source(of_data_set(kind, "a/films", "train", "dev", content="y")))
        assert {key.rpartition(f".{kind}.")[2] for key in other} == {"train.content", "dev.content"}
        for splits in (("train",), ("train", "test")):
            assert fingerprint.changes(source(here), source(of_data_set(kind, "a/films", *splits)))


def test_runs_from_before_tfds_told_its_version_know_a_data_set_by_its_name():
    now = of_data_set("tfds", "a/films", "train")
    was = {"files": now["files"]}
    assert not fingerprint.changes({"source": was}, {"source": now})
    assert not fingerprint.changes({"source": {"task": was}}, {"source": {"task": now}})
    assert fingerprint.changes({"source": was}, {"source": of_data_set("tfds", "b/films", "train")})
    assert fingerprint.changes({"source": now}, {"source": was}), "not the other way"


def test_what_determines_records_stands_for_a_checksum_that_is_not_known():
    def data(checksum, store):
        return {"order": 2, "records": {"train": checksum, "validation": "v"}, "stores": {"train": store}}

    for known, unknown in [("a", None), (None, "a"), (None, None)]:
        assert not fingerprint.changes(data(known, "x"), data(unknown, "x"))
        assert fingerprint.changes(data(known, "x"), data(unknown, "y")) == {"stores.train": ("x", "y")}
    assert not fingerprint.changes(data("a", "x"), data("a", "y"))  # other code may make the same records
    assert fingerprint.changes(data("a", "x"), data("b", "x")) == {"records.train": ("a", "b")}
