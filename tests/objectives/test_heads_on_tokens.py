"""Tagging and question answering: losses by hand, packed as alone; tests/train/test_fine_tuning_parity.py has torch."""

import jax
import numpy as np
import pytest

from jaxpt.data.calls import Vocabulary
from jaxpt.data.labelled import rows
from jaxpt.data.tasks.question_answering import QuestionAnsweringTask
from jaxpt.data.tasks.regression import RegressionTask
from jaxpt.data.tasks.tagging import TaggingTask
from jaxpt.errors import UserError
from jaxpt.objectives.question_answering import QuestionAnswering
from jaxpt.objectives.tagging import Tagging
from tests import families
from tests.models.helpers import drawn

VOCABULARY = Vocabulary(size=200, pad=0, eos=6, bos=5, cls=2, sep=3, mask=4)
LABELS = ("A", "B", "C", "D", "E")
LAYOUTS = {"bert": "bert", "gpt2": "decoder", "t5": "t5"}
LENGTH = 32


def objective(kind, layout, **options):
    if kind == "tagging":
        return Tagging(task=TaggingTask(labels=LABELS), text_layout=layout, **options)
    return QuestionAnswering(task=QuestionAnsweringTask(), text_layout=layout, max_query=4, examples=4, **options)


def records(kind, lengths=(7, 9, 16, 10, 12, 5), seed=0, highest=200, types=2):
    """Random texts; every second token has a tag, or some span is the answer."""
    rng = np.random.default_rng(seed)
    made = []
    for length in lengths:
        positions = np.arange(1, length, 2) if kind == "tagging" else np.sort(rng.integers(0, length, 2))
        record = {
            "tokens": rng.integers(7, highest, length),
            "token_types": np.sort(rng.integers(0, types, length)),
            "positions": positions,
        }
        if kind == "tagging":
            record["targets"] = rng.integers(0, len(LABELS), len(positions))
        made.append({name: x.astype(np.int32) for name, x in record.items()})
    return made


def laid(own, made, length=LENGTH, packs=None):
    """Features of a batch."""
    lay = rows.texts if own.kind == "tagging" else rows.spans
    most = length if own.kind == "tagging" else own.examples_of(length)
    return lay(rows.together(made), length, most, own.side, own.start_id(VOCABULARY), packs)


@pytest.mark.parametrize("kind", ["tagging", "question_answering"])
@pytest.mark.parametrize("family", [pytest.param(f, marks=[] if f == "bert" else pytest.mark.slow) for f in LAYOUTS])
def test_packed_records_have_the_losses_and_gradients_of_separate_ones(family, kind):
    own = objective(kind, LAYOUTS[family])
    network = own.network(families.config(family, model={"layers": 1}).model)
    params = drawn(network)
    made = records(kind)
    packs = np.array([0, 3, 5, 6])
    alone, together = laid(own, made), laid(own, made, packs=packs)
    together = {name: np.pad(x, [(0, 3)] + [(0, 0)] * (x.ndim - 1)) for name, x in together.items()}
    for name, (shape, dtype) in own.data_spec(LENGTH).features.items():
        assert alone[name].shape[1:] == shape and alone[name].dtype == dtype, name
    assert set(alone) == set(own.data_spec(LENGTH).features)

    @jax.jit
    def step(batch):
        def total(params):
            sums, metrics = own.loss(network.bind(params), batch)
            return sum(sums.values()), (sums, metrics, own.weights(batch))

        return jax.grad(total, has_aux=True)(params)

    (expected, of_alone), (got, of_together) = step(alone), step(together)
    for x, y in zip(jax.tree.leaves(of_alone), jax.tree.leaves(of_together), strict=True):
        np.testing.assert_allclose(y, x, rtol=1e-5)
    assert float(of_alone[0][kind]) > 0
    for x, y in zip(jax.tree.leaves(expected), jax.tree.leaves(got), strict=True):
        np.testing.assert_allclose(y, x, atol=1e-5 * max(1, np.abs(x).max()))


@pytest.mark.parametrize("kind", ["tagging", "question_answering"])
def test_loss_by_hand(kind):
    """From the logits alone, record by record; padding takes no part."""
    own = objective(kind, "bert")
    network = own.network(families.config("bert", model={"layers": 1}).model)
    params, made = drawn(network), records(kind)
    batch = laid(own, made)
    sums, metrics = jax.jit(lambda batch: own.loss(network.bind(params), batch))(
        batch | {"eval_mask": batch["label_weights"]}
    )
    outputs = np.asarray(jax.jit(lambda batch: own.predict(network.bind(params), batch))(batch), np.float64)
    total = count = 0
    for record, logits in zip(made, outputs):
        if kind == "tagging":
            logits = logits[: len(record["positions"])]
            total -= sum((x - np.log(np.exp(x).sum()))[tag] for x, tag in zip(logits, record["targets"]))
            count += len(record["positions"])
        else:
            logits = logits[: len(record["tokens"])]
            log_p = logits - np.log(np.exp(logits).sum(0))
            total -= (log_p[record["positions"][0], 0] + log_p[record["positions"][1], 1]) / 2
            count += 1
    np.testing.assert_allclose(sums[kind], total, rtol=1e-5)
    np.testing.assert_allclose(metrics["target_loss"], (total, count), rtol=1e-5)
    np.testing.assert_allclose(own.weights(batch)[kind], count)


def test_a_baseline_is_compared_with_the_plain_loss():
    """Class weights and smoothed labels are of the loss alone: the baseline is the entropy of the tags."""
    plain, weighted = objective("tagging", "bert"), objective(
        "tagging", "bert", class_weights=(9.0, 1.0, 2.0, 3.0, 4.0), label_smoothing=0.1
    )  # fmt: skip
    batch = laid(plain, records("tagging"))
    batch["eval_mask"] = batch["label_weights"]
    network = plain.network(families.config("bert", model={"layers": 1}).model)
    hidden, bound = np.ones((*batch["labels"].shape, 32), np.float32), network.bind(drawn(network))
    (sums, want), (other, found) = jax.jit(
        lambda: [x.loss_from_hidden(bound, hidden, batch) for x in (plain, weighted)]
    )()
    assert float(other["tagging"]) > 1.5 * float(sums["tagging"]) > 0
    np.testing.assert_allclose(found["target_loss"], want["target_loss"], rtol=1e-6)


def test_trivial_predictors():
    qa, tags = objective("question_answering", "bert"), objective("tagging", "bert")
    batch = laid(qa, records("question_answering", (8, 16)))
    mask = {"eval_mask": qa.baseline.eval_mask(batch, VOCABULARY)}
    np.testing.assert_allclose(qa.baseline.loss([batch | mask]), (np.log(8) + np.log(16)) / 2)
    batch = laid(tags, records("tagging"))
    p = np.bincount(batch["labels"][batch["label_weights"] > 0]) / batch["label_weights"].sum()
    mask = {"eval_mask": tags.baseline.eval_mask(batch, VOCABULARY)}
    np.testing.assert_allclose(tags.baseline.loss([batch | mask]), -(p * np.log(p)).sum())


def test_the_null_token_and_the_order_of_the_texts():
    v = VOCABULARY
    expected = {"bert": (True, False), "roberta": (True, False), "bart": (True, False), "xlnet": (False, True),
                "t5": (False, False), "decoder": (False, False)}  # fmt: skip
    for layout, (null_first, context_first) in expected.items():
        encoder = objective("question_answering", layout).encoder(LENGTH, v)
        assert (encoder.null_first, encoder.context_first) == (null_first, context_first), layout


def test_settings_that_cannot_be():
    model = families.config("bert").model
    with pytest.raises(
        UserError, match=r"data.length: 7 leaves room for 4 tokens of question and context, objective.max"
    ):
        objective("question_answering", "bert").check(model, 7, VOCABULARY)
    with pytest.raises(UserError, match=r"data.length: 2 leaves no room for words"):
        objective("tagging", "bert").check(model, 2, VOCABULARY)
    for cls in (Tagging, QuestionAnswering):
        with pytest.raises(UserError, match=r"does not fit task.kind: regression"):
            cls(task=RegressionTask(), text_layout="bert").check(model, 200, VOCABULARY)
    for kind in ("tagging", "question_answering"):
        idle = objective(kind, "bert", z_loss=1e-4).idle_settings()
        assert idle == (f"objective.z_loss: not used by {kind}; remove it",)
    with pytest.raises(UserError, match=r"objective.class_weights: wants one for each of 5 tags"):
        objective("tagging", "bert", class_weights=(1.0, 2.0)).check(model, LENGTH, VOCABULARY)
