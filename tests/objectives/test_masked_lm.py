"""Masked LM with next-sentence prediction: settings that are refused, features as declared. (Its loss: the losses.)"""

import numpy as np
import pytest
import seqio
import tensorflow as tf

from jaxpt.data.tasks import bind
from jaxpt.errors import UserError
from jaxpt.objectives.base import Vocabulary
from jaxpt.objectives.masked_lm import MaskedLM
from tests import families

VOCABULARY = Vocabulary(size=300, cls=290, sep=291, mask=292)


def test_predictions_are_berts():
    assert [MaskedLM().predictions(n) for n in (128, 512)] == [20, 77]
    assert MaskedLM(max_predictions=80).predictions(512) == 80


def test_check():
    model = families.config("bert").model
    MaskedLM().check(model, 128, VOCABULARY)
    with pytest.raises(UserError, match="no next-sentence head"):
        MaskedLM().check(families.config("gpt2").model, 128, VOCABULARY)
    for message, objective, length, vocabulary in (
        ("MASK", MaskedLM(), 128, Vocabulary(size=300, cls=290, sep=291)),
        ("too short", MaskedLM(), 7, VOCABULARY),
        ("max_predictions", MaskedLM(max_predictions=126), 128, VOCABULARY),
        ("more than 1", MaskedLM(mask_probability=0.8, random_probability=0.3), 128, VOCABULARY),
    ):
        with pytest.raises(UserError, match=message):
            objective.check(model, length, vocabulary)


@pytest.mark.parametrize("next_sentence", [True, False])
def test_the_pipeline_gives_the_declared_features(next_sentence):
    objective, length = MaskedLM(next_sentence=next_sentence, dupe_factor=2), 32
    texts = ["One sentence. Another one. And a third that is long.", "x", "Second text. Its end."]
    ds = tf.data.Dataset.from_tensor_slices({"text": texts, "origin": np.zeros([3, 2], np.int64)})
    pipeline = objective.pipeline(length, VOCABULARY, seed=0)
    with seqio.map_seed_manager(0):
        for call in (*pipeline.prepare, *pipeline.present):
            ds = bind(call, seqio.ByteVocabulary())(ds)
    declared = objective.features(length)
    assert {name: (tuple(s.shape), s.dtype.name) for name, s in ds.element_spec.items()} == declared
    examples = list(ds.as_numpy_iterator())
    assert len(examples) >= 2
    for ex in examples:
        ids, real = ex["encoder_input_tokens"], ex["encoder_segment_ids"].sum()
        assert ids[0] == 290 and ids[real - 1] == 291
        assert (ids == 291).sum() == (2 if next_sentence else 1)
        assert 1 <= ex["masked_weights"].sum() <= objective.predictions(length)
        if next_sentence:
            assert ex["encoder_token_types"][real - 1] == 1 and ex["next_sentence_weights"] == 1.0
