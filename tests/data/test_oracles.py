"""The t5 package's preprocessors and SeqIO's feature converters on the same tokens, where both define the result.

What t5 makes is recorded in oracles/t5.json (tools/t5_oracle.py says how); SeqIO's converters run here.
"""

import json
from pathlib import Path

import numpy as np
import pytest

from jaxpt.data._tf import seqio, tf
from jaxpt.data.preprocessors import features, span_corruption
from jaxpt.objectives.span_corruption import lengths
from tests.data.preprocessors import corpus

T5 = json.loads((Path(__file__).parent / "oracles/t5.json").read_text())


@pytest.mark.parametrize("case", T5["lengths"], ids=lambda case: "-".join(map(str, case[:3])))
def test_lengths_are_t5s(case):
    *settings, text, targets = case
    ours = lengths(*settings)
    if settings == [171, 0.5, 3.0]:
        # T5 subtracts one from the targets of 255 tokens, 172; 254 tokens need 170.
        assert (text, targets) == (254, 171) and ours == (254, 170)
    else:
        assert ours == (text, targets)


@pytest.mark.slow
@pytest.mark.parametrize("case", T5["layouts"], ids=lambda case: "-".join(map(str, case[:3])))
def test_sentinels_lie_as_t5s(case):
    length, density, mean_span, wanted = case
    settings = {"density": density, "mean_span": mean_span, "first_sentinel": 358, "eos": 1}
    made = corpus.run(span_corruption.corrupt, [np.arange(11, 11 + length)] * 5, **settings)
    (pair,) = wanted
    for inputs, targets in zip(made["inputs"], made["targets"], strict=True):
        assert [inputs.tolist(), targets.tolist()] == [[*side, 1] for side in pair]


def pairs():
    rng = np.random.default_rng(0)
    for _ in range(20):
        inputs, targets = rng.integers(1, 9), rng.integers(1, 7)
        yield {
            "inputs": rng.integers(2, 90, inputs).astype(np.int32),
            "targets": rng.integers(2, 90, targets).astype(np.int32),
        }


def dataset():
    ids = tf.TensorSpec([None], tf.int32)
    return tf.data.Dataset.from_generator(pairs, output_signature={"inputs": ids, "targets": ids})


@pytest.mark.slow
def test_features_of_an_encoder_decoder_are_seqios():
    sizes = {"inputs": 9, "targets": 7}
    theirs = seqio.EncDecFeatureConverter(pack=False)(dataset(), sizes).as_numpy_iterator()
    ours = features.encoder_decoder(dataset(), inputs_length=9, targets_length=7, start=0).as_numpy_iterator()
    for a, b in zip(theirs, ours, strict=True):
        assert set(a) <= set(b)
        # SeqIO shifts padded targets: their last token stands on the first padding position too, where nothing is read.
        real = a["decoder_loss_weights"] > 0
        a["decoder_input_tokens"] = a["decoder_input_tokens"] * real
        for name, value in a.items():
            np.testing.assert_array_equal(value, b[name], name)
        # SeqIO has no segment ids without packing; a padding position is one of token 0.
        assert (b["encoder_segment_ids"] == (a["encoder_input_tokens"] > 0)).all()
        assert (b["decoder_segment_ids"] == (a["decoder_target_tokens"] > 0)).all()


@pytest.mark.slow
def test_segments_of_a_row_of_one_are_those_of_seqios_packing():
    sizes = {"inputs": 9, "targets": 7}
    long = [ex for ex in pairs() if len(ex["inputs"]) > 4]  # no two fit in a row
    ds = tf.data.Dataset.from_generator(lambda: long, output_signature=dataset().element_spec)
    theirs = list(seqio.EncDecFeatureConverter(pack=True)(ds, sizes).as_numpy_iterator())
    ours = features.encoder_decoder(ds, inputs_length=9, targets_length=7, start=0).as_numpy_iterator()
    assert len(theirs) == len(long) > 5
    for a, b in zip(theirs, ours, strict=True):
        assert set(a) == set(b)
        for name, value in a.items():
            np.testing.assert_array_equal(value, b[name], name)


def test_features_of_a_decoder_are_seqios_but_for_the_first_input():
    """SeqIO starts from 0; ours from the token before the window, which is nobody's target."""
    theirs = seqio.LMFeatureConverter(pack=False)(dataset().map(lambda x: {"targets": x["targets"]}), {"targets": 7})
    ours = features.decoder(dataset().map(lambda x: {"tokens": tf.concat([[99], x["targets"]], 0)}), length=7)
    for a, b in zip(theirs.as_numpy_iterator(), ours.as_numpy_iterator(), strict=True):
        for name in ("decoder_target_tokens", "decoder_loss_weights"):
            np.testing.assert_array_equal(a[name], b[name])
        real = a["decoder_loss_weights"] > 0
        np.testing.assert_array_equal((a["decoder_input_tokens"] * real)[1:], b["decoder_input_tokens"][1:])
        assert a["decoder_input_tokens"][0] == 0 and b["decoder_input_tokens"][0] == 99
