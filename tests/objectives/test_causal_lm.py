"""Causal LM: every token but the first is a target exactly once. (Its loss: tests of the losses.)"""

import itertools

import numpy as np
import pytest
import seqio
import tensorflow as tf

from jaxpt.data.calls import Vocabulary
from jaxpt.data.seqio_tasks import bind
from jaxpt.errors import UserError
from jaxpt.objectives.causal_lm import CausalLM
from tests import grids

VOCABULARY = Vocabulary(size=259, eos=1)
TEXTS = ["a quick brown fox", "b", "jumps over the lazy dog and more"]


def examples(objective, length):
    ds = tf.data.Dataset.from_tensor_slices({"text": TEXTS, "origin": np.zeros([3, 2], np.int64)})
    transforms = objective.data_spec(length).transforms(VOCABULARY, 0)
    for call in (*transforms.offline, *transforms.online):
        ds = bind(call, seqio.ByteVocabulary())(ds)
    assert {n: (tuple(s.shape), s.dtype.name) for n, s in ds.element_spec.items()} == objective.data_spec(
        length
    ).features
    return list(ds.as_numpy_iterator())


def real(out, name):
    return [int(i) for ex in out for i in ex[name][ex["decoder_segment_ids"] > 0]]


WAYS = list(itertools.product([True, False], [1, 5, 100]))


@pytest.mark.parametrize(("separator", "length"), grids.cases(WAYS, (True, 1), (True, 100), (False, 5)))
def test_every_token_but_the_first_is_a_target_once(separator, length):
    out = examples(CausalLM(separator=separator), length)
    end = [1] if separator else []
    tokens = [i for text in TEXTS for i in [*seqio.ByteVocabulary().encode(text), *end]]
    assert real(out, "decoder_target_tokens") == tokens[1:]
    assert real(out, "decoder_input_tokens") == tokens[:-1]


def test_without_joining_no_window_crosses_a_documents_end():
    out = examples(CausalLM(join_documents=False), 10)
    targets = [i for text in TEXTS for i in [*seqio.ByteVocabulary().encode(text)[1:], 1]]
    assert real(out, "decoder_target_tokens") == targets
    assert not any(1 in ex["decoder_input_tokens"] for ex in out)


def test_check():
    CausalLM().check(None, 128, VOCABULARY)
    CausalLM(separator=False).check(None, 128, Vocabulary(size=10))
    with pytest.raises(UserError, match="end-of-text"):
        CausalLM().check(None, 128, Vocabulary(size=10))
