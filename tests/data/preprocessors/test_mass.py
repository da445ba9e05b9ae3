"""MASS over three thousand texts: one fragment, its length and place, what either side sees of it."""

import collections

import numpy as np
import pytest

from jaxpt.data.preprocessors import features, mass
from jaxpt.data.records.store import Ragged
from tests.data.preprocessors import corpus

MASK, START = 900, 1
RAGGED = ("inputs", "targets", "decoder_inputs")
SETTINGS = {
    "share": 0.5, "start_probability": 0.2, "end_probability": 0.2, "mask_probability": 0.8,
    "random_probability": 0.1, "mask": MASK, "vocab_size": 900, "start": START,
}  # fmt: skip


def made(rows, **settings):
    batch = mass.fragment.batched({"tokens": corpus.ragged(rows)}, corpus.keys(len(rows)), **SETTINGS | settings)
    sides = (corpus.rows(batch[name]) for name in ("inputs", "targets", "decoder_inputs"))
    return batch, list(zip(rows, *sides, batch["offset"].numpy()))


@pytest.mark.slow
def test_the_decoder_reads_what_stands_before_each_token_of_the_fragment():
    seen = collections.Counter()
    for text, inputs, targets, read, first in made(corpus.numbered(corpus.lengths()))[1]:
        size = max(round(0.5 * len(text)), 1)
        fragment = slice(first, first + size)
        np.testing.assert_array_equal(targets, text[fragment])
        np.testing.assert_array_equal(read, [START, *text][fragment])
        np.testing.assert_array_equal(inputs[:first], text[:first])
        np.testing.assert_array_equal(inputs[first + size :], text[first + size :])
        shown = inputs[fragment]
        seen["all"] += size
        seen["mask"] += (shown == MASK).sum()
        seen["random"] += (shown < 900).sum()
        seen["kept"] += (shown == targets).sum()
    assert seen["mask"] / seen["all"] == pytest.approx(0.8, abs=0.005)
    assert seen["random"] / seen["all"] == pytest.approx(0.1, abs=0.004)
    assert seen["kept"] / seen["all"] == pytest.approx(0.1, abs=0.004)


def test_places_of_fragments():
    """Of ten tokens five: a fifth at the start, a fifth at the end, and a tenth at each of the six places."""
    _, examples = made(corpus.numbered([10] * 10_000))
    places = collections.Counter(first for *_, first in examples)
    assert sorted(places) == [0, 1, 2, 3, 4, 5]
    for place, n in places.items():
        assert n / 10_000 == pytest.approx(0.3 if place in (0, 5) else 0.1, abs=0.015)


def test_fragments_between_two_eos():
    """MASS-unsupNMT's trainer.py: eight tokens and two EOS have fragments of five, from after the first EOS on."""
    rows = corpus.numbered([8] * 10_000)
    places = collections.Counter()
    for text, inputs, targets, read, first in made(rows, eos=START)[1]:
        enclosed = [START, *text, START]
        assert len(inputs) == 10 and inputs[0] == START
        np.testing.assert_array_equal(targets, enclosed[1 + first : 6 + first])
        np.testing.assert_array_equal(read, enclosed[first : 5 + first])
        places[first] += 1
    assert sorted(places) == [0, 1, 2, 3, 4]
    for place, n in places.items():
        assert n / 10_000 == pytest.approx(0.32 if place in (0, 4) else 0.12, abs=0.015)


def test_masked_tokens_are_nowhere_in_the_encoder():
    settings = {"mask_probability": 1.0, "random_probability": 0.0}
    for _, inputs, targets, _, _ in made(corpus.numbered(corpus.lengths()), **settings)[1]:
        assert not set(inputs.tolist()) & set(targets.tolist())


@pytest.mark.parametrize("packs", [None, [0, 2, 3]])
def test_positions_are_those_in_the_text(packs):
    batch, examples = made(corpus.numbered([8, 6, 10]))
    packed = {} if packs is None else {"packs": np.array(packs)}
    records = {name: Ragged(batch[name].values.numpy(), batch[name].row_lengths().numpy()) for name in RAGGED}
    records["offset"] = batch["offset"].numpy()
    out = features.encoder_decoder.rows(records, inputs_length=16, targets_length=8, start=START, **packed)
    positions = out["decoder_positions"]
    expected = [list(range(first, first + len(targets))) for _, _, targets, _, first in examples]
    rows = expected if packs is None else [expected[0] + expected[1], expected[2]]
    assert [p[s > 0].tolist() for p, s in zip(positions, out["decoder_segment_ids"])] == rows
