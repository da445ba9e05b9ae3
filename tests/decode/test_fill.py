"""Candidates for masks equal the softmax of a text alone, without padding."""

import functools

import jax
import numpy as np
import pytest

from jaxpt.decode import batching
from jaxpt.decode.fill import candidates, fill_masks
from jaxpt.errors import UserError
from tests import families, grids
from tests.decode.helpers import ENCODERS, V, jitted, log_softmax, network, texts
from tests.models.helpers import drawn

CLS, SEP, MASK = 2, 3, 4
TEXTS = texts(5, 20, 5, seed=1)
TEXTS[0][1] = TEXTS[1][0] = TEXTS[1][19] = TEXTS[1][7] = TEXTS[2][3] = TEXTS[2][4] = MASK
PLACES = [[1], [0, 7, 19], [3, 4]]
QUICK = ("bert", "xlnet")


@functools.cache
def _query(made):
    def run(params, tokens, types, ranks, targets):
        bound = made.bind(params)
        streams = bound.streams(tokens, token_types=types, ranks=ranks, targets=targets).hidden
        return bound.logits(streams.query_BxPxD)[0, 0]

    return jax.jit(run)


def oracle(name, text):
    """log-probabilities [L, V] at all positions of one text."""
    made, params, _, _ = network(name)
    if name != "xlnet":
        return log_softmax(jitted(made, "encode")(params, np.array([[CLS, *text, SEP]]))[0])[1:-1]

    tokens = np.array([[*text, SEP, CLS]])
    rows = np.zeros((len(text), V))
    for place in np.flatnonzero(
        tokens[0] == MASK
    ):  # each alone: the other masks have its rank, so it sees none of them
        ranks, types = np.where(tokens == MASK, 0, -1), [[0] * (len(text) + 1) + [2]]
        rows[place] = log_softmax(_query(made)(params, tokens, np.array(types), ranks, np.array([[place]])))
    return rows


@pytest.mark.slow
@pytest.mark.parametrize("name", grids.cases(ENCODERS, *QUICK, "electra", "deberta"))
def test_all_masks_of_a_text_at_once(name):
    """Texts of unequal length with one to three masks, ELECTRA's by its generator."""
    filled = fill_masks(*network(name), TEXTS, k=4)
    assert [[one.position for one in masks] for masks in filled] == PLACES
    for masks, text in zip(filled, TEXTS):
        wanted = oracle(name, text)
        for one in masks:
            best = np.argsort(-wanted[one.position])[:4]
            np.testing.assert_array_equal(one.ids, best)
            np.testing.assert_allclose(one.probabilities, np.exp(wanted[one.position][best]), atol=1e-6)


def test_all_probabilities_sum_to_one_without_padding_rows():
    (masks,) = fill_masks(*network("bert"), TEXTS[:1], k=V)
    assert sorted(masks[0].ids) == list(range(V)) and masks[0].probabilities.sum() == pytest.approx(1, abs=1e-5)


def test_a_text_is_filled_as_if_alone(monkeypatch):
    given = network("bert")
    monkeypatch.setitem(batching.MAX_TOKENS, "cpu", 32)
    for text, masks in zip(TEXTS, fill_masks(*given, TEXTS, k=3)):
        (alone,) = fill_masks(*given, [text], k=3)
        for one, other in zip(masks, alone, strict=True):
            np.testing.assert_array_equal(one.ids, other.ids)
            np.testing.assert_allclose(one.probabilities, other.probabilities, atol=1e-6)


@pytest.mark.slow
def test_candidates_begin_with_the_most_likely_token_of_a_batch():
    config = families.config("bert")
    made = families.network(config)
    bound, batch = made.bind(drawn(made)), families.batch(config)
    names = {"token_types": "encoder_token_types", "segment_ids": "encoder_segment_ids"}

    @jax.jit
    def run(batch):
        given = {name: batch[feature] for name, feature in names.items()}
        hidden = bound.encode(batch["encoder_input_tokens"], **given).hidden
        return candidates(bound, batch, 3), bound.logits(hidden).argmax(-1)

    (ids, probabilities), best = jax.device_get(run(batch))
    np.testing.assert_array_equal(ids[..., 0], np.take_along_axis(best, batch["masked_positions"], axis=1))
    assert (np.diff(probabilities, axis=-1) <= 0).all()


def test_bad_input_is_one_line():
    given = network("bert")
    for wrong, message in [
        ([[5, MASK], [5, 6]], "text 1: has no mask, id 4"),
        ([[MASK] * 31], "text 0: has 33 tokens with special tokens, but the model 32 positions"),
        ([[MASK, V]], f"text 0: id {V} is not in the vocabulary"),
    ]:
        with pytest.raises(UserError, match=message):
            fill_masks(*given, wrong)
    with pytest.raises(UserError, match="top_k: 0 candidates"):
        fill_masks(*given, [[MASK]], k=0)
    with pytest.raises(UserError, match=r"model.kind: gpt2 fills no masks"):
        fill_masks(*network("gpt2"), [[MASK]])
