"""What holds for every objective that makes both sides of windows of text, and for those of decoders.

Its transforms give the features that it declares, packing plans for enough, loss falls on real targets alone, and the
prediction of a target cannot see it: neither in the encoder's inputs nor in what the decoder has read by then.
"""

import doctest
import functools
import importlib
import inspect
from types import SimpleNamespace

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpt.data._tf import seqio, tf
from jaxpt.data.calls import Vocabulary
from jaxpt.data.preprocessors.batched import fold_in
from jaxpt.data.records.store import Ragged
from jaxpt.data.seqio_tasks import arguments, bind, resolve
from jaxpt.errors import UserError
from jaxpt.models import layers
from jaxpt.models.network import Network
from jaxpt.objectives.bart import Bart
from jaxpt.objectives.base import NextToken
from jaxpt.objectives.causal_lm import CausalLM
from jaxpt.objectives.denoising import Denoising
from jaxpt.objectives.fill_in_the_middle import FillInTheMiddle
from jaxpt.objectives.mass import Mass
from jaxpt.objectives.mbart import MBart
from jaxpt.objectives.prefix_lm import PrefixLM
from jaxpt.objectives.salient_spans import SalientSpans
from jaxpt.objectives.span_corruption import SpanCorruption
from jaxpt.objectives.ul2 import UL2, Denoiser
from tests import families
from tests.models.helpers import drawn

LENGTH, SENTINELS = 24, 40
SIZE = 259 + SENTINELS
VOCABULARY = Vocabulary(size=SIZE, eos=1, unk=2, sentinels=SENTINELS)

ENCODER_DECODERS = {
    "span_corruption": SpanCorruption(density=0.5, mean_span=2.0),
    **{
        noise: Denoising(noise=noise, density=0.3, random_probability=0.0)
        for noise in ("replace_spans", "drop", "bert_style", "mass_style", "deshuffle")
    },
    "prefix_and_rest": Denoising(noise="prefix_lm"),
    "bart": Bart(mask_rate=0.3, insert_rate=0.1, rotate=0.5),
    "token_deletion": Bart(mask_rate=0.3, mask_length="subword", replace="nothing"),
    "span_deletion": Bart(replace="nothing"),
    "mbart": MBart(),
    "mass": Mass(),
    "mass_without_eos": Mass(eos=False),
    "ul2": UL2(),
    "salient_spans": SalientSpans(targets_length=16),
}
DECODERS = {
    "causal_lm": CausalLM(),
    "reset_at_documents": CausalLM(reset_at_documents=True),
    "prefix_lm": PrefixLM(),
    "fill_in_the_middle": FillInTheMiddle(),
}
OBJECTIVES = ENCODER_DECODERS | DECODERS
PATTERN = {
    "layers": 2, "pattern": ("other", "main"), "other_window": 3, "other_rope": "none", "norm_position": "after",
    "qk_norm": "heads",
}  # fmt: skip
"""A window in the first layer; all that came before in the second."""


def documents():
    texts = ["The 4th of July 1776 was a Thursday. In Paris it rained.", "x", "yz", "One two three. " * 9]
    return tf.data.Dataset.from_tensor_slices({"text": texts, "origin": np.zeros([len(texts), 2], np.int64)})


RECORDS = {}


def records_of(calls):
    """What these preprocessors make of the documents; several objectives have the same ones."""
    if repr(calls) not in RECORDS:
        source, ds = SimpleNamespace(language="A", fields=None, sentences="rule"), documents()
        for call in calls:
            ds = bind(call, seqio.ByteVocabulary(SENTINELS), source=source)(ds)
        RECORDS[repr(calls)] = list(ds.as_numpy_iterator())
    return RECORDS[repr(calls)]


@functools.cache
def made(name):
    """(lengths of the records, batch) of some documents."""
    transforms = OBJECTIVES[name].data_spec(LENGTH).transforms(VOCABULARY, 0)
    vocabulary = seqio.ByteVocabulary(SENTINELS)
    records = records_of(transforms.offline)
    batch = {
        feature: tf.ragged.constant([list(r[feature]) for r in records], tf.int32, row_splits_dtype=tf.int64)
        for feature in records[0]
        if records[0][feature].ndim and feature != "origin"
    }
    if "language" in records[0]:
        batch["language"] = tf.constant([r["language"] for r in records])
    lengths = {feature: x.row_lengths().numpy() for feature, x in batch.items() if isinstance(x, tf.RaggedTensor)}
    keys = tf.constant(fold_in(np.arange(len(records), dtype=np.uint64), 3))
    *drawn, last = transforms.online
    for call in drawn:
        function = resolve(call.name)
        draws = {"keys": keys} if "keys" in inspect.signature(function.batched).parameters else {}
        batch = function.batched(batch, **draws, **arguments(function, call, vocabulary))
    records = {
        feature: Ragged(x.values.numpy(), x.row_lengths().numpy()) if isinstance(x, tf.RaggedTensor) else x.numpy()
        for feature, x in batch.items()
    }
    function = resolve(last.name)
    return lengths, function.rows(records, **arguments(function, last, vocabulary))


@pytest.mark.slow
@pytest.mark.parametrize("name", OBJECTIVES)
def test_features_are_as_declared_and_packing_plans_for_enough(name):
    lengths, batch = made(name)
    features = OBJECTIVES[name].data_spec(LENGTH).features
    assert {n: (x.shape[1:], x.dtype.name) for n, x in batch.items()} == features
    for feature, places in OBJECTIVES[name].data_spec(LENGTH).max_packed_lengths(lengths).items():
        real = (batch[f"{feature.partition('_')[0]}_segment_ids"] > 0).sum(1)
        assert (real <= places).all() and (places <= features[feature][0][0]).all()


@pytest.mark.parametrize("name", OBJECTIVES)
def test_loss_falls_on_real_targets_and_the_probe_on_text(name):
    _, batch = made(name)
    weights, real = batch["decoder_loss_weights"], batch["decoder_segment_ids"] > 0
    assert set(np.unique(weights)) <= {0.0, 1.0} and not weights[~real].any() and weights.sum() > 0
    if name in ENCODER_DECODERS:
        np.testing.assert_array_equal(weights > 0, real)
        probe = OBJECTIVES[name].baseline.eval_mask(batch, VOCABULARY)
        assert ((probe > 0) <= (weights > 0)).all() and probe.sum() > 0
        assert (batch["decoder_target_tokens"][probe > 0] < 259).all()


def seen(family, objective, batch, targets):
    """How strongly the loss of each target depends on what the decoder reads at each place: [targets, rows, places]."""
    of = {"t5_lm": "t5", "decoder_only": "llama"}.get(family, family)
    options = PATTERN if family == "decoder_only" else {"layers": 1}
    model = families.config(of, model={"kind": family, "vocab_size": SIZE, **options}).model.build()
    params = drawn(model)
    width, sides = model.config.embed_dim, ["encoder", "decoder"] if family == "t5" else ["decoder"]

    def loss(delta, weights):
        reads = iter(sides)

        def add(embed, args, kwargs, context):
            x = embed(*args, **kwargs)
            is_tokens = type(context.module) is layers.Embed and context.method_name == "__call__"
            return x + delta if is_tokens and next(reads) == "decoder" else x

        with nn.intercept_methods(add):
            losses, _ = objective.loss(
                Network(model).bind({"model": params}), dict(batch, decoder_loss_weights=weights)
            )
        return sum(losses.values())

    rows, places = batch["decoder_input_tokens"].shape
    one = jnp.eye(places)[targets][:, None] * batch["decoder_loss_weights"]
    slope = jax.jit(lambda one: jax.lax.map(lambda w: jax.grad(loss)(jnp.zeros((rows, places, width)), w), one))(one)
    return np.abs(slope).sum(-1)


@pytest.mark.slow
def test_a_target_is_predicted_from_the_targets_before_it_alone():
    """One loss serves all objectives of encoder-decoders, so that one program is compiled for all of them."""
    batches = {name: made(name)[1] for name in ENCODER_DECODERS}
    places = max(batch["decoder_input_tokens"].shape[1] for batch in batches.values())
    joined = {
        feature: np.concatenate([fitted(b[feature][-3:], places, feature) for b in batches.values()])
        for feature in batches["span_corruption"]
    }
    assert {type(objective).loss_from_hidden for objective in ENCODER_DECODERS.values()} == {NextToken.loss_from_hidden}
    real = joined["decoder_loss_weights"] > 0
    read, said = joined["decoder_input_tokens"], joined["decoder_target_tokens"]
    np.testing.assert_array_equal(read[:, 1:][real[:, 1:]], said[:, :-1][real[:, 1:]])
    targets = np.arange(0, places, 3)
    slope = seen("t5", SpanCorruption(), joined, targets)
    for n, target in enumerate(targets):
        assert not slope[n][:, target + 1 :].any()
        assert (slope[n][real[:, target], : target + 1] > 0).all()


class Words(seqio.ByteVocabulary):
    """Every id is a word."""

    def word_starts(self):
        return np.ones(SIZE, bool)


HIDES = (
    "span_corruption",
    "replace_spans",
    "drop",
    "mass_style",
    "bert_style",
    "prefix_and_rest",
    "ul2",
    "bart",
    "token_deletion",
    "span_deletion",
)


@pytest.mark.parametrize("name", HIDES)
def test_what_is_asked_is_not_in_the_inputs(name):
    """Of texts in which no id stands twice: each id is in the inputs or asked for, and of a whole text not all are."""
    rows = 100 + np.argsort(np.random.default_rng(0).random((200, 150)))[:, :18]
    call, *_ = OBJECTIVES[name].data_spec(LENGTH).transforms(VOCABULARY, 0).online
    function, keys = resolve(call.name), tf.constant(fold_in(np.arange(200, dtype=np.uint64), 3))
    batch = {"tokens": tf.RaggedTensor.from_tensor(rows.astype(np.int32), row_splits_dtype=tf.int64)}
    made = function.batched(batch, keys=keys, **arguments(function, call, Words(SENTINELS)))
    assert VOCABULARY.pad not in made["inputs"].values.numpy()
    sides = (np.split(made[side].values.numpy(), made[side].row_splits.numpy()[1:-1]) for side in ("inputs", "targets"))
    gone = 0
    for row, given, asked in zip(rows, *sides):
        given, asked = ([i for i in ids if 100 <= i < 250] for ids in (given, asked))
        assert len(set(given)) == len(given) and set(given) <= set(row) == set(given) | set(asked)
        whole = len(asked) == len(row)
        assert whole or not set(given) & set(asked)
        gone += len(row) - len(given)
    assert gone > 200


@pytest.mark.parametrize("family", ["gpt2", "t5_lm", "decoder_only"])
def test_a_target_sees_the_prefix_and_the_tokens_before_it(family):
    """Prefix LM, and the other objectives with a prefix of no tokens, so that one program serves all."""
    batches = [{"decoder_prefix": np.zeros_like(b["decoder_positions"])} | b for b in (made(n)[1] for n in DECODERS)]
    joined = {feature: np.concatenate([b[feature][-3:] for b in batches]) for feature in batches[0]}
    targets = np.arange(0, LENGTH, 3)
    slope = seen(family, PrefixLM(), joined, targets)
    segments, prefix = joined["decoder_segment_ids"], joined["decoder_prefix"] > 0
    for n, target in enumerate(targets):
        open_ = (np.arange(LENGTH) <= target) | prefix
        own = open_ & (segments == segments[:, target : target + 1])
        carries = joined["decoder_loss_weights"][:, target] > 0
        assert not slope[n][~own].any()
        assert (slope[n][carries] > 0)[own[carries]].all()
        # What the prefix shows is before the first target.
        assert (prefix.sum(1) <= target + 1)[carries].all()


def test_documents_of_a_window_are_as_in_windows_of_their_own():
    _, batch = made("reset_at_documents")
    _, plain = made("causal_lm")
    for name in ("decoder_input_tokens", "decoder_target_tokens", "decoder_loss_weights"):
        np.testing.assert_array_equal(batch[name], plain[name])
    opens = (batch["decoder_input_tokens"] == VOCABULARY.eos) & (batch["decoder_segment_ids"] > 0)
    assert opens.sum() >= 3
    opens[:, 0] = True
    real = batch["decoder_segment_ids"] > 0
    np.testing.assert_array_equal(np.where(real, np.cumsum(opens, 1), 0), batch["decoder_segment_ids"])
    place = np.tile(np.arange(LENGTH), (len(opens), 1))
    since = place - np.maximum.accumulate(np.where(opens, place, 0), 1)
    np.testing.assert_array_equal(np.where(real, since, 0), batch["decoder_positions"])


def test_loss_of_prefix_lm_is_that_of_the_rest():
    lengths, batch = made("prefix_lm")
    prefix = batch["decoder_prefix"].sum(1)
    assert (prefix >= 1).all() and (prefix < lengths["tokens"]).all()
    np.testing.assert_array_equal(batch["decoder_loss_weights"].sum(1), lengths["tokens"] - prefix)
    np.testing.assert_array_equal(batch["decoder_loss_weights"].argmax(1), prefix - 1)


def fitted(x, places, feature):
    """Features of decoders filled up to so many places."""
    return np.pad(x, [(0, 0), (0, places - x.shape[1])]) if feature.startswith("decoder") else x


def test_windows_and_targets_are_those_of_t5():
    """t5/data/preprocessors.py and t5/models/gin/objectives: what is joined, in which groups, and lengths at 512."""
    for noise in ("replace_spans", "drop", "bert_style", "mass_style", "deshuffle", "prefix_lm"):
        cut = dict(Denoising(noise=noise).data_spec(512).transforms(VOCABULARY, 0).offline[-1].kwargs)
        assert (cut["length"], cut["join"], cut["group"]) == (511, noise not in ("deshuffle", "prefix_lm"), 128)
    assert Denoising(noise="deshuffle", join_documents=True).join_documents
    for noise, targets in (("replace_spans", 192), ("drop", 104)):
        features = Denoising(noise=noise, targets_length=targets).data_spec(512).features
        assert features["decoder_target_tokens"][0] == (targets,)
    for objective, group in ((SpanCorruption(), 128), (PrefixLM(), 128), (Bart(), None), (UL2(), None)):
        assert dict(objective.data_spec(64).transforms(VOCABULARY, 0).offline[-1].kwargs)["group"] == group


def test_settings_that_cannot_be_right_are_refused():
    for message, objective, length, vocabulary in (
        ("need up to .* sentinels", Denoising(), 1024, VOCABULARY),
        ("mask token or sentinels", Denoising(noise="bert_style"), 64, Vocabulary(size=9, eos=1)),
        ("too short", Denoising(), 3, VOCABULARY),
        ("targets_length: 3 is too short", Denoising(targets_length=3), 16, VOCABULARY),
        ("leaves no random token", Denoising(noise="bert_style", reserved_ids=SIZE), 16, VOCABULARY),
        ("EOS", Denoising(), 64, Vocabulary(size=9, sentinels=4)),
        ("EOS", Bart(), 64, Vocabulary(size=9, mask=4)),
        ("mask token or sentinels", Bart(), 64, Vocabulary(size=9, eos=1)),
        ("mask token or sentinels", Bart(replace="nothing"), 64, Vocabulary(size=9, eos=1)),
        ("too short", Bart(), 7, VOCABULARY),
        ("has no noise", Bart(mask_rate=0.0, permute_sentences=0.0), 64, VOCABULARY),
        ("mask token or sentinels", Mass(), 64, Vocabulary(size=9, eos=1)),
        ("too short", Mass(), 3, VOCABULARY),
        ("set objective.eos=false", Mass(), 64, Vocabulary(size=9, mask=4)),
        ("set objective.eos=true", MBart(eos=False), 64, Vocabulary(size=9, eos=1, mask=4)),
        ("mask_probability .* more than 1", Mass(mask_probability=0.95), 64, VOCABULARY),
        ("three of them for the modes", UL2(), 64, Vocabulary(size=9, eos=1, sentinels=3)),
        ("besides the 3 mode tokens", UL2(), 512, VOCABULARY),
        ("too short", UL2(), 7, VOCABULARY),
        ("EOS", SalientSpans(), 64, Vocabulary(size=9)),
        ("too short", SalientSpans(), 8, VOCABULARY),
        ("targets_length", SalientSpans(targets_length=1), 64, VOCABULARY),
        ("set objective.separator=true", CausalLM(reset_at_documents=True, separator=False), 64, VOCABULARY),
        ("end-of-text", PrefixLM(), 64, Vocabulary(size=9)),
        ("too short", PrefixLM(), 1, VOCABULARY),
        ("3 sentinels", FillInTheMiddle(), 64, Vocabulary(size=9, eos=1, sentinels=2)),
        ("too short", FillInTheMiddle(), 7, VOCABULARY),
    ):
        with pytest.raises(UserError, match=message):
            objective.check(None, length, vocabulary)
    for density in (0.0, 1.0):
        with pytest.raises(ValueError, match="density"):
            Denoising(density=density)
    for settings in ({"mask_rate": 1.0}, {"insert_rate": 1.0}, {"poisson_lambda": 0.5}):
        with pytest.raises(ValueError, match=next(iter(settings))):
            Bart(**settings)
    for settings in ({"mask_rate": 0.0}, {"replace": "nothing", "mask_length": "word"}):  # these need no mask
        Bart(**settings).check(None, 64, Vocabulary(size=9, eos=1))
    with pytest.raises(ValueError, match="density"):
        UL2(denoisers=(Denoiser(mode="S2S", density=1.0),))
    Denoising().check(None, 512, Vocabulary(size=32100, eos=1, sentinels=100))  # T5's own
    UL2().check(None, 512, Vocabulary(size=32100, eos=1, sentinels=100))


@pytest.mark.parametrize("module", ["ul2", "fill_in_the_middle"])
def test_examples_in_the_docstrings(module):
    failed, tried = doctest.testmod(importlib.import_module(f"jaxpt.objectives.{module}"))
    assert tried and not failed
