"""Span corruption: lengths by hand, what is refused, and features as declared. (Its loss: tests of the losses.)"""

import doctest

import numpy as np
import pytest
import seqio
import tensorflow as tf

from jaxpt.data.calls import Vocabulary
from jaxpt.data.seqio_tasks import bind
from jaxpt.errors import UserError
from jaxpt.objectives import span_corruption
from jaxpt.objectives.span_corruption import SpanCorruption, lengths, noise_counts
from tests import grids

VOCABULARY = Vocabulary(size=359, eos=1, unk=2, sentinels=100)  # bytes and a hundred sentinels


@pytest.mark.parametrize(
    ("length", "expected"),
    [(1, (0, 0)), (2, (1, 1)), (3, (1, 1)), (10, (2, 1)), (30, (4, 1)), (172, (26, 9)), (568, (85, 28))],
)
def test_noise_counts_by_hand(length, expected):
    """10 · .15 = 1.5 → 2 and 30 · .15 = 4.5 → 4: halves go to the even number; 4 / 3 → 1 span."""
    assert noise_counts(length, 0.15, 3.0) == expected


@pytest.mark.parametrize(("density", "mean_span"), [(0.15, 3.0), (0.5, 1.0), (0.95, 3.0), (0.01, 64.0)])
def test_noise_counts_always_leave_room(density, mean_span):
    for length in range(2, 600):
        noise, spans = noise_counts(length, density, mean_span)
        assert 1 <= spans <= min(noise, length - noise) and 1 <= noise < length


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((512, 0.15, 3.0), (568, 114)),
        ((256, 0.15, 3.0), (284, 58)),
        ((128, 0.15, 3.0), (141, 29)),
        ((512, 0.5, 3.0), (766, 512)),
        ((172, 0.15, 3.0), (190, 38)),
    ],
)
def test_lengths_of_the_published_recipes(arguments, expected):
    assert lengths(*arguments) == expected


@pytest.mark.parametrize("inputs_length", [4, 5, 17, 64, 200])
def test_lengths_are_the_longest_that_fit(inputs_length):
    text, targets = lengths(inputs_length, 0.15, 3.0)
    sizes = [
        (n - noise + spans + 1, noise + spans + 1)
        for n in range(1, text + 2)
        for noise, spans in [noise_counts(n, 0.15, 3.0)]
    ]
    assert max(x for x, _ in sizes[:-1]) <= inputs_length < sizes[-1][0]
    assert max(y for _, y in sizes[:-1]) == targets


def test_check():
    SpanCorruption().check(None, 512, VOCABULARY)
    with pytest.raises(UserError, match="sentinels"):
        SpanCorruption().check(None, 2048, VOCABULARY)
    with pytest.raises(UserError, match="too short"):
        SpanCorruption().check(None, 3, VOCABULARY)
    with pytest.raises(UserError, match="EOS and sentinels"):
        SpanCorruption().check(None, 128, Vocabulary(size=100, eos=1))


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    grids.cases([{}, {"join_documents": False}, {"separator": True}, {"density": 0.5}], {}, {"join_documents": False}),
)
def test_the_transforms_give_the_declared_features(settings):
    objective, length = SpanCorruption(**settings), 24
    texts = ["a" * 100, "bc", "d"]
    ds = tf.data.Dataset.from_tensor_slices({"text": texts, "origin": np.zeros([3, 2], np.int64)})
    transforms = objective.data_spec(length).transforms(VOCABULARY, 0)
    with seqio.map_seed_manager(0):
        for call in (*transforms.offline, *transforms.online):
            ds = bind(call, seqio.ByteVocabulary())(ds)
    declared = objective.data_spec(length).features
    assert {name: (tuple(s.shape), s.dtype.name) for name, s in ds.element_spec.items()} == declared
    examples = list(ds.as_numpy_iterator())
    text, targets = lengths(length, objective.density, objective.mean_span)
    assert sum((ex["decoder_target_tokens"] == 1).any() for ex in examples) == len(examples) >= 103 // text
    full = max(examples, key=lambda ex: ex["encoder_segment_ids"].sum())
    assert full["encoder_segment_ids"].sum() >= length - 1 and full["decoder_loss_weights"].sum() >= targets - 1


def test_docstrings():
    failed, attempted = doctest.testmod(span_corruption)
    assert failed == 0 and attempted > 0
