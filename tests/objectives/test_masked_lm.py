"""Masked LM: settings that are refused, features as declared, what its losses see."""

import doctest

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import seqio
import tensorflow as tf

from jaxpt.data.calls import Vocabulary
from jaxpt.data.preprocessors.batched import fold_in
from jaxpt.data.records.store import Ragged
from jaxpt.data.seqio_tasks import arguments, bind, resolve
from jaxpt.errors import UserError
from jaxpt.models import layers
from jaxpt.models.heads.masked_lm import MaskedLMHead
from jaxpt.objectives import masked_lm
from jaxpt.objectives.masked_lm import MaskedLM
from jaxpt.objectives.translation_lm import TranslationLM
from jaxpt.objectives.unilm import UniLM
from tests import families
from tests.models.helpers import drawn

VOCABULARY = Vocabulary(size=300, cls=290, sep=291, mask=292)


def test_predictions_are_berts():
    assert [MaskedLM().predictions(n) for n in (128, 512)] == [20, 77]
    assert MaskedLM(max_predictions=80).predictions(512) == 80


def test_check():
    model = families.config("bert").model
    MaskedLM().check(model, 128, VOCABULARY)
    for message, objective, length, vocabulary in (
        ("MASK", MaskedLM(), 128, Vocabulary(size=300, cls=290, sep=291)),
        ("too short", MaskedLM(), 7, VOCABULARY),
        ("max_predictions", MaskedLM(max_predictions=126), 128, VOCABULARY),
        ("more than 1", MaskedLM(mask_probability=0.8, random_probability=0.3), 128, VOCABULARY),
        ("replaces next_sentence", MaskedLM(sentence_order=True), 128, VOCABULARY),
        ("windows requires objective.next_sentence=false", MaskedLM(inputs="windows"), 128, VOCABULARY),
        ("pairs requires objective", MaskedLM(inputs="sentence_pairs", next_sentence=False), 128, VOCABULARY),
        ("max_words requires objective.unit", MaskedLM(unit="word", max_words=3), 128, VOCABULARY),
        ("frequency_exponent requires", MaskedLM(unit="draw", frequency_exponent=-0.7), 128, VOCABULARY),
        ("line_ends requires objective.inputs", MaskedLM(next_sentence=False, line_ends=True), 128, VOCABULARY),
    ):
        with pytest.raises(UserError, match=message):
            objective.check(model, length, vocabulary)


def test_token_types_that_a_model_lacks_are_named():
    """They would be zeros. A model without any has no table."""

    def lines(objective, types):
        return objective.missing_rows(families.config("bert", model={"token_types": types}).model, 128)

    said = "model.token_types: {} is below the {} of the inputs; set model.token_types={}"
    assert lines(MaskedLM(), 1) == lines(UniLM(types_of_masks=False), 1) == (said.format(1, 2, 2),)
    assert lines(UniLM(), 2) == (said.format(2, 6, 6),)
    assert lines(TranslationLM(languages=("en", "de", "fr")), 2) == (said.format(2, 3, 3),)
    fitting = (MaskedLM(), 0), (MaskedLM(), 2), (MaskedLM(next_sentence=False), 1), (UniLM(), 6)
    assert not any(lines(*pair) for pair in (*fitting, (TranslationLM(language_types=False), 1)))


class Bytes(seqio.ByteVocabulary):
    """Every fourth id goes on with a word."""

    def word_starts(self):
        return np.arange(300) % 4 > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"next_sentence": True, "inputs": "sentence_pairs", "unit": "word"},
        pytest.param({"next_sentence": False}, marks=pytest.mark.grid),
        {"next_sentence": False, "sentence_order": True, "unit": "ngram"},
        pytest.param(
            {"next_sentence": False, "inputs": "sentences", "unit": "span", "rounding": "up", "random_specials": False},
            marks=pytest.mark.grid,
        ),
        {"next_sentence": False, "inputs": "sentences", "line_ends": True, "unit": "window"},
    ],
)
def test_the_transforms_give_the_declared_features(options):
    objective, length = MaskedLM(dupe_factor=2, **options), 32
    pair = objective.pair_loss
    texts = ["One sentence. Another one. And a third that is long.", "x", "Second text. Its end."]
    ds = tf.data.Dataset.from_tensor_slices({"text": texts, "origin": np.zeros([3, 2], np.int64)})
    transforms = objective.data_spec(length).transforms(VOCABULARY, 0)
    with seqio.map_seed_manager(0):
        for call in (*transforms.offline, *transforms.online):
            ds = bind(call, Bytes())(ds)
    declared = objective.data_spec(length).features
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


@pytest.mark.parametrize("options", [{}, {"mask_specials": True}, {"max_predictions": 5}], ids=str)
@pytest.mark.parametrize("rounding", ["nearest", "random", "up"])
def test_packing_plans_for_as_many_as_are_selected(rounding, options):
    objective, longest = MaskedLM(next_sentence=False, rounding=rounding, mask_rate=0.25, **options), 32
    spec, tokens = objective.data_spec(longest), np.repeat(np.arange(8, longest + 1), 8)
    call = spec.transforms(VOCABULARY, 0).online[0]
    records = [[290, *range(5, n + 3), 291] for n in tokens]
    batch = {"tokens": tf.ragged.constant(records, tf.int32, row_splits_dtype=tf.int64)}
    keys = tf.constant(fold_in(np.arange(len(tokens), dtype=np.uint64), 3))
    masked = resolve(call.name).batched(batch, keys=keys, **call.kwargs)
    selected = masked["masked_positions"].row_lengths().numpy().reshape(-1, 8).max(1)
    places = spec.max_packed_lengths({"tokens": tokens})["masked_positions"].reshape(-1, 8)[:, 0]
    assert (selected <= places).all() and places[-1] == selected[-1] == objective.predictions(longest)


@pytest.fixture(scope="module")
def losses():
    """(batch, objective, batch → {part: loss of each row}, jitted) of a sentence-order BERT."""
    objective = {"next_sentence": False, "sentence_order": True}
    config = families.config("bert", model={"layers": 1}, objective=objective)
    batch, network = families.batch(config), families.network(config)
    params = drawn(network)

    @jax.jit
    def parts(batch):
        rows = jax.tree.map(lambda x: x[:, None], batch)
        return jax.lax.map(lambda row: config.objective.loss(network.bind(params), row)[0], rows)

    return batch, config.objective, parts


def test_the_losses_are_of_the_chosen_positions_and_of_the_label(losses):
    batch, objective, parts = losses
    before = parts(batch)
    names = {"masked_lm", "sentence_order"}
    assert set(before) == set(objective.coefficients()) == set(objective.weights(batch)) == names
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


HIDDEN = {
    "pieces": {},
    "words": {"unit": "word"},
    "n-grams": {"unit": "ngram"},
    "spans": {"unit": "span", "rounding": "up"},
    "RoBERTa": {"rounding": "random", "random_specials": False},
    "ELECTRA": {"unit": "draw", "mask_probability": 0.85, "random_probability": 0.0},
    "DeBERTa": {"unit": "window", "mask_probability": 1.0, "random_probability": 0.0},
}


def hidden(options, rows=4):
    """A batch of masked texts in which no id stands twice; random ids are below 50, those of texts from 50 on."""
    rng = np.random.default_rng(0)
    texts = np.stack([[2, *(50 + rng.permutation(150)[:29]), 3] for _ in range(rows)]).astype(np.int32)
    small = Vocabulary(size=50, pad=0, cls=2, sep=3, mask=4)
    mask, last = MaskedLM(next_sentence=False, mask_rate=0.25, **options).data_spec(32).transforms(small, 0).online
    tokens = tf.RaggedTensor.from_tensor(texts, row_splits_dtype=tf.int64)
    batch = {"tokens": tokens, "token_types": tf.zeros_like(tokens)}
    bound = arguments(resolve(mask.name), mask, Words())
    made = resolve(mask.name).batched(batch, keys=tf.constant(fold_in(np.arange(rows, dtype=np.uint64), 9)), **bound)
    ragged = {name: Ragged(x.values.numpy(), x.row_lengths().numpy()) for name, x in made.items()}
    return texts, resolve(last.name).rows(ragged, **arguments(resolve(last.name), last, None))


class Words:
    """Every third id goes on with a word."""

    def word_starts(self):
        return np.arange(200) % 3 > 0


def test_no_target_sees_itself_and_loss_falls_on_the_chosen_positions_alone():
    """The truth at [MASK] is nowhere in the inputs: its embedding there has no gradient, other truths move no logit."""
    config = families.config("bert", model={"layers": 1}, objective={"next_sentence": False, "mask_rate": 0.25})
    objective, network = config.objective, families.network(config)
    params = drawn(network)
    made = {name: hidden(options) for name, options in HIDDEN.items()}
    texts = np.concatenate([text for text, _ in made.values()])
    batch = {name: np.concatenate([b[name] for _, b in made.values()]) for name in made["pieces"][1]}
    rows, inputs = len(texts), batch["encoder_input_tokens"]

    @jax.jit
    def run(batch, weights):
        """Gradients by each row's input embeddings [rows, ids, width] and hidden states, and the logits."""

        def loss(table, shift):
            seen = {}

            def spy(call, args, kwargs, context):
                out = call(*args, **kwargs)
                if isinstance(context.module, layers.Embed) and context.method_name == "__call__":
                    if context.module.name == "token_embed":
                        out += jnp.take_along_axis(table, args[0][..., None], axis=1)
                elif context.method_name == "encode":
                    out = out.replace(hidden=out.hidden + shift)
                elif isinstance(context.module, MaskedLMHead) and context.method_name == "__call__":
                    seen["logits"] = network.bind(params).output_projection()(out)
                return out

            with nn.intercept_methods(spy):
                parts, _ = objective.loss(network.bind(params), batch | {"masked_weights": weights})
            return sum(parts.values()), seen["logits"]

        zeros = jnp.zeros((rows, 200, 32)), jnp.zeros((rows, 32, 32))
        gradients, logits = jax.grad(loss, argnums=(0, 1), has_aux=True)(*zeros)
        return *(jnp.abs(g).max(-1) > 0 for g in gradients), logits

    real = batch["masked_weights"] > 0
    at, truths = batch["masked_positions"], batch["masked_targets"]
    np.testing.assert_array_equal(np.take_along_axis(texts, at, axis=1)[real], truths[real])
    shown = np.take_along_axis(inputs, at, axis=1)
    is_hidden = real & (shown != truths)
    assert (shown[is_hidden] == 4).mean() > 0.8 and is_hidden.sum() > 100
    by_table, by_hidden, logits = map(np.asarray, run(batch, batch["masked_weights"] * is_hidden))
    for row in range(rows):
        own = truths[row][is_hidden[row]]
        assert not np.isin(own, inputs[row]).any() and not by_table[row, own].any()
        visible = np.unique(inputs[row][batch["encoder_segment_ids"][row] > 0])
        assert by_table[row, visible].all() and by_table[row].sum() == len(visible)
        assert set(np.flatnonzero(by_hidden[row])) == set(at[row][is_hidden[row]])
    others = batch | {"masked_targets": np.where(real, (truths + 7) % 200, 0)}
    np.testing.assert_array_equal(run(others, batch["masked_weights"])[2], logits)
    every = np.asarray(run(batch, batch["masked_weights"])[1])
    assert all(set(np.flatnonzero(every[row])) == set(at[row][real[row]]) for row in range(rows))


def test_examples_in_docstrings():
    assert doctest.testmod(masked_lm).failed == 0
