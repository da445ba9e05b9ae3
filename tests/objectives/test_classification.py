"""A head on whole texts: features, loss, what other rows and padding do not change."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpt.config import to_yaml
from jaxpt.data import datasets, tokenizers
from jaxpt.data.labelled import examples
from jaxpt.data.labelled.rows import texts, together
from jaxpt.data.stream import packing
from jaxpt.errors import UserError
from tests import fine_tuning
from tests.models.helpers import drawn
from tests.objectives.helpers import alike

FAMILIES = (("bert", {}), *(pytest.param(*one, marks=pytest.mark.slow) for one in (
    ("gpt2", {}), ("t5", {}), ("t5", {"pooling": "mean"})
)), pytest.param("bart", {}, marks=pytest.mark.grid))  # fmt: skip
PAIR = {"kind": "classification", "pair": "other"}
SPECIAL = {"sep": 3, "cls": 2, "eos": 3, "bos": 2}


def prepared(config):
    """(network, random parameters, records, vocabulary) of the recipe's validation rows."""
    tokenizer = tokenizers.load(config.data.tokenizer.path)
    vocabulary = with_ends(tokenizer.vocabulary)
    tokenizer.vocabulary = vocabulary
    network = config.objective.network(config.model)
    found = examples.examples(config, tokenizer, examples.split_rows(config, "validation"))
    return network, drawn(network), found.records, vocabulary


def with_ends(vocabulary):
    """WordPiece's vocabulary with ends of texts for decoders."""
    return dataclasses.replace(vocabulary, bos=2, eos=3)


def loss_of(config, network, params, batch):
    objective = config.objective
    batch = {name: jnp.asarray(x) for name, x in batch.items()}
    sums, _ = objective.loss(network.bind(params), batch)
    return {name: total / objective.weights(batch)[name] for name, total in sums.items()}["classification"]


@pytest.mark.parametrize("model, settings", FAMILIES)
def test_packed_rows_give_the_loss_and_gradient_of_padded_ones(model, settings, tmp_path):
    """Each text is a segment: it sees no other one."""
    config = fine_tuning.recipe(tmp_path, of=model, task=PAIR, data={"length": 96}, model={"layers": 1, **settings})
    network, params, records, vocabulary = prepared(config)
    rows = config.objective.collate_fn(vocabulary)
    padded = rows(records[:6], 96)
    packs = np.array([0, 3, 6])
    packed = texts(together(records[:6]), 96, 6, config.objective.side, config.objective.start_id(vocabulary), packs)
    assert len(packed["labels"]) == 2 and packed["label_weights"].sum() == padded["label_weights"].sum() == 6
    padded, packed = alike(padded, packed)
    value = jax.jit(jax.value_and_grad(lambda params, batch: loss_of(config, network, params, batch)))
    (one, g_one), (two, g_two) = value(params, padded), value(params, packed)
    np.testing.assert_allclose(one, two, rtol=1e-5)
    for a, b in zip(jax.tree.leaves(g_one), jax.tree.leaves(g_two)):
        np.testing.assert_allclose(a, b, atol=1e-5)
    if settings:  # the mean of the encoder: the decoder has no part in it
        assert not any(jax.tree.leaves(jax.tree.map(np.any, g_two["model"]["decoder"])))


@pytest.mark.slow
def test_the_pooled_token_of_each_layout(tmp_path):
    for model, last in (("bert", False), ("gpt2", True), ("t5", True), ("bart", True)):
        config = fine_tuning.recipe(tmp_path, of=model)
        record = prepared(config)[2][0]
        assert record["positions"].tolist() == [len(record["tokens"]) - 1 if last else 0]
        ends = {"bert": (2, 3), "t5": (None, 3), "bart": (2, 3), "gpt2": (2, None)}[model]
        for place, wanted in zip((0, -1), ends):
            assert wanted is None or record["tokens"][place] == wanted


def test_labels_are_in_a_stable_order_and_stay_the_runs(tmp_path):
    config = fine_tuning.recipe(tmp_path)
    assert config.task.labels == config.objective.task.labels == ("bad", "good")
    run = tmp_path / "run"
    (run / "checkpoints" / "1").mkdir(parents=True)
    (run / "config.yaml").write_text(to_yaml(config))
    made = [{**row, "label": {"good": "a", "bad": "b"}[row["label"]]} for row in fine_tuning.rows(20)]
    again = fine_tuning.recipe(tmp_path, made=made)
    assert again.task.labels == ("bad", "good")  # the run's, though the file has others now


@pytest.mark.parametrize("kind", ["regression", "multi_label"])
def test_other_targets(kind, tmp_path):
    label = {"regression": "score", "multi_label": "topics"}[kind]
    train = [{**row, "topics": ["film"] * (row["label"] == "good") + ["plot"]} for row in fine_tuning.rows(40)]
    objective = {"class_weights": "balanced"} if kind == "multi_label" else {}
    config = fine_tuning.recipe(
        tmp_path, task={"kind": kind, "label": label}, made=train, model={"layers": 1}, objective=objective
    )
    network, params, records, vocabulary = prepared(config)
    batch = config.objective.collate_fn(vocabulary)(records[:4], 32)
    batch["eval_mask"] = batch["label_weights"]

    @jax.jit
    def both(params, batch):
        bound = network.bind(params)
        return config.objective.predict(bound, batch), config.objective.loss(bound, batch)

    outputs, (sums, metrics) = both(params, batch)
    outputs = np.asarray(outputs)[:, 0]
    targets = np.stack([record["target"] for record in records[:4]])
    if kind == "regression":
        expected = plain = ((outputs[:, 0] - targets) ** 2).mean()
    else:
        p = 1 / (1 + np.exp(-outputs))
        trained = [row.row.values["topics"] for row in examples.split_rows(config, "train")]
        films = sum("film" in topics for topics in trained)
        weights = np.array([(30 - films) / films, 1 / 30])  # each row has "plot"
        np.testing.assert_allclose(config.objective.class_weights, weights, rtol=1e-6)
        expected = -(weights * targets * np.log(p) + (1 - targets) * np.log(1 - p)).mean()
        plain = -(targets * np.log(p) + (1 - targets) * np.log(1 - p)).mean()  # what a baseline is compared with
    np.testing.assert_allclose(sums["classification"] / 4, expected, rtol=1e-5)
    np.testing.assert_allclose(metrics["target_loss"], (4 * plain, 4), rtol=1e-5)


def test_packed_rows_of_short_texts_are_full(tmp_path):
    """A row has places for as many examples as its tokens have room for."""
    spec = fine_tuning.recipe(tmp_path, data={"length": 128, "packing": True}).objective.data_spec(128)
    lengths = np.random.default_rng(0).integers(3, 9, 500)  # [CLS], one to six tokens, [SEP]
    sizes = spec.max_packed_lengths({"tokens": lengths, "positions": np.ones_like(lengths)})
    room = {name: spec.features[name][0][0] for name in sizes}
    assert lengths.sum() > 0.95 * 128 * len(packing.plan(sizes, room))


def test_balanced_weights_make_labels_count_the_same(tmp_path):
    made = [row for row in fine_tuning.rows(80) if row["label"] == "good" or int(row["id"][1:]) % 4 == 0]
    config = fine_tuning.recipe(tmp_path, made=made, objective={"class_weights": "balanced"})
    trained = [row.row.values["label"] for row in examples.split_rows(config, "train")]
    bad, good = (trained.count(label) for label in ("bad", "good"))
    assert bad < good and bad + good < len(made)
    np.testing.assert_allclose(np.array(config.objective.class_weights) * (bad, good), len(trained) / 2, rtol=1e-6)


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"task": {"kind": "classification", "windows": "mean", "pair": "other"}}, "windows: are of a single text"),
        ({"objective": {"stride": 4}}, "objective.stride: is of the windows of long texts; set task.windows"),
        ({"task": {"kind": "regression", "label": "score"}, "objective": {"class_weights": [1.0]}}, "class_weights is"),
        ({"task": {"kind": "classification", "labels": ["bad", "good", "so"]}}, "no row has the label 'so'"),
        ({"task": {"kind": "classification", "labels": ["bad"]}}, "labels: wants two or more, got 1"),
        ({"task": {"kind": "classification", "metrics": ["squad"]}}, "task.metrics: squad: a task of kind classific"),
        ({"task": {"kind": "classification", "label": "lable"}}, "line 1: no column 'lable'; it has"),
        ({"task": {"kind": "classification", "labels": ["bad", "fine"]}}, "label 'good' is none of task.labels"),
        ({"data": {"test_path": "train.jsonl"}}, "is a file of data.path, too"),
        ({"objective": {"kind": "masked_lm"}}, "objective.kind: masked_lm has no labels to learn"),
        ({"task": None, "objective": {"kind": "classification"}}, "key task is missing"),
        ({"objective": {"label_smoothing": 0.1}, "task": {"kind": "regression", "label": "score"}}, "label_smoothing"),
        ({"model": None}, "init_from.path is missing"),
        ({"model": None, "init_from": {"path": "nowhere"}}, "nowhere: no such directory; a model of the hub"),
    ],
)
def test_mistakes_are_one_line(sections, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as error:
        datasets.prepare(fine_tuning.recipe(tmp_path, **sections), report=lambda line: None)
    assert words in str(error.value) and "\n" not in str(error.value)


def test_both_copies_of_a_text_count_in_r_drop(tmp_path):
    config = fine_tuning.recipe(tmp_path, objective={"r_drop": 2.0}, model={"layers": 1})
    _, params, records, vocabulary = prepared(config)
    config = config.model_copy(update={"model": config.model.model_copy(update={"dropout": 0.1})})
    network = config.objective.network(config.model)
    batch = {n: jnp.asarray(x) for n, x in config.objective.collate_fn(vocabulary)(records[:4], 32).items()}
    objective, twice = config.objective, {name: jnp.concatenate([x, x]) for name, x in batch.items()}

    @jax.jit
    def loss(params, rngs):
        bound = network.bind(params, rngs)
        both = objective.outputs(bound, objective.output(bound, twice).hidden, twice) if rngs else None
        return *objective.loss(bound, batch), both

    plain, *_ = loss(params, {})
    assert set(plain) == {"classification"}  # without dropout both readings are one
    sums, metrics, both = loss(params, {"dropout": jax.random.key(1)})
    assert 0 < float(sums["r_drop"]) < float(sums["classification"])
    weights = objective.weights(batch)
    assert float(metrics["accuracy"][1]) == 8 and float(weights["r_drop"]) == 4
    total = sum(objective.coefficients()[name] * sums[name] / weights[name] for name in sums)
    log_p, log_q = np.split(np.asarray(jax.nn.log_softmax(both))[:, 0], 2)
    truth = np.arange(4), np.asarray(batch["labels"])[:, 0]
    kl = ((np.exp(log_p) - np.exp(log_q)) * (log_p - log_q)).sum(-1)  # both directions
    expected = (-(log_p[truth] + log_q[truth]) / 2 + 2.0 * kl / 2).mean()  # ½ (CE₁ + CE₂) + α · ½ (KL₁₂ + KL₂₁)
    np.testing.assert_allclose(total, expected, rtol=1e-5)


def test_r_drop_has_the_figures_of_routers(tmp_path):
    mixture = {"experts": 4, "dropout": 0.1, "layers": 1}
    config = fine_tuning.recipe(tmp_path, of="t5", objective={"r_drop": 2.0}, model=mixture)
    network, params, records, vocabulary = prepared(config)
    batch = {n: jnp.asarray(x) for n, x in config.objective.collate_fn(vocabulary)(records[:4], 32).items()}
    loss = jax.jit(lambda params, rngs: config.objective.loss(network.bind(params, rngs), batch))
    (_, plain), (sums, twice) = loss(params, {}), loss(params, {"dropout": jax.random.key(1)})
    assert "r_drop" in sums and set(twice) == set(plain) > {"encoder_router/share", "encoder_router/entropy"}
    np.testing.assert_allclose(twice["encoder_router/entropy"][1], 2 * plain["encoder_router/entropy"][1])
    total, weight = twice["encoder_router/share"]
    np.testing.assert_allclose((total / weight).sum(-1), 1, rtol=1e-5)
