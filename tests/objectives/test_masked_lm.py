"""Masked LM: settings that are refused, features as declared, what its losses see."""

import doctest

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import seqio
import tensorflow as tf

from jaxpt.data.tasks import bind
from jaxpt.errors import UserError
from jaxpt.objectives import masked_lm
from jaxpt.objectives.base import Vocabulary
from jaxpt.objectives.masked_lm import MaskedLM
from tests import families
from tests.models.helpers import drawn

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
        ("takes the place of next_sentence", MaskedLM(sentence_order=True), 128, VOCABULARY),
        ("windows does not fit: objective.next_sentence", MaskedLM(inputs="windows"), 128, VOCABULARY),
        ("pairs does not fit", MaskedLM(inputs="sentence_pairs", next_sentence=False), 128, VOCABULARY),
        ("max_words is of n-grams and spans", MaskedLM(unit="word", max_words=3), 128, VOCABULARY),
    ):
        with pytest.raises(UserError, match=message):
            objective.check(model, length, vocabulary)


class Bytes(seqio.ByteVocabulary):
    """Every fourth id goes on with a word."""

    def word_starts(self):
        return np.arange(300) % 4 > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"next_sentence": True, "inputs": "sentence_pairs", "unit": "word"},
        {"next_sentence": False},
        {"next_sentence": False, "sentence_order": True, "unit": "ngram"},
        {"next_sentence": False, "inputs": "sentences", "unit": "span", "rounding": "up", "random_specials": False},
    ],
)
def test_the_pipeline_gives_the_declared_features(options):
    objective, length = MaskedLM(dupe_factor=2, **options), 32
    pair = objective.pair_loss
    texts = ["One sentence. Another one. And a third that is long.", "x", "Second text. Its end."]
    ds = tf.data.Dataset.from_tensor_slices({"text": texts, "origin": np.zeros([3, 2], np.int64)})
    pipeline = objective.pipeline(length, VOCABULARY, seed=0)
    with seqio.map_seed_manager(0):
        for call in (*pipeline.prepare, *pipeline.present):
            ds = bind(call, Bytes())(ds)
    declared = objective.features(length)
    assert {name: (tuple(s.shape), s.dtype.name) for name, s in ds.element_spec.items()} == declared
    examples = list(ds.as_numpy_iterator())
    assert len(examples) >= 2
    for ex in examples:
        ids, real = ex["encoder_input_tokens"], ex["encoder_segment_ids"].sum()
        assert ids[0] == 290 and ids[real - 1] == 291
        assert (ids == 291).sum() == (2 if pair else 1) or options.get("inputs") == "sentences"
        assert 1 <= ex["masked_weights"].sum() <= objective.predictions(length)
        if pair:
            assert ex["encoder_token_types"][real - 1] == 1 and ex[f"{pair}_weights"] == 1.0


@pytest.fixture(scope="module")
def losses():
    """(batch, objective, batch → {part: loss of each row}, jitted) of a sentence-order BERT."""
    config = families.config("bert", objective={"next_sentence": False, "sentence_order": True})
    batch, model = families.batch(config), config.model.build()
    params = drawn(model)

    @jax.jit
    def parts(batch):
        rows = jax.tree.map(lambda x: x[:, None], batch)
        return jax.lax.map(lambda row: config.objective.loss(model, params, row)[0], rows)

    return batch, config.objective, parts


def test_the_losses_are_of_the_chosen_positions_and_of_the_label(losses):
    batch, objective, parts = losses
    before = parts(batch)
    assert (
        set(before) == set(objective.coefficients()) == set(objective.weights(batch)) == {"masked_lm", "sentence_order"}
    )
    weights = batch["masked_weights"]
    unseen = batch | {"masked_targets": np.where(weights > 0, batch["masked_targets"], 7)}
    for name, value in parts(unseen).items():
        np.testing.assert_array_equal(value, before[name])
    other = parts(batch | {"sentence_order_labels": 1 - batch["sentence_order_labels"]})
    np.testing.assert_array_equal(other["masked_lm"], before["masked_lm"])
    weighted = batch["sentence_order_weights"] > 0
    np.testing.assert_array_equal(np.asarray(other["sentence_order"] != before["sentence_order"]), weighted)
    # Without dropout a row's loss is Σ over its targets: another target changes it by that position alone.
    at = np.argmax(weights > 0, axis=1)
    changed = batch["masked_targets"].copy()
    changed[np.arange(8), at] = (changed[np.arange(8), at] + 1) % 200
    moved = parts(batch | {"masked_targets": changed})
    assert (np.asarray(moved["masked_lm"] != before["masked_lm"]) == weights.any(1)).all()
    assert jnp.isfinite(moved["masked_lm"]).all()


def test_examples_in_docstrings():
    assert doctest.testmod(masked_lm).failed == 0
