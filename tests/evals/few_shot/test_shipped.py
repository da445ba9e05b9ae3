"""The tasks of `configs/tasks` on rows as TensorFlow Datasets has them: the names and classes of its own features."""

import json

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds

from jaxpt.data import tables
from jaxpt.data.tables import Row
from jaxpt.data.tables.tfds import plain
from jaxpt.evals.few_shot import examples, task

OF_TFDS = [name for name in sorted(task.shipped()) if task.load(name).data.tfds]
TEXTS = {
    ("winogrande", "sentence"): "the _ ran",
    ("gsm8k", "answer"): "2 and 2 is 4. #### 4",
    ("wsc", "text"): "the cat saw that it ran and it sat",
}
NUMBERS = {("wsc", "span2_index"): 6, ("wic", "end1"): 3}  # the second "it"; "the" of "the cat {n}"


def value(name, key, feature, n):
    """As `as_numpy_iterator` gives it; classes and numbers differ from row to row."""
    if isinstance(feature, tfds.features.ClassLabel):
        return np.int64(n % feature.num_classes)
    if isinstance(feature, tfds.features.Sequence):
        inner = feature.feature
        if isinstance(inner, dict | tfds.features.FeaturesDict):
            return {k: [value(name, k, one, i) for i in range(4)] for k, one in inner.items()}
        return [value(name, key, inner, n + i) for i in range(4)]
    if isinstance(feature, tfds.features.FeaturesDict):
        return {k: value(name, k, one, n) for k, one in feature.items()}
    if tf.as_dtype(feature.np_dtype).is_integer:
        return np.int32(NUMBERS.get((name, key), n % 2))
    return (
        np.float32(n) if tf.as_dtype(feature.np_dtype).is_floating else TEXTS.get((name, key), f"the cat {n}").encode()
    )


@pytest.fixture
def rows(monkeypatch):
    """What a set of TFDS would give, by its features, without a download."""
    read = []

    def made(of, kind, split):
        assert kind == "tfds"
        features = tfds.builder(of).info.features
        read.append(split)
        name = next(one for one in OF_TFDS if task.load(one).data.tfds == of)
        return [Row(n, {k: plain(f, value(name, k, f, n)) for k, f in features.items()}) for n in range(8)]

    monkeypatch.setattr(tables, "read", made)
    return read


@pytest.mark.parametrize("name", OF_TFDS)
def test_rows_of_tfds_are_examples_of_every_class(rows, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)  # where no file of the task is
    one = task.load(name)
    found = examples.examples(one, shots=one.num_shots(2), folder=str(tmp_path))
    assert len(found) == 8 and all(text.strip() for each in found for text in each.continuations)
    if one.form == "multiple_choice":
        golds = {each.gold for each in found}
        wanted = 2 if name == "hellaswag" else len(found[0].choices)  # whose label is any whole number, here 0 and 1
        assert golds == set(range(wanted)), "each class is another choice"
    assert rows == ([one.data.split, one.data.shots_split] if one.num_shots(2) else [one.data.split])


@pytest.mark.parametrize("label", [True, "True", 1, "1"])
@pytest.mark.parametrize("name", ["boolq", "wic", "multirc"])
def test_a_label_is_read_as_it_is_written(tmp_path, name, label):
    row = {
        "passage": "p", "question": "q", "word": "w", "sentence1": "the cat", "start1": 4, "end1": 7, "sentence2": "s",
        "paragraph": "p", "answer": "a", "idx": {"paragraph": 0, "question": 0}, "label": label,
    }  # fmt: skip
    one = task.load(name)
    (found,) = [examples.unprompted(one, examples.Located(Row(1, row), "rows.jsonl: line 1"))]
    assert found.gold == 1
    for unlabelled in ("", None, -1):
        with pytest.raises(Exception, match=r"answer: rows.jsonl: line 1: .* is none of 'false', 'true'"):
            examples.unprompted(one, examples.Located(Row(1, row | {"label": unlabelled}), "rows.jsonl: line 1"))


def test_multirc_is_read_from_super_glue_s_own_file(tmp_path):
    answers = [{"text": "He", "label": 1, "idx": 0}, {"text": "I", "label": 0, "idx": 1}]
    questions = [{"question": "Who?", "idx": 2, "answers": answers}]
    (tmp_path / "MultiRC").mkdir()
    line = json.dumps({"idx": 3, "passage": {"text": "He ran.", "questions": questions}})
    (tmp_path / "MultiRC/val.jsonl").write_text(f"{line}\n")
    found = examples.examples(task.load("multirc"), folder=str(tmp_path))
    assert [(one.gold, one.group) for one in found] == [(1, "3 2"), (0, "3 2")]


def test_the_pronoun_of_wsc_is_marked_where_it_stands():
    row = {"text": "It saw that it ran.", "span1_text": "the cat", "span2_text": "it", "span2_index": 3, "label": 1}
    one = task.load("wsc")
    asked = 'the pronoun "*it*" refer to "*the cat*"?\nAnswer:'
    flat = examples.unprompted(one, examples.Located(Row(1, row), "")).contexts[0]
    assert flat == f"Passage: It saw that *it* ran.\nQuestion: In the passage above, does {asked}"
    target = {name: row[name] for name in ("span1_text", "span2_text", "span2_index")}
    nested = Row(1, {"text": row["text"], "target": target, "label": True})
    nested = examples.unprompted(one, examples.Located(nested, ""))
    assert nested.contexts[0] == flat
    first = examples.Located(Row(1, row | {"span2_text": "It", "span2_index": 0}), "")
    assert "Passage: *It* saw that it ran.\n" in examples.unprompted(one, first).contexts[0]
