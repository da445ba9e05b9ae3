"""Preprocessors from outside: word dropout, which an objective from outside names by its dotted path."""

import numpy as np
import pytest
import tensorflow as tf

from jaxpt.data.records.shard import Ragged
from tests.extending.outside import preprocessors

OUTSIDE = "tests.extending.outside"


def dropped(keys, lengths, rate=0.3):
    tokens = tf.RaggedTensor.from_row_lengths(tf.range(10, 10 + sum(lengths)), lengths)
    made = preprocessors.word_dropout.batched({"tokens": tokens}, tf.constant(keys, tf.uint64), rate, unk=2)
    assert made["tokens"] is tokens
    return [np.array(row) for row in made["noisy"].to_list()]


def test_a_share_of_the_words_is_dropped():
    (row,) = dropped([5], [10_000])
    kept = row == np.arange(10, 10_010)
    assert (row[~kept] == 2).all() and abs(kept.mean() - 0.7) < 0.02
    (none,), (all_,) = dropped([5], [50], 0.0), dropped([5], [50], 1.0)
    assert (none >= 10).all() and (all_ == 2).all()


def test_it_depends_on_the_record_and_its_key_alone():
    alone, together, other = dropped([7], [100]), dropped([7, 8], [100, 50]), dropped([9], [100])
    np.testing.assert_array_equal(alone[0], together[0])
    assert (alone[0] != other[0]).any()


def test_as_a_seqio_preprocessor_it_has_a_stateless_seed():
    ds = tf.data.Dataset.from_tensors({"tokens": tf.range(10, 110)}).repeat(2)
    one, two = ([ex["noisy"].tolist() for ex in _with_seed(ds, s).as_numpy_iterator()] for s in (1, 1))
    assert one == two and one[0] != one[1]


def _with_seed(ds, seed):
    import seqio

    with seqio.utils.map_seed_manager(seed):
        return preprocessors.word_dropout(ds, rate=0.5, unk=2)


def test_inputs_are_noisy_and_targets_are_not():
    records = {name: Ragged(np.array(x, np.int32), np.array([3, 2])) for name, x in _TEXTS.items()}
    rows = preprocessors.noisy_decoder.rows(records, length=4, packs=np.array([0, 2]))
    assert rows["decoder_input_tokens"].tolist() == [[5, 2, 2, 0]]
    assert rows["decoder_target_tokens"].tolist() == [[6, 7, 9, 0]]
    assert rows["decoder_segment_ids"].tolist() == [[1, 1, 2, 0]]


_TEXTS = {"tokens": [5, 6, 7, 8, 9], "noisy": [5, 2, 7, 2, 9]}


@pytest.mark.slow
@pytest.mark.parametrize("packing", [False, True])
def test_a_model_trains_on_them_and_resumes(lab, packing):
    """Packed, short texts share rows: nothing is carried then."""
    objective = {"kind": f"{OUTSIDE}.carried_lm", "word_dropout": 0.2, "carry": not packing}
    objective |= {"join_documents": False} if packing else {}
    data = {"tokenizer": {"kind": "sentencepiece"}, "packing": packing}
    if packing:
        data |= {"length": 48, "batch_size": 8}
    model = {"kind": f"{OUTSIDE}.lstm", "vocab_size": 300, "layers": 1, "embed_dim": 32, "dtype": "float32"}
    optimizer = {"learning_rate": 1e-3, "ema_decay": 0.9}
    lab.assert_resumes(model=model, objective=objective, data=data, optimizer=optimizer)


EMPTYING = """
from typing import Literal

from jaxpt.data.calls import Call, Transforms
from jaxpt.data.spec import DataSpec
from jaxpt.objectives.causal_lm import DecoderLM, decoder_features


def emptied(dataset):
    return dataset.map(lambda record: {{**record, {field}}})


class EmptyLM(DecoderLM):
    kind: Literal["{module}"] = "{module}"

    def data_spec(self, length):
        def transforms(vocabulary, seed):
            cut = {{"length": length + 1, "join": True, "separator": vocabulary.eos, "overlap": 1, "shortest": 2}}
            return Transforms(
                offline=(
                    Call("documents.tokenize"),
                    Call("windows.cut", cut),
                    Call("{module}.emptied"),
                ),
                online=(Call("features.decoder", {{"length": length}}),),
            )

        return DataSpec(features=decoder_features(length), transforms=transforms)

    def check(self, model, length, vocabulary):
        pass
"""


def test_records_that_are_all_empty_are_refused(lab, capsys):
    """Before the first step: their loss is 0."""
    module = f"{lab.name}.empty"
    lab.module("empty", EMPTYING.format(module=module, field='"tokens": record["tokens"][:0]'))
    assert lab.train("run", objective={"kind": module}) == 2
    assert "the preprocessors make empty records: decoder_loss_weights are 0 in all " in capsys.readouterr().err


def test_a_feature_that_is_not_kept_is_named(lab, capsys):
    """Not by a KeyError somewhere in jaxpt."""
    module = f"{lab.name}.losing"
    text = EMPTYING.format(module=module, field='"words": record["tokens"]')
    lab.module("losing", text.replace("{**record, ", "{"))
    assert lab.train("run", objective={"kind": module}) == 2
    line = (
        "preprocessor features.decoder: its records must have 'tokens', they have words; what the preprocessor before"
    )
    assert line in capsys.readouterr().err
