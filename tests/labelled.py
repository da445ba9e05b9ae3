"""Rows of every kind of task on ids, their records and their features, as a run makes them; no text, no files."""

import importlib
import re

import numpy as np

from jaxpt.config import ObjectiveConfig, TaskConfig, resolve
from jaxpt.data.calls import Vocabulary
from jaxpt.data.records.shard import Ragged
from jaxpt.data.tables import Row
from jaxpt.data.tasks.base import LocatedRow
from jaxpt.data.tokenizers.base import Encoded

V = 101
LENGTH, PAD, EOS, CLS = 16, 0, 1, 2
VOCABULARY = Vocabulary(V, PAD, bos=CLS, eos=EOS, cls=CLS, sep=EOS)
LABELS = ("no", "maybe", "yes")
TASKS = {
    "classification": {"kind": "classification", "text": "a", "pair": "b", "labels": LABELS},
    "regression": {"kind": "regression", "text": "a"},
    "multi_label": {"kind": "multi_label", "text": "a", "pair": "b", "labels": LABELS},
    "tagging": {"kind": "tagging", "labels": LABELS},
    "question_answering": {"kind": "question_answering", "question": "a", "context": "b"},
    "multiple_choice": {"kind": "multiple_choice", "text": "a", "choices": ("b", "c"), "most_choices": 2},
    "text_to_text": {"kind": "generation", "inputs": "{a}", "targets": "b"},
}


class Numbers:
    """A tokenizer of texts that are ids: "12 7" has the tokens 12 and 7."""

    vocabulary = VOCABULARY

    def encode(self, text):
        return [int(word) for word in text.split()]

    def encode_batch(self, texts):
        return [self.encode(text) for text in texts]

    def encode_words(self, texts):
        """A word is ids with hyphens between them."""
        return [[[int(part) for part in word.split("-")] for word in words] for words in texts]

    def encode_with_offsets(self, texts):
        found = [list(re.finditer(r"\S+", text)) for text in texts]
        return [Encoded([int(x[0]) for x in words], np.array([x.span() for x in words])) for words in found]


def rows_of(kind, layout, is_full, seed=0):
    """Rows of a task; `is_full`: each example fills the feature, or else they differ in length."""
    rng = np.random.default_rng(seed)

    def text(length):
        return " ".join(map(str, rng.integers(5, V, length)))

    rows = []
    for number in range(2 if kind == "multiple_choice" else 4):
        first, second, third = [LENGTH] * 3 if is_full else rng.integers(2, 6, 3)
        row = {"a": text(first), "b": text(second), "c": text(third)}
        match kind:
            case "classification":
                row["label"] = LABELS[number % 3]
            case "regression":
                row["label"] = float(rng.normal())
            case "multi_label":
                row["label"] = [LABELS[i] for i in range(3) if rng.integers(2)]
            case "multiple_choice":
                row["label"] = number
            case "tagging":
                tokens = text(layout.room(LENGTH, 1) if is_full else first + 4).split()
                words = ["-".join(tokens[:2]), *tokens[2:-2], "-".join(tokens[-2:])]
                row = {"tokens": words, "tags": [LABELS[i] for i in rng.integers(3, size=len(words))]}
            case "question_answering":
                row |= {"a": text(3), "b": text(layout.room(LENGTH, 2) - 3)} if is_full else {}
                words = row["b"].split()
                start, end = ((0, 0), (0, 1), (1, 1), (1, 1))[number]
                answer, before = " ".join(words[start : end + 1]), " ".join(words[:start])
                row["answers"] = [{"text": answer, "answer_start": len(before) + (start > 0)}]
            case "text_to_text" if is_full:
                row["b"] = text(6)
        rows.append(LocatedRow(Row(number + 1, row), f"row {number + 1}", (0, number)))
    return rows


def records_of(objective, rows):
    """Records as a run makes them."""
    return list(objective.encoder(LENGTH, VOCABULARY)(rows, Numbers(), True, train=False))


def features_of(objective, records, length=LENGTH, packs=None):
    """Features as a run makes them; `packs` says which records a row is made of."""
    like = objective.encoder(LENGTH, VOCABULARY).like()
    together = {
        name: Ragged(np.concatenate([r[name] for r in records]), np.array([len(r[name]) for r in records]))
        if x.shape == (0,)
        else np.stack([r[name] for r in records])
        for name, x in like.items()
        if name not in ("truncated", "origin")
    }
    call = objective.to_features(length, VOCABULARY)
    module, name = call.name.split(".")
    function = getattr(importlib.import_module(f"jaxpt.data.preprocessors.{module}"), name)
    made = function.rows(together, **call.kwargs, packs=packs)
    return {name: made[name] for name in objective.data_spec(length).features}


def objective_of(kind, config, **options):
    """The objective of a task on a model."""
    task = resolve(TASKS[kind]["kind"], "jaxpt.data.tasks", TaskConfig, "task")(**TASKS[kind])
    found = resolve("text_to_text" if kind == "text_to_text" else task.objective, "jaxpt.objectives", ObjectiveConfig)
    own = {"text_to_text": {"targets_length": 8, "separator": ""}, "question_answering": {"max_query": 5}}.get(kind, {})
    return found(task=task, text_layout=config.text_layout, **(own | options))
