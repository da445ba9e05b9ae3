"""Each word is in one record, at its first token, whatever the vocabulary and the window."""

import numpy as np
import pytest

from jaxpt.config import TokenizerConfig
from jaxpt.data import tokenizers
from jaxpt.data.labelled.layout import TextLayout
from jaxpt.data.labelled.tagging import TaggingEncoder
from jaxpt.data.tables import Row
from jaxpt.data.tasks.base import LocatedRow
from jaxpt.data.tasks.tagging import TaggingTask
from jaxpt.errors import UserError

CORPUS = ["the quick brown fox jumps over the lazy dog", "unbelievable electroencephalography of foxes"] * 20
TASK = TaggingTask(labels=("A", "B", "C"))
SENTENCES = [
    ["the", "unbelievable", "fox"] * 9,
    ["\u200b", "dog"],
    ["electroencephalography" * 3, "fox"],
    ["the"],
]


@pytest.fixture(scope="module")
def tokenizer():
    return tokenizers.train(CORPUS, TokenizerConfig(kind="wordpiece", lowercase=True), 60)


def rows(sentences, tags=None):
    for n, words in enumerate(sentences, 1):
        values = {"tokens": words, "tags": [TASK.labels[i % 3] for i in range(len(words))] if tags is None else tags}
        yield LocatedRow(Row(n, values), f"f: line {n}", (0, n))


def encoder(tokenizer, length, stride):
    v = tokenizer.vocabulary
    return TaggingEncoder(TASK, TextLayout((v.cls,), (v.sep,), (v.sep,)), length, stride)


@pytest.mark.parametrize("length, stride", [(12, 5), (12, 1), (12, 40), (200, 50)])
def test_every_word_is_tagged_once_in_order(tokenizer, length, stride):
    records = list(encoder(tokenizer, length, stride)(rows(SENTENCES), tokenizer, True, True))
    assert max(len(record["tokens"]) for record in records) <= length
    for n, words in enumerate(SENTENCES, 1):
        own = [record for record in records if record["origin"].tolist() == [0, n]]
        assert np.concatenate([record["targets"] for record in own]).tolist() == [i % 3 for i in range(len(words))]
        firsts = [ids[0] if ids else tokenizer.vocabulary.unk for ids in tokenizer.encode_words([words])[0]]
        assert np.concatenate([record["tokens"][record["positions"]] for record in own]).tolist() == firsts
        assert len(own) == 1 or length == 12
    assert len(records) > len(SENTENCES) or length == 200


def test_targets_are_not_needed(tokenizer):
    sentences = [LocatedRow(Row(1, {"tokens": ["the", "fox"]}), "f: line 1", (0, 1))]
    (record,) = encoder(tokenizer, 12, 5)(sentences, tokenizer, False, False)
    assert record["targets"].tolist() == [0, 0]
    assert {name: x.dtype for name, x in record.items()} == {
        name: x.dtype for name, x in encoder(tokenizer, 12, 5).like().items()
    }


def test_a_word_without_a_token_needs_an_unknown_one():
    bpe = tokenizers.train(CORPUS, TokenizerConfig(kind="bpe"), 300)
    layout = TextLayout(pooled="last")
    with pytest.raises(UserError, match=r"^f: line 1: word 1, '', has no token"):
        list(TaggingEncoder(TASK, layout, 12, 5)(rows([["", "fox"]]), bpe, True, True))


def test_unequal_numbers_name_the_line(tokenizer):
    with pytest.raises(UserError, match=r"^f: line 1: 2 words .* and 1 tags"):
        list(encoder(tokenizer, 12, 5)(rows([["the", "fox"]], ["A"]), tokenizer, True, True))
