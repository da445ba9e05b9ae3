"""Windows, answers and words' first tokens equal those of transformers' tokenizers and the rules of its run_qa.py."""

import json

import numpy as np
import pytest

from jaxpt.config import TokenizerConfig
from jaxpt.data import tokenizers
from jaxpt.data.labelled.layout import TextLayout
from jaxpt.data.labelled.question_answering import QuestionAnsweringEncoder
from jaxpt.data.labelled.tagging import TaggingEncoder
from jaxpt.data.tables import Row
from jaxpt.data.tasks.base import LocatedRow
from jaxpt.data.tasks.question_answering import QuestionAnsweringTask
from jaxpt.data.tasks.tagging import TaggingTask

pytestmark = [pytest.mark.parity, pytest.mark.slow]

LENGTH, STRIDE = 40, 9
WORDS = [
    "the", "quick", "brown", "Fox", "jumps", "over", "a", "lazy", "dog", "near", "Zürich,", "where", "1833", "naïve",
    "engines", "were", "built", "(in", "London)",
]  # fmt: skip
QUESTION = "Whom did the quick fox meet near the river?"


@pytest.fixture(scope="module", params=["wordpiece", "bpe"])
def both(request, tmp_path_factory):
    """Our tokenizer, theirs, and the layout of BERT or RoBERTa."""
    transformers = pytest.importorskip("transformers")
    directory = tmp_path_factory.mktemp(request.param)
    if request.param == "wordpiece":
        config = TokenizerConfig(kind="wordpiece", lowercase=True)
        ours = tokenizers.train([" ".join(WORDS), QUESTION], config, 90, directory)
        v = ours.vocabulary
        return ours, transformers.BertTokenizer.from_pretrained(directory), TextLayout((v.cls,), (v.sep,), (v.sep,), 1)
    tokenizers.train([" ".join(WORDS), QUESTION], TokenizerConfig(kind="bpe"), 300, directory)
    vocab = json.loads((directory / "vocab.json").read_text())
    vocab |= {name: 1000 + n for n, name in enumerate(("<s>", "</s>", "<pad>", "<unk>", "<mask>"))}
    merges = [tuple(m) for m in json.loads((directory / "tokenizer.json").read_text())["model"]["merges"]]
    ours = tokenizers.rust_tokenizers.bpe(vocab, merges, lowercase=False)
    theirs = transformers.RobertaTokenizer(vocab=vocab, merges=merges)
    return ours, theirs, TextLayout((1000,), (1001, 1001), (1001,))


def contexts():
    rng = np.random.default_rng(0)
    for n in range(40):
        words = rng.choice(WORDS, int(rng.integers(3, 90))).tolist()
        context = " ".join(words)
        first, last = np.sort(rng.integers(0, len(words), 2))
        answer = " ".join(words[first : min(last, first + 5) + 1])
        yield LocatedRow(
            Row(n, {"question": QUESTION, "context": context,
                    "answers": [{"text": answer, "answer_start": len(" ".join([*words[:first], ""]))}]}),
            f"row {n}", (0, n),
        )  # fmt: skip


def their_targets(found, window, start, end, null):
    """run_qa.py: the tokens of a span of characters, or the null token."""
    offsets, parts = found["offset_mapping"][window], found.sequence_ids(window)
    first = parts.index(1)
    last = len(parts) - 1 - parts[::-1].index(1)
    if not (offsets[first][0] <= start and offsets[last][1] >= end):
        return [null, null]
    while first < len(offsets) and offsets[first][0] <= start and parts[first] == 1:
        first += 1
    while offsets[last][1] >= end and parts[last] == 1:
        last -= 1
    return [first - 1, last + 1]


def test_windows_and_targets_of_questions(both):
    ours, theirs, layout = both
    query = len(ours.encode(QUESTION))
    room = layout.room(LENGTH, 2) - query
    assert room > STRIDE
    encoder = QuestionAnsweringEncoder(QuestionAnsweringTask(), layout, LENGTH, STRIDE, query, False, True)
    rows = list(contexts())
    records = list(encoder(rows, ours, True, True))
    for row in rows:
        mine = [record for record in records if record["origin"][1] == row.row.number]
        context = row.row.values["context"]
        found = theirs(
            QUESTION, context, truncation="only_second", max_length=LENGTH, stride=room - STRIDE,
            return_overflowing_tokens=True, return_offsets_mapping=True,
        )  # fmt: skip
        assert [record["tokens"].tolist() for record in mine] == found["input_ids"]
        ((start, end),) = encoder.task.spans(row.row, row.where)
        for n, record in enumerate(mine):
            assert record["positions"].tolist() == their_targets(found, n, start, end, 0)
            size, at = len(record["spans"]), record["context_start"]
            assert record["spans"].tolist() == [list(span) for span in found["offset_mapping"][n][at : at + size]]


def test_first_tokens_of_words(both):
    ours, theirs, layout = both
    if ours.kind == "bpe":
        merges = json.loads(theirs.backend_tokenizer.to_str())["model"]["merges"]
        merges = [tuple(merge) for merge in merges]
        theirs = type(theirs)(vocab=theirs.get_vocab(), merges=merges, add_prefix_space=True)
    task = TaggingTask(labels=("A", "B"))
    rng = np.random.default_rng(0)
    for n in range(20):
        words = rng.choice(WORDS, int(rng.integers(1, 30))).tolist()
        row = LocatedRow(Row(n, {"tokens": words, "tags": ["A"] * len(words)}), "", (0, n))
        (record,) = TaggingEncoder(task, layout, 500, 100)([row], ours, True, True)
        found = theirs(words, is_split_into_words=True)
        of_word = found.word_ids()
        firsts = [at for at, word in enumerate(of_word) if word is not None and word != of_word[at - 1]]
        if ours.kind == "bpe":  # they put a space before the first word, too
            skip = record["positions"][1] if len(words) > 1 else len(record["tokens"]) - 1
            theirs_skip = firsts[1] if len(words) > 1 else len(found["input_ids"]) - 1
            assert record["tokens"][skip:].tolist() == found["input_ids"][theirs_skip:]
        else:
            assert record["tokens"].tolist() == found["input_ids"] and record["positions"].tolist() == firsts
