"""Features of a frozen model: what is trained and what it costs; packed rows and predictions; a whole run."""

import functools
import json

import jax
import numpy as np
import pytest
from flax import traverse_util

from jaxpt import config as configs
from jaxpt.errors import UserError
from jaxpt.hf.convert import export
from jaxpt.inference.predict import predict
from jaxpt.models.heads.features import FeaturesConfig
from jaxpt.train import flops, initial, state, step
from jaxpt.train.loop import train
from tests import families, fine_tuning, grids
from tests.inference.test_predict_tokens import tagged
from tests.labelled import LENGTH, VOCABULARY, features_of, objective_of, records_of, rows_of
from tests.models.helpers import EVERY, drawn
from tests.runs import assert_bit_equal, final

MIX = {"layers": "mix", "bilstm": {"size": 8, "layers": 2, "dropout": 0.1}}
LAST_TWO = {"layers": [-2, -1], "norm": True}


def config(features=MIX, kind="tagging", layers=2, of="bert", model=None, **sections):
    task = {"kind": kind, "labels": ["a", "b", "c"]}
    model = {"layers": layers, "dropout": 0.1, **(model or {})}
    return families.config(of, task=task, objective={"kind": kind, "features": features}, model=model, **sections)


def flat(tree):
    return traverse_util.flatten_dict(tree, sep="/")


def stepped(config, devices=None):
    """(setup, state before, state after a step, metrics)"""
    setup = state.setup(config, devices or jax.devices()[:1])
    current = families.begin(setup)
    before = jax.device_get(current)
    with setup.use():
        update = step.make_train_step(setup, config.objective)
        after, metrics = update(current, step.put(families.batch(config), setup))
    return setup, before, *jax.device_get((after, metrics))


def test_the_model_stays_bit_equal_and_has_no_optimizer_state():
    given = config({"layers": "mix", "bilstm": {"size": 8}})
    assert given.train.trainable == ("heads",)
    setup, before, after, metrics = stepped(given)
    old, new = flat(before.params), flat(after.params)
    heads = {path.split("/")[1] for path in old if path.startswith("heads/")}
    assert heads == {"layer_mix", "bilstm", "tags"} and metrics["gradient_norm"] > 0
    for path in old:
        is_trained = path.startswith("heads/")
        assert (path in setup.trained) == is_trained == (old[path].tobytes() != new[path].tobytes()), path
    moments = [jax.tree_util.keystr(p) for p, _ in jax.tree_util.tree_leaves_with_path(after.opt_state)]
    assert sum(".mu" in name for name in moments) == len(setup.trained)
    assert not any("model" in name for name in moments)


@pytest.mark.parametrize("remat", grids.cases(["none", "full"], "full"))
def test_a_layer_of_the_frozen_model_costs_its_forward_pass_alone(remat):
    def step_flops(layers):
        setup = state.setup(config(layers=layers, model={"remat": remat}), jax.devices()[:1])
        return flops.count(step.traced(setup, setup.config.objective).jaxpr.jaxpr, needed=True)

    def forward(layers):
        given = config(None, layers=layers)
        setup = state.setup(given, jax.devices()[:1])
        with setup.use():
            batch = step.batch_shapes(setup, given.objective)
            return flops.model_flops(setup.network, given.objective, setup.shapes.params, batch) // 3

    assert step_flops(4) - step_flops(2) == forward(4) - forward(2)


def test_what_is_not_frozen_is_trained_whole():
    given = config(MIX | {"frozen": False})
    assert given.train.trainable is None
    setup = state.setup(given, jax.devices()[:1])
    assert set(setup.trained) == set(flat(setup.shapes.params))


def test_a_later_phase_may_train_the_model_too():
    opened = {"objective.features.frozen": False, "train.trainable": ["*"]}
    setup = state.setup(config(train={"phases": [{"steps": 4}, {"set": opened}]}), jax.devices()[:1])
    first, second = map(set, setup.layout.since)
    assert first == {path for path in second if path.startswith("heads/")} and second == set(flat(setup.shapes.params))


@pytest.mark.parametrize(
    "train", [{"trainable": ["*"]}, {"trainable": ["heads", "model/encoder[1]"]}, {"lora": {"rank": 2}}]
)
def test_training_what_is_read_frozen_is_refused(train):
    with pytest.raises(UserError, match=r"train.trainable: .* trains .*model/.* that objective.features.frozen reads"):
        state.setup(config(train=train), jax.devices()[:1])


def test_a_task_without_head_has_no_features():
    tree = families.tree("t5", task={"kind": "generation", "inputs": "{a}"}, objective={"kind": "text_to_text"})
    configs.build(tree)
    tree["objective"]["features"] = {"layers": "mix"}
    with pytest.raises(UserError, match=r"objective\.features: wants null, got"):
        configs.build(tree)


@pytest.mark.parametrize("key, value", [("layers", "all"), ("layers", []), ("bilstm", {"layers": 2}), ("dropout", 0.1)])
def test_bad_settings_are_one_line(key, value):
    with pytest.raises(UserError, match=rf"objective\.features\.{key}") as error:
        config({key: value})
    assert "\n" not in str(error.value)


@pytest.mark.slow
def test_meshes_compute_the_same():
    more = {"train": {"grad_accum_steps": 4}, "optimizer": {"kind": "sgd", "learning_rate": 0.1}}
    more |= {"features": {**MIX, "bilstm": {"size": 8}}, "model": {"dropout": 0.0}}
    one, *others = (
        stepped(config(mesh=mesh, **more), jax.devices()[: np.prod(list(mesh.values()))])
        for mesh in ({"data": 1}, {"data": 1, "fsdp": 2, "context": 2}, {"data": 1, "pipeline": 2})
    )
    for other in others:
        np.testing.assert_allclose(one[3]["loss"], other[3]["loss"], rtol=1e-5)
        for path, x in flat(one[2].params).items():
            np.testing.assert_allclose(flat(other[2].params)[path], x, rtol=1e-4, atol=1e-6, err_msg=path)


CASES = [
    ("bert", "tagging", MIX), ("bert", "classification", {"bilstm": {"size": 4}}),
    ("gpt2", "classification", LAST_TWO), ("bert", "question_answering", MIX), ("t5", "tagging", MIX),
    ("bart", "classification", MIX), ("bert", "multiple_choice", {"bilstm": {"size": 4}}),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name, kind, features", grids.cases(CASES, CASES[0], CASES[2], CASES[4], CASES[6]))
def test_packed_rows_have_the_loss_of_padded_ones(name, kind, features):
    """With gradients of everything, and predictions that depend on neither padding nor neighbours."""
    model = EVERY[name](vocab_size=128)
    options = {"tagging": {}, "multiple_choice": {"examples": 2}}.get(kind, {"examples": 4})
    objective = objective_of(kind, model, features=FeaturesConfig(**features, frozen=False), **options)
    network = objective.network(model)
    params = drawn(network)
    records = records_of(objective, rows_of(kind, objective.layout(VOCABULARY), is_full=False))

    @functools.partial(jax.jit)
    def gradients(params, batch):
        found, metrics, _ = step.gradients(objective, network, params, batch, None)
        return metrics["loss"], found

    alone = LENGTH * (2 if kind == "multiple_choice" else 1)
    padded, longer = features_of(objective, records, alone), features_of(objective, records, 2 * alone)
    packed = features_of(objective, records, len(records) * alone, packs=np.array([0, len(records)]))
    want_loss, want = jax.device_get(gradients(params, padded))
    assert want_loss > 0.1
    for batch in (packed, longer):
        loss, found = jax.device_get(gradients(params, batch))
        np.testing.assert_allclose(loss, want_loss, rtol=1e-5)
        largest = max(np.abs(x).max() for x in jax.tree.leaves(want))
        for (path, x), y in zip(jax.tree_util.tree_leaves_with_path(want), jax.tree.leaves(found), strict=True):
            at = jax.tree_util.keystr(path, simple=True, separator="/")
            np.testing.assert_allclose(y, x, rtol=0, atol=1e-5 * largest, err_msg=at)


@pytest.mark.slow
def test_a_run_says_its_mix_predicts_resumes_and_is_not_exported(tmp_path, capsys):
    def recipe(steps, run="run", features=None, **more):
        features = features or {"layers": "mix", "bilstm": {"size": 12}}
        return fine_tuning.recipe(
            tmp_path, made=list(tagged(100)), task={"kind": "tagging", "metrics": ["tag_accuracy"]},
            run_dir=str(tmp_path / run),
            train={"steps": steps, "eval_every": 10, "log_every": 10}, objective={"features": features},
            **more,
        )  # fmt: skip

    run, rows = tmp_path / "run", fine_tuning.write(tmp_path / "rows.jsonl", tagged(7, seed=1))
    assert train(recipe(20)) == 0 and train(recipe(30)) == 0 and train(recipe(30, "whole")) == 0
    assert_bit_equal(final(run, 30), final(tmp_path / "whole", 30))
    assert "mix of layers: 1.0" in capsys.readouterr().out.replace("\n", " ")
    predict(str(run), rows, str(tmp_path / "p.jsonl"))
    found = [json.loads(line) for line in (tmp_path / "p.jsonl").read_text("utf-8").splitlines()]
    assert [one["tokens"] for one in found] == [row["tokens"] for row in tagged(7, seed=1)]
    with pytest.raises(UserError, match=r"objective.features: Hugging Face's classes read the last layer's states"):
        export(run, tmp_path / "hf")
    said = []
    other = recipe(1, "next", features={"layers": -1}, init_from={"path": str(run)})
    initial.start(state.setup(other, jax.devices()[:1]), other.init_from, said.append)
    assert any("new: heads/tags/dense" in line for line in said)  # of the state's width
    assert any("not used: heads/bilstm/" in line and "heads/layer_mix/scale" in line for line in said)
