"""UniLM: nothing leaks under any of its masks, losses of each by themselves, what is refused."""

import doctest

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import seqio
import tensorflow as tf

from jaxpt.data.calls import Vocabulary
from jaxpt.data.preprocessors import features
from jaxpt.data.records.shard import Ragged
from jaxpt.data.seqio_tasks import bind
from jaxpt.errors import UserError
from jaxpt.models import mask
from jaxpt.models.layers import Embed
from jaxpt.objectives import unilm
from jaxpt.objectives.unilm import KINDS, UniLM
from tests import families
from tests.models.helpers import drawn

VOCABULARY = Vocabulary(size=300, cls=290, sep=291, mask=292)
LENGTH = 12
TEXT = {"tokens": [2, 7, 8, 3, 9, 5, 6, 3], "token_types": [0, 0, 0, 0, 1, 1, 1, 1]}
CONFIG = families.config(
    "bert", model={"token_types": 6, "layers": 2}, objective={"kind": "unilm"},
    data={"batch_size": 4, "length": LENGTH},
)  # fmt: skip


@pytest.fixture(scope="module")
def batch():
    """One text under each mask in a row of its own, each of its tokens in turn to be predicted, and padding."""
    n, count = len(TEXT["tokens"]), len(KINDS)
    place = np.arange(n)
    ranks = [place * 0, place * TEXT["token_types"], place, -place]

    def ragged(rows):
        return Ragged(np.concatenate(rows).astype(np.int32), np.full(count, n))

    records = {name: ragged([np.array(x)] * count) for name, x in TEXT.items()}
    records |= {"ranks": ragged(ranks), "masked_positions": ragged([place] * count)}
    records |= {"masked_targets": ragged([np.array(TEXT["tokens"])] * count), "mask_kind": np.arange(count)}
    records |= {"is_random_next": np.array([1, -1, -1, -1])}
    return features.encoder.rows(records, length=LENGTH, max_predictions=n)


def test_a_target_sees_what_its_mask_lets_it_see(batch):
    """The gradient of each loss with respect to each token's embedding is zero exactly where the mask says so."""
    objective, network = CONFIG.objective, families.network(CONFIG)
    params, n = drawn(network), len(TEXT["tokens"])

    def loss(delta, weights):
        def add(call, args, kwargs, context):
            x = call(*args, **kwargs)
            looked_up = isinstance(context.module, Embed) and context.method_name == "__call__"
            return x + delta if looked_up else x

        with nn.intercept_methods(add):
            return objective.loss(network.bind(params), dict(batch, masked_weights=weights))[0]["masked_lm"]

    one = jnp.repeat(jnp.eye(n)[:, None], len(KINDS), 1)
    zeros = jnp.zeros((len(KINDS), LENGTH, CONFIG.model.embed_dim))
    slope = jax.jit(lambda one: jax.lax.map(lambda w: jax.grad(loss)(zeros, w), one))(one)
    seen = np.abs(slope).sum(-1).swapaxes(0, 1) > 0  # [kind, target, token]
    before = np.tri(n, dtype=bool)
    source = np.array(TEXT["token_types"]) == 0
    expected = [before | True, np.where(source[:, None], source[None], before), before, before.T]
    np.testing.assert_array_equal(seen[:, :, :n], expected)
    assert not seen[:, :, n:].any()


def test_losses_apart_add_up_and_only_bidirectional_pairs_have_a_label(batch):
    objective, network = CONFIG.objective, families.network(CONFIG)
    params = drawn(network)
    run = jax.jit(lambda batch: objective.loss(network.bind(params), batch)[1])
    metrics = run(batch)
    parts = [metrics[f"{name}_loss"] for name in KINDS]
    np.testing.assert_allclose(sum(x for x, _ in parts), metrics["token_loss"][0], rtol=1e-5)
    assert [float(weight) for _, weight in parts] == [8, 8, 8, 8]
    assert {k: float(v) for k, v in objective.weights(batch).items()} == {"masked_lm": 32, "next_sentence": 1}
    alone = run(dict(batch, masked_weights=batch["masked_weights"] * (batch["masked_kinds"] == 2)))
    np.testing.assert_allclose(alone["token_loss"][0], metrics["left_to_right_loss"][0], rtol=1e-5)
    assert float(alone["bidirectional_loss"][1]) == 0


@pytest.mark.slow
def test_the_transforms_give_the_declared_features_and_packs():
    texts = ["One sentence. Another one. And a third that is long.", "x", "Second text. Its end. More of it."]
    ds = tf.data.Dataset.from_tensor_slices({"text": texts, "origin": np.zeros([3, 2], np.int64)})
    for labelled in (True, False):
        objective = UniLM(next_sentence=labelled, dupe_factor=2)
        transforms, made = objective.data_spec(32).transforms(VOCABULARY, 0), ds
        with seqio.map_seed_manager(0):
            for call in (*transforms.offline, *transforms.online):
                made = bind(call, seqio.ByteVocabulary())(made)
        examples = list(made.as_numpy_iterator())
        assert len(examples) > 4
        for ex in examples:
            assert {n: (x.shape, x.dtype.name) for n, x in ex.items()} == objective.data_spec(32).features
    objective.data_spec(32).check_packing("unilm")
    with pytest.raises(UserError, match="unilm would need several next-sentence labels in a packed row"):
        UniLM().data_spec(32).check_packing("unilm")
    tokens = np.arange(5, 33)
    places = objective.data_spec(32).max_packed_lengths({"tokens": tokens})["masked_positions"]
    assert (places == np.minimum(np.maximum(np.round(0.15 * tokens), 1), tokens - 2)).all()


def test_check():
    model = CONFIG.model
    UniLM().check(model, 128, VOCABULARY)
    for message, objective, kind in (
        ("encode has no argument ranks", UniLM(next_sentence=False), "modernbert"),
        ("encode has no argument ranks", UniLM(next_sentence=False, types_of_masks=False), "deberta"),
        (r"model.token_types: 2 is too small .* set model.token_types=6", UniLM(), "bert"),
        ("all four rates are 0", UniLM(**dict.fromkeys(KINDS, 0.0)), "bert"),
        ("leaves no pairs for next_sentence", UniLM(bidirectional=0.0), "bert"),
        ("inputs is not supported by unilm", UniLM(inputs="segment_pairs"), "bert"),
    ):
        other = families.config("bert", model={"kind": kind}).model
        with pytest.raises(UserError, match=message):
            objective.check(other, 128, VOCABULARY)
    UniLM(types_of_masks=False).check(families.config("bert").model, 128, VOCABULARY)


def test_examples_in_docstrings():
    assert doctest.testmod(unilm).failed == 0
    assert doctest.testmod(mask).failed == 0
