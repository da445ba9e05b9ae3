"""Samples: nothing is shown where an objective has nothing to guess."""

import types

import jax
import numpy as np
import pytest

from jaxpt.data.calls import Vocabulary
from jaxpt.evals import samples
from jaxpt.evals.samples import Samples
from jaxpt.objectives.mass import Mass
from tests import families
from tests.models.helpers import EVERY, V, drawn


def answers(family, vocabulary, batch):
    config = families.config(family)
    return answers_by(families.network(config), config, vocabulary, batch)


def answers_by(network, config, vocabulary, batch):
    params = drawn(network)
    setup = types.SimpleNamespace(network=network, config=config)
    data = types.SimpleNamespace(vocabulary=vocabulary)
    return network.bind(params), np.asarray(jax.jit(samples.answers_of(setup, batch, data))(params))


def test_a_continuation_keeps_the_prompt_and_is_the_most_likely():
    """A text that ends early has a prompt of half of its own tokens."""
    ids, lengths = np.random.default_rng(0).integers(3, V, (3, 12)).astype(np.int32), np.array([12, 7, 2])
    segments = (np.arange(12) < lengths[:, None]).astype(np.int32)
    batch = {"decoder_input_tokens": ids * segments, "decoder_segment_ids": segments}
    bound, said = answers("gpt2", Vocabulary(V, eos=1), batch)
    assert said.shape == ids.shape
    best = np.asarray(jax.jit(lambda ids: bound.logits(bound.decode(ids).hidden).argmax(-1))(said))
    for row, length in enumerate(lengths):
        half = length // 2
        np.testing.assert_array_equal(said[row, :half], ids[row, :half])
        np.testing.assert_array_equal(said[row, half:length], best[row, half - 1 : length - 1])
        assert (said[row, length:] == 0).all()


@pytest.fixture(scope="module")
def spans():
    rng, vocabulary = np.random.default_rng(1), Vocabulary(V, eos=1, sentinels=V - 180)
    lengths = rng.integers(4, 13, 16)
    batch = {
        "encoder_input_tokens": rng.integers(2, V, (16, 12)).astype(np.int32),
        "encoder_segment_ids": (np.arange(12) < lengths[:, None]).astype(np.int32),
        "decoder_input_tokens": np.zeros((16, 20), np.int32),
        "decoder_target_tokens": np.zeros((16, 20), np.int32),
    }
    return *answers("t5", vocabulary, batch), batch


def test_a_span_is_never_empty(spans):
    _, said, _ = spans
    after = said[:, 1:][said[:, :-1] >= 180]
    assert len(after) > 0, "this random model has to write a sentinel somewhere"
    assert (after < 180).all() and (after != 1).all()


def test_spans_are_the_most_likely_of_each_text(spans):
    """Rows that differ from the plain argmax do so at tokens after a sentinel alone."""
    bound, said, batch = spans
    inputs = np.concatenate([np.zeros((16, 1), np.int32), said[:, :-1]], axis=1)

    @jax.jit
    def run(tokens, segments, inputs):
        encoded = bound.encode(tokens, segment_ids=segments).hidden
        return bound.logits(bound.decode(inputs, encoded, encoder_segment_ids=segments).hidden).argmax(-1)

    best = np.asarray(run(batch["encoder_input_tokens"], batch["encoder_segment_ids"], inputs))
    ended = np.cumsum(inputs == 1, axis=1) > 0
    free = ~ended & (inputs < 180)
    assert free.sum() > 100
    np.testing.assert_array_equal(said[free], best[free])
    assert (said[ended] == 0).all()  # padding after EOS


def test_a_fragment_of_a_text_is_decoded_at_its_positions():
    """MASS: the decoder reads the fragment at the places that it has in the text, as in training."""
    rng, offsets, vocabulary = np.random.default_rng(2), np.array([0, 3, 6, 9]), Vocabulary(V, eos=1, mask=4)
    batch = {
        "encoder_input_tokens": rng.integers(5, V, (4, 16)).astype(np.int32),
        "encoder_segment_ids": np.ones((4, 16), np.int32),
        "decoder_input_tokens": rng.integers(5, V, (4, 6)).astype(np.int32),
        "decoder_target_tokens": rng.integers(5, V, (4, 6)).astype(np.int32),
        "decoder_segment_ids": np.ones((4, 6), np.int32),
        "decoder_positions": (offsets[:, None] + np.arange(6)).astype(np.int32),
    }
    config = types.SimpleNamespace(objective=Mass())
    bound, said = answers_by(config.objective.network(EVERY["bart"]()), config, vocabulary, batch)
    inputs = np.concatenate([batch["decoder_input_tokens"][:, :1], said[:, :-1]], axis=1)

    @jax.jit
    def run(inputs, positions):
        encoded = bound.encode(batch["encoder_input_tokens"]).hidden
        return bound.logits(bound.decode(inputs, encoded, positions=positions).hidden).argmax(-1)

    ended = np.cumsum(inputs == vocabulary.eos, axis=1) > 0
    best, at_zero = (np.asarray(run(inputs, positions)) for positions in (batch["decoder_positions"], None))
    np.testing.assert_array_equal(said[~ended], best[~ended])
    assert not ended[:, 0].any() and (best[1:] != at_zero[1:]).any()


def test_an_encoder_without_masked_positions_has_none():
    batch = {name: np.ones((3, 4), np.int32) for name in ("encoder_input_tokens", "encoder_segment_ids")}
    data = types.SimpleNamespace(validation=types.SimpleNamespace(epoch=lambda *_, **__: iter([batch])))
    setup = types.SimpleNamespace(config=types.SimpleNamespace(objective=types.SimpleNamespace(family="encoder")))
    assert Samples().prepare(setup, data)(None, {}, lambda: False).lines == ()
