"""A record has the same loss, token by token, in a packed row as in a row of its own."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpt.data._tf import tf
from jaxpt.data.loader import Stream, Task
from jaxpt.data.packing import plan
from jaxpt.data.present import compiled
from jaxpt.data.store import build
from jaxpt.errors import UserError
from jaxpt.objectives.base import Vocabulary, apply
from tests import families
from tests.models.helpers import drawn

LENGTH, RECORDS = 32, 24
VOCABULARY = Vocabulary(size=200, pad=0, eos=1, cls=2, sep=3, mask=4, sentinels=20)


def records(family):
    """Short texts with an id 0 among them, as the objective's first half makes them."""
    rng = np.random.default_rng(0)
    for number in range(RECORDS):
        tokens = rng.integers(5, 180, rng.integers(3, 14))
        tokens[1] = 0
        if family == "bert":
            tokens = np.array([2, *tokens, 3])
        types = {"token_types": np.zeros(len(tokens), np.int32)} if family == "bert" else {}
        yield {"tokens": tokens.astype(np.int32), **types, "origin": np.array([0, number, 0])}


def streams(family, directory):
    """(stream of one record a row, stream of packed rows)."""
    settings = {"bert": {"next_sentence": False}}.get(family, {})
    objective = families.config(family, objective=settings).objective
    spec = {name: tf.TensorSpec([3] if name == "origin" else [None], x.dtype)
            for name, x in next(records(family)).items()}  # fmt: skip
    store = build(lambda: tf.data.Dataset.from_generator(lambda: records(family), output_signature=spec), directory)
    features = objective.features(LENGTH)
    calls = objective.pipeline(LENGTH, VOCABULARY, 0).present
    ragged = [name for name in spec if name != "origin"]
    sizes = objective.footprint({name: store.lengths(name) for name in ragged})
    packs = plan(sizes, {name: features[name][0][0] for name in sizes})
    made = {
        packed: Stream([Task("t", store, compiled(calls, None, spec, features, packed), 7, packs if packed else None)],
                       features, 8)
        for packed in (False, True)
    }  # fmt: skip
    return made[False], made[True]


@functools.partial(jax.jit, static_argnums=(0,))
def scores(model, params, batch):
    """Log-probability of each target: [rows, targets]."""
    encoder, decoder = (
        {name: batch.get(f"{side}_{name}") for name in ("segment_ids", "positions")} for side in ("encoder", "decoder")
    )
    if model.config.family == "encoder":
        hidden = apply(model, params, "encode", batch["encoder_input_tokens"], **encoder)
        hidden = jnp.take_along_axis(hidden, batch["masked_positions"][..., None], 1)
    elif model.config.family == "decoder":
        hidden = apply(model, params, "decode", batch["decoder_input_tokens"], **decoder)
    else:
        encoded = apply(model, params, "encode", batch["encoder_input_tokens"], **encoder)
        given = {**decoder, "encoder_segment_ids": batch["encoder_segment_ids"]}
        hidden = apply(model, params, "decode", batch["decoder_input_tokens"], encoded, **given)
    targets = batch["masked_targets" if "masked_targets" in batch else "decoder_target_tokens"]
    log_p = jax.nn.log_softmax(apply(model, params, "logits", hidden))
    return jnp.take_along_axis(log_p, targets[..., None], -1)[..., 0]


@pytest.mark.slow
@pytest.mark.parametrize("family", families.FAMILIES)
def test_packed_equals_separate(family, tmp_path):
    separate, packed = streams(family, tmp_path / "store")
    assert len(packed) < 0.6 * len(separate) == 0.6 * RECORDS
    model = families.config(family).model.build()
    params = drawn(model)
    weights = "masked_weights" if family == "bert" else "decoder_loss_weights"
    alone, together = separate.rows(np.arange(RECORDS)), packed.rows(np.arange(len(packed)))
    packs = packed.tasks[0].packs
    # The targets of the records, in the order in which they stand in the packed rows.
    real = alone[weights][packs.records] > 0
    expected = np.asarray(scores(model, params, alone))[packs.records][real]
    got = np.asarray(scores(model, params, together))[together[weights] > 0]
    np.testing.assert_allclose(got, expected, atol=1e-5)
    # Nothing is lost: ids, segments and positions are those of the records one after the other.
    side = "encoder" if family == "bert" else "decoder"
    for row in range(len(packed)):
        members = packs.records[packs.offsets[row] : packs.offsets[row + 1]]
        for name in (f"{side}_input_tokens", f"{side}_positions"):
            parts = [alone[name][r][alone[f"{side}_segment_ids"][r] > 0] for r in members]
            ids = together[f"{side}_segment_ids"][row]
            np.testing.assert_array_equal(together[name][row][ids > 0], np.concatenate(parts))
            assert sorted(set(ids.tolist()) - {0}) == list(range(1, len(members) + 1))


def test_pairs_of_sentences_cannot_share_a_row():
    objective = families.config("bert").objective
    with pytest.raises(UserError, match="next_sentence: false"):
        objective.check_packing()
