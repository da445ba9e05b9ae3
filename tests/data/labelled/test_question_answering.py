"""Windows of contexts: answers as tokens and back, by any vocabulary; the best span by BERT's rules."""

import math

import numpy as np
import pytest
import scipy.special

from jaxpt.config import TokenizerConfig
from jaxpt.data import tokenizers
from jaxpt.data.labelled.layout import TextLayout
from jaxpt.data.labelled.question_answering import QuestionAnsweringEncoder, best_spans, token_span
from jaxpt.data.tables import Row
from jaxpt.data.tasks.base import LocatedRow
from jaxpt.data.tasks.question_answering import QuestionAnsweringTask
from jaxpt.errors import UserError

TASK = QuestionAnsweringTask(metrics=("squad_v2",))
CONTEXT = (
    "In 1833, Ada Lovelace met  Charles Babbage; he built the ½ Difference Engine (Zürich, naïve ﬁne) in London. " * 2
)
ANSWERS = ["1833", "Ada Lovelace", "Charles Babbage", "½ Difference Engine", "Zürich", "ﬁne", "London", CONTEXT.strip()]


@pytest.fixture(scope="module", params=["wordpiece", "bpe", "sentencepiece"])
def tokenizer(request):
    size = {"wordpiece": 90, "bpe": 290, "sentencepiece": 70}[request.param]
    config = TokenizerConfig(kind=request.param, lowercase=request.param == "wordpiece", extra_ids=0)
    return tokenizers.train([CONTEXT, "Whom did she meet?"] * 5, config, size)


def encoder(length, stride=7, context_first=False, null_first=True, max_query=5):
    layout = TextLayout((101,), (102,), (103,), second_type=1)
    return QuestionAnsweringEncoder(TASK, layout, length, stride, max_query, context_first, null_first)


def row(answer, n=1):
    answers = [] if answer is None else [{"text": answer, "answer_start": CONTEXT.index(answer)}]
    values = {"id": str(n), "question": "Whom did she meet, and where?", "context": CONTEXT, "answers": answers}
    return LocatedRow(Row(n, values), f"f: row {n}", (0, n))


@pytest.mark.parametrize("context_first", [False, True])
@pytest.mark.parametrize("length", [24, 400])
def test_answers_are_cut_out_of_the_context_as_they_were(tokenizer, length, context_first):
    """Logits that point to a record's own target give the answer back, but for its white space."""
    for n, answer in enumerate(ANSWERS, 1):
        records = list(encoder(length, context_first=context_first)([row(answer, n)], tokenizer, True, True))
        hits = [record for record in records if record["positions"][0] != record["null"]]
        assert hits or length == 24
        for record in hits:
            logits = np.zeros((len(record["tokens"]), 2))
            logits[record["positions"], [0, 1]] = 9
            record["most_context"][:] = True
            _, (score, start, end), *_ = best_spans(logits, record, 20, 10_000)
            assert score == 18 and CONTEXT[int(start) : int(end)] == answer


def test_windows_have_the_whole_context_and_each_token_once_most_context(tokenizer):
    made = encoder(24)
    records = list(made([row("London")], tokenizer, True, True))
    ids = tokenizer.encode(CONTEXT)
    question = tokenizer.encode("Whom did she meet, and where?")[:5]
    best = np.zeros(len(ids), int)
    for n, record in enumerate(records):
        at, size = record["context_start"], len(record["spans"])
        assert record["tokens"].tolist() == [101, *question, 102, *ids[7 * n : 7 * n + size], 103]
        assert record["token_types"].tolist() == [0] * 7 + [1] * (size + 1) and at == 7
        best[7 * n : 7 * n + size] += record["most_context"]
    assert len(records) > 3 and best.tolist() == [1] * len(ids)
    assert {len(record["tokens"]) for record in records[:-1]} == {24}


def test_windows_without_the_answer_point_to_the_null_token(tokenizer):
    for null_first in (True, False):
        made = encoder(24, null_first=null_first)
        for answer in (None, CONTEXT.strip()):
            for record in made([row(answer)], tokenizer, True, True):
                null = 0 if null_first else len(record["tokens"]) - 1
                assert record["positions"].tolist() == [null, null] and record["null"] == null
        hits = [r["positions"][0] != r["null"] for r in made([row("1833")], tokenizer, True, True)]
        assert any(hits) and not all(hits)


def test_answers_are_not_needed(tokenizer):
    wanted = {"question": "Whom?", "context": CONTEXT}
    record, *_ = encoder(400, max_query=50)([LocatedRow(Row(1, wanted), "f: row 1", (0, 1))], tokenizer, False, False)
    assert record["positions"].tolist() == [0, 0] and not record["truncated"]
    for name, like in encoder(400).like().items():
        assert record[name].dtype == like.dtype


def test_context_comes_first_for_xlnet(tokenizer):
    record, *_ = encoder(400, context_first=True, null_first=False)([row("London")], tokenizer, True, True)
    ids = tokenizer.encode(CONTEXT)
    assert record["tokens"][1 : len(ids) + 2].tolist() == [*ids, 102] and record["context_start"] == 1
    assert record["null"] == len(record["tokens"]) - 1


def test_token_span():
    offsets = np.array([(0, 3), (4, 7), (7, 9), (9, 10), (9, 10), (11, 12)])  # two bytes of one character
    assert token_span(offsets, 5, 8, "") == (1, 2)
    assert token_span(offsets, 3, 7, "") == (1, 1)
    assert token_span(offsets, 9, 10, "") == (3, 4)
    with pytest.raises(UserError, match=r"^f: row 1: the vocabulary has no token for the answer at answer_start 3"):
        token_span(offsets, 3, 4, "f: row 1")


def by_hand(logits, record, n_best, max_answer):
    """All pairs, one by one."""
    at, spans = record["context_start"], record["spans"]
    starts = [i for i in range(len(spans)) if record["most_context"][i]]
    starts = sorted(starts, key=lambda i: -logits[at + i, 0])[:n_best]
    ends = sorted(range(len(spans)), key=lambda i: -logits[at + i, 1])[:n_best]
    pairs = [
        (logits[at + s, 0] + logits[at + e, 1], spans[s][0], spans[e][1])
        for s in starts for e in ends if s <= e < s + max_answer
    ]  # fmt: skip
    return sorted(pairs, key=lambda pair: -pair[0])[:n_best] or [(-math.inf, 0, 0)]


def test_the_best_spans_are_those_of_all_pairs():
    rng = np.random.default_rng(0)
    for _ in range(100):
        size = int(rng.integers(1, 12))
        spans = np.array([(3 * i, 3 * i + 2) for i in range(size)])
        record = {"context_start": 4, "spans": spans, "most_context": rng.random(size) < 0.6, "null": 0}
        logits, n_best, longest = rng.normal(size=(size + 5, 2)), int(rng.integers(1, 6)), int(rng.integers(1, 5))
        record |= {"tokens": np.zeros(size + 3), "positions": np.array([1, 3])}
        null, *best = best_spans(logits, record, n_best, longest)
        assert null[0] == logits[0].sum()
        log_p = scipy.special.log_softmax(logits[: size + 3], axis=0)
        np.testing.assert_allclose(null[1], -(log_p[1, 0] + log_p[3, 1]) / 2)
        np.testing.assert_allclose(best, by_hand(logits, record, n_best, longest))
