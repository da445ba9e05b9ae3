"""Heads of several tasks: the loss is that of the tasks' own objectives, packed and in microbatches as in rows."""

import doctest
import functools

import jax
import numpy as np
import pytest

from jaxpt import config as configs
from jaxpt.config import TaskConfig, resolve
from jaxpt.errors import UserError
from jaxpt.models.heads import classes
from jaxpt.objectives import mixture
from jaxpt.train import step
from tests import families
from tests.labelled import LENGTH, TASKS, VOCABULARY, features_of, objective_of, records_of, rows_of
from tests.models.helpers import drawn

OWN = {"classification": {"class_weights": (0.5, 1.0, 2.0), "label_smoothing": 0.1}}
KINDS = ("classification", "regression", "multi_label", "tagging", "question_answering")


def model_of(name):
    """Its configuration, in float32 without dropout."""
    model = families.MODELS[name] | {"vocab_size": 128, "dtype": "float32", "layers": 1}
    return configs.build(families.tree("bert") | {"model": model}).model


def tasks_of(kinds):
    """A mixture whose tasks are called by their kinds."""
    made = [resolve(TASKS[kind]["kind"], "jaxpt.data.tasks", TaskConfig)(**TASKS[kind], name=kind) for kind in kinds]
    return resolve("mixture", "jaxpt.data.tasks", TaskConfig)(tasks=made)


def made(model, kinds):
    """The objective of some tasks, and (rows, packed rows) of each."""
    own = [(f"{kind}.{key}", x) for kind in kinds for key, x in OWN.get(kind, {}).items()]
    own += [("question_answering.max_query", 5)] if "question_answering" in kinds else []
    settings = dict(own)
    found = mixture.Mixture(task=tasks_of(kinds), text_layout=model.text_layout, examples=4, tasks=settings)
    batches = {}
    for kind in kinds:
        part = found.parts[kind]
        records = records_of(part, rows_of(kind, part.layout(VOCABULARY), is_full=False))
        features = functools.partial(features_of, part, records)
        packs = np.array([0, len(records)])
        placed = [
            found.data_spec(LENGTH).wrap_for_mixture(kind, one)()
            for one in (features, functools.partial(features, LENGTH * len(records), packs))
        ]
        batches[kind] = (*placed, records)
    return found, batches


def together(batches):
    """Rows of several batches."""
    return {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}


@pytest.mark.parametrize(
    "name, kinds",
    [
        pytest.param("bert", KINDS, marks=pytest.mark.slow),
        ("bert", ("classification", "tagging")),
        pytest.param("gpt2", ("classification", "regression"), marks=pytest.mark.slow),
    ],
)
def test_the_loss_is_that_of_each_tasks_own_objective(name, kinds):
    model = model_of(name)
    objective, batches = made(model, kinds)
    network = objective.network(model)
    params = drawn(network)
    heads = {part.task.head for part in objective.parts.values()}
    assert set(params["heads"]) - {"pooler"} == {f"{objective.parts[kind].task.head}_{kind}" for kind in kinds}
    assert heads >= {"classes"}

    def alone(kind, params):
        """(Σ loss, Σ weight) of a task's own objective."""
        own = objective_of(kind, model, **({"examples": 4} if kind != "tagging" else {}), **OWN.get(kind, {}))
        rows = features_of(own, batches[kind][2])
        rows["label_weights"] = mixture.shared_weights(rows, own.side)
        head = own.task.head
        mine = {head: params["heads"][classes.called(head, kind)]}
        mine |= {"pooler": params["heads"]["pooler"]} if "pooler" in own.heads(model) else {}
        sums, _ = own.loss(own.network(model).bind({"model": params["model"], "heads": mine}), rows)
        return sums[own.kind], own.weights(rows)[own.kind]

    batch = together([batches[kind][0] for kind in kinds])

    @jax.jit
    def run(params):
        of_tasks = [alone(kind, params) for kind in kinds]
        return of_tasks, *objective.loss(network.bind(params), batch), objective.weights(batch)

    of_tasks, sums, metrics, weights = run(params)
    total, weight = (sum(map(float, x)) for x in zip(*of_tasks))
    np.testing.assert_allclose(float(sums["mixture"]), total, rtol=1e-6)
    np.testing.assert_allclose(float(weights["mixture"]), weight, rtol=1e-6)
    for kind in kinds:
        assert f"{kind}/loss" in metrics
    np.testing.assert_allclose(sum(float(metrics[f"{kind}/loss"][0]) for kind in kinds), total, rtol=1e-6)
    np.testing.assert_allclose(float(metrics[f"{kinds[-1]}/loss"][1]), 4, rtol=1e-6)  # examples, whatever their labels


@pytest.mark.slow
def test_packed_rows_and_microbatches_change_nothing():
    model, kinds = model_of("bert"), ("classification", "tagging")
    objective, batches = made(model, kinds)
    network = objective.network(model)
    params = drawn(network)

    @functools.partial(jax.jit, static_argnames="accumulation")
    def gradients(params, batch, accumulation=1):
        found, metrics, _ = step.gradients(objective, network, params, batch, None, accumulation)
        return metrics["loss"], found

    rows = together([batches[kind][0] for kind in kinds])
    want_loss, want = jax.device_get(gradients(params, rows))
    packed = {kind: batches[kind][1] for kind in kinds}
    widths = {key: max(batch[key].shape[1] for batch in packed.values()) for key in rows}
    for batch in packed.values():
        for key, width in widths.items():
            pad = [(0, 0), (0, width - batch[key].shape[1])] + [(0, 0)] * (batch[key].ndim - 2)
            batch[key] = np.pad(batch[key], pad)
    for batch, accumulation in ((together(list(packed.values())), 1), (rows, 2), (rows, 4)):
        loss, found = jax.device_get(gradients(params, batch, accumulation))
        np.testing.assert_allclose(loss, want_loss, rtol=1e-5)
        for x, y in zip(jax.tree.leaves(want), jax.tree.leaves(found), strict=True):
            np.testing.assert_allclose(y, x, rtol=0, atol=2e-5 * max(np.abs(x).max(), 1e-3))


def test_the_baseline_is_of_the_loss_that_is_compared():
    """Tags have the weights that they have in the loss: those of a sentence that of one example."""
    kinds = ("classification", "tagging")
    objective, batches = made(model_of("bert"), kinds)
    batch = together([batches[kind][0] for kind in kinds])
    total, count = 0.0, 0.0
    for kind in kinds:
        labels, weights = batch[f"{kind}/labels"].ravel(), batch[f"{kind}/label_weights"].ravel()
        p = np.array([weights[labels == n].sum() for n in range(labels.max() + 1)]) / weights.sum()
        total, count = total - (weights * np.log(p[labels])).sum(), count + weights.sum()
    assert len(np.unique(batch["tagging/label_weights"])) > 2
    batch["eval_mask"] = objective.baseline.eval_mask(batch, VOCABULARY)
    np.testing.assert_allclose(objective.baseline.loss([batch]), total / count, rtol=1e-6)


def test_examples_in_docstrings():
    failed, tried = doctest.testmod(mixture)
    assert tried and not failed


@pytest.mark.parametrize(
    "kinds, settings, words",
    [
        (("classification", "multiple_choice"), {}, "a task of kind multiple_choice has no head in a mixture"),
        (("classification", "text_to_text"), {}, "a task of kind generation has no head in a mixture; objective"),
        (("classification", "regression"), {"regresion.dropout": 0.1}, "regresion: task.tasks has no settings"),
        (("classification", "regression"), {"classification.r_drop": 1.0}, "classification: r_drop is for single"),
        (
            ("classification", "regression"),
            {"classification.drop": 1.0},
            "classification: unknown key drop; did you mean",
        ),
    ],
)
def test_what_is_refused(kinds, settings, words):
    with pytest.raises((UserError, ValueError), match=words):
        mixture.Mixture(task=tasks_of(kinds), text_layout="bert", tasks=settings)


def test_each_task_is_checked():
    task = tasks_of(("classification", "regression"))
    settings = {"classification.class_weights": (1.0, 2.0)}
    objective = mixture.Mixture(task=task, text_layout="bert", tasks=settings)
    with pytest.raises(UserError, match=r"task classification: objective\.class_weights: wants one for each of 3"):
        objective.check(model_of("bert"), LENGTH, VOCABULARY)
    idle = objective.model_copy(update={"z_loss": 1e-4}).idle_settings()
    assert idle == ("objective.z_loss: not used by mixture; remove it",)
