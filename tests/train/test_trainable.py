"""Trained and frozen parameters: what moves, what has state and gradients, what a run keeps from phase to phase."""

import functools
import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import yaml
from flax import traverse_util
from jax.interpreters import partial_eval

from jaxpt import cli
from jaxpt import config as configs
from jaxpt.cli import evaluate
from jaxpt.errors import UserError
from jaxpt.models import parts
from jaxpt.train import flops, initial, loop, optimizers, state, step, trainable, weights
from tests import families, grids
from tests.runs import assert_bit_equal, final

LAYERS = 4


def config(family="gpt2", trainable=None, **sections):
    model = {"layers": LAYERS, "dropout": 0.1}
    train = {"trainable": trainable, **sections.pop("train", {})}
    return families.config(family, model=model, train=train, **sections)


def flat(tree):
    return traverse_util.flatten_dict(tree, sep="/")


def joined(params):
    return parts.join(flat(jax.device_get(params)), np.concatenate)


def compiled(config, devices=None):
    """(setup, its step)"""
    setup = state.setup(config, devices or jax.devices()[:1])
    return setup, step.traced(setup, setup.config.objective).lower().compile()


def steps(config, count=2, devices=None, made=None):
    """(setup, state before, state after, metrics); `made` is what `compiled` gave."""
    setup, update = made or compiled(config, devices)
    before = current = families.begin(setup)
    kept = jax.device_get(before)
    for seed in range(count):
        current, metrics = update(current, step.put(families.batch(config, seed), setup))
    return setup, kept, jax.device_get(current), jax.device_get(metrics)


KINDS = ["adamw", "adafactor", "lamb", "lion", "muon", "sgd"]
SGD = {"kind": "sgd", "learning_rate": 0.1, "clip_norm": None}


@pytest.mark.parametrize(
    "family",
    ["gpt2", pytest.param("t5", marks=pytest.mark.slow), pytest.param("bert", marks=pytest.mark.grid)],
)
def test_frozen_parameters_stay_bit_equal_and_have_neither_state_nor_copies(family):
    stack = {"t5": "model/decoder", "bert": "model/encoder", "gpt2": "model/decoder"}[family]
    pattern = [f"{stack}[2:]", "*final_norm" if family == "gpt2" else f"{stack}[0]/attention/query"]
    given = config(family, pattern, optimizer={"ema_decay": 0.5, "clip_norm": 1.0})
    made = compiled(given)
    setup, before, after, metrics = steps(given, made=made)
    old, new = flat(before.params), flat(after.params)
    assert set(setup.trained) < set(old)
    for path in old:
        if path in setup.trained:
            assert (old[path] != new[path]).any(), path
        else:
            assert old[path].tobytes() == new[path].tobytes(), path
    moments = {jax.tree_util.keystr(p) for p, _ in jax.tree_util.tree_leaves_with_path(after.opt_state)}
    assert sum(".mu" in name for name in moments) == len(setup.trained)
    assert set(flat(after.ema)) == set(setup.trained) and set(flat(after.averaged)) == set(old)
    assert metrics["gradient_norm"] > 0
    assert f"{stack}/segment_0/layers_2-3/block_0/attention/query/kernel" in setup.trained
    # The state is donated, and each of its arrays is written where it was.
    assert made[1].memory_analysis().alias_size_in_bytes >= state.size(setup.shapes)


@pytest.mark.slow
def test_what_is_trained_moves_as_in_a_whole_training():
    """A first step of plain gradient descent; the stack's lower half is frozen, and random draws are the same.

    The norm that clips is that of the trained parameters; multipliers scale the update after that.
    """
    _, before, whole, metrics = steps(config(optimizer=SGD), 1)
    multipliers, clip = {"model/token_embed": 0.5, "*/bias": 2.0}, 1e-2
    optimizer = {**SGD, "clip_norm": clip, "rate_multipliers": multipliers}
    given = config(trainable=["!model/decoder[:2]"], optimizer=optimizer, train={"layer_norms": True})
    setup, same, after, partial = steps(given, 1)
    assert metrics["loss"] == partial["loss"] and partial["gradient_norm"] < metrics["gradient_norm"]
    trees = [joined(x.params) for x in (before, same, whole, after)]
    gradients = {path: (x.astype(np.float64) - trees[2][path]) / 0.1 for path, x in trees[0].items()}
    for path, gradient in gradients.items():
        if path.startswith("model/decoder/"):
            gradient[:2] = 0
    norm = np.sqrt(sum(np.square(x).sum() for x in gradients.values()))
    np.testing.assert_allclose(partial["gradient_norm"], norm, rtol=1e-4)
    assert norm > 2 * clip
    for path, start in trees[0].items():
        np.testing.assert_array_equal(start, trees[1][path])
        factor = 0.5 if path.startswith("model/token_embed") else 2.0 if path.endswith("/bias") else 1.0
        wanted = start - 0.1 * factor * clip / norm * gradients[path]
        np.testing.assert_allclose(trees[3][path], wanted, rtol=1e-6, atol=1e-7, err_msg=path)
        largest = np.abs(trees[3][path] - start).max()
        np.testing.assert_allclose(trees[3][path] - start, wanted - start, rtol=1e-3, atol=1e-2 * largest, err_msg=path)
    assert {name.partition("/")[2] for name in partial if name.startswith("gradient_norm/")} == set(setup.trained)


def test_frozen_layers_below_cost_no_backward_pass():
    """Products of a step, from its program: of a frozen layer the forward pass alone."""

    @functools.cache
    def count(*pattern):
        setup = state.setup(config(trainable=pattern), jax.devices()[:1])
        jaxpr = step.traced(setup, setup.config.objective).jaxpr.jaxpr
        used, _ = partial_eval.dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))  # as XLA leaves out what nobody reads
        return flops.count(used, needed=True)

    @functools.cache
    def forward(layers):
        given = families.config("gpt2", model={"layers": layers})
        setup = state.setup(given, jax.devices()[:1])
        with setup.use():
            batch = step.batch_shapes(setup, given.objective)
            return flops.model_flops(setup.network, given.objective, setup.shapes.params, batch) // 3

    def needed(*pattern):
        setup = state.setup(config(trainable=pattern), jax.devices()[:1])
        with setup.use():
            return flops.step_flops(setup, step.batch_shapes(setup, setup.config.objective))

    layer = forward(LAYERS) - forward(LAYERS - 1)
    last = (f"model/decoder[{LAYERS - 1}:]", "model/final_norm")
    assert needed("*") == 3 * forward(LAYERS) and needed(*last) == count(*last)
    top = count("model/final_norm")
    for trained in (1, 3):
        assert count(f"model/decoder[{LAYERS - trained}:]", "model/final_norm") == top + 2 * trained * layer
    assert top < count("*") - 2 * LAYERS * layer + layer


@pytest.mark.slow
def test_stages_share_out_each_part():
    """A pipeline over a split stack computes what one device does."""
    found = []
    for mesh in ({"data": 1}, {"data": 1, "pipeline": 2}):
        given = config(trainable=["model/decoder[2:]"], mesh=mesh, train={"grad_accum_steps": 4}, optimizer=SGD)
        found.append(steps(given, 1, jax.devices()[: mesh.get("pipeline", 1)]))
    (_, _, one, a), (_, _, two, b) = found
    np.testing.assert_allclose(a["loss"], b["loss"], rtol=1e-5)
    for path, x in flat(one.params).items():
        np.testing.assert_allclose(flat(two.params)[path], x, rtol=1e-4, atol=1e-5, err_msg=path)
    with pytest.raises(UserError, match=r"layers_0-2.*mesh\.pipeline=2 does not divide its axis 'layers' of size 3"):
        state.setup(config(trainable=["model/decoder[3:]"], mesh={"pipeline": 2, "data": 1}), jax.devices()[:2])


def after_updates(tx, params, gradients):
    """Parameters after an update by each of the gradients, in a program."""

    def one(current, gradient):
        updates, opt_state = tx.update(gradient, current[1], current[0])
        return (optax.apply_updates(current[0], updates), opt_state), None

    together = jax.tree.map(lambda *x: jnp.stack(x), *gradients)
    return jax.lax.scan(one, (params, tx.init(params)), together)[0][0]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_split_or_not_all_optimizers_update_alike(kind):
    """All is trained, but in parts, since a later phase freezes some layers; given the same gradients."""
    optimizer = {"kind": kind, "learning_rate": 0.01, "weight_decay": 0.1, "clip_norm": 0.5}
    phases = [{"steps": 5}, {"set": {"train.trainable": ["model/decoder[1:]"]}}]
    model = {"layers": 3, "embed_dim": 128, "heads": 2}
    setups = [
        state.setup(families.config("gpt2", model=model, train={"phases": given}, optimizer=optimizer))
        for given in ([], phases)
    ]
    assert not setups[0].layout.parts and setups[1].layout.parts
    trees = [
        jax.tree.map(lambda x, rng=rng: rng.normal(size=x.shape).astype(np.float32), setups[0].shapes.params)
        for rng in map(np.random.default_rng, range(3))
    ]

    @jax.jit
    def after(trees):
        found = []
        for setup in setups:
            params, *gradients = (parts.split(tree, setup.layout.parts) for tree in trees)
            found.append(after_updates(setup.optimizer, params, gradients))
        return found

    one, two = map(joined, after(trees))
    for path, x in one.items():
        np.testing.assert_allclose(two[path], x, rtol=2e-5, atol=1e-6, err_msg=path)


# ---- rates and decay ------------------------------------------------------------------------------------------------

AXES = {
    "token_embed": {"table": ("vocab", "embed")},
    "encoder": {"segment_0": {"block_0": {"kernel": ("layers", "embed", "mlp"), "bias": ("layers", "mlp")}}},
    "final_norm": {"scale": ("norm",)},
}
SHAPES = {
    "token_embed": {"table": (160, 128)},
    "encoder": {"segment_0": {"block_0": {"kernel": (3, 8, 16), "bias": (3, 16)}}},
    "final_norm": {"scale": (8,)},
}


def arrays(seed):
    rng = np.random.default_rng(seed)
    return jax.tree.map(
        lambda shape: rng.normal(size=shape).astype(np.float32), SHAPES, is_leaf=lambda x: isinstance(x, tuple)
    )


def alone(tree, layer):
    """A model with one layer of the stack, without a layers axis, and nothing else."""
    return jax.tree.map(lambda x: x[layer], tree["encoder"])


def updated(config, axes, params, gradients, rates=None, groups=()):
    schedule = optax.linear_schedule(config.learning_rate, 0, 10)
    return after_updates(optimizers.make(config, schedule, axes, rates, groups), params, gradients)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_rates_and_decay_of_layers_are_those_of_separate_models(kind):
    recipe = families.config("gpt2", optimizer={
        "kind": kind, "learning_rate": 0.01, "weight_decay": 0.1, "layer_decay": 0.5,
        "rate_multipliers": {"encoder[:2]/kernel": 3.0}, "decay_multipliers": {"encoder[1]": 0.0, "encoder[2]": 4.0},
    })  # fmt: skip
    plain = families.config("gpt2", optimizer={"kind": kind, "learning_rate": 0.01}).optimizer
    layout = trainable.layout(recipe, arrays(0), AXES)
    axes = jax.tree.map(lambda axes: axes[1:], AXES["encoder"], is_leaf=optimizers.is_axes)

    @jax.jit
    def both(params, gradients):
        found = updated(recipe.optimizer, AXES, params, gradients, layout.rates, layout.groups(0))
        wanted = []
        for layer, (rate, decay) in enumerate(zip((0.25, 0.5, 1.0), (0.1, 0.0, 0.4))):
            of_layer = plain.model_copy(update={"weight_decay": decay})
            factors = {"kernel": rate * (3 if layer < 2 else 1), "bias": rate}
            own = {f"segment_0/block_0/{name}": np.array(x) for name, x in factors.items()}
            wanted.append(updated(of_layer, axes, alone(params, layer), [alone(g, layer) for g in gradients], own))
        return found, wanted

    found, wanted = jax.device_get(both(arrays(0), [arrays(seed) for seed in (1, 2, 3)]))
    for layer in range(3):
        for a, b in zip(jax.tree.leaves(alone(found, layer)), jax.tree.leaves(wanted[layer]), strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6)


def test_the_vectors_of_layer_decay():
    given = config(optimizer={"layer_decay": 0.9}, trainable=["!model/decoder[:2]"])
    rates = state.setup(given).layout.rates
    np.testing.assert_allclose(
        rates["model/decoder/segment_0/layers_0-1/block_0/attention/query/bias"], [0.9**3, 0.9**2]
    )
    np.testing.assert_allclose(rates["model/decoder/segment_0/layers_2-3/block_0/attention/query/bias"], [0.9, 1])
    np.testing.assert_allclose([rates["model/token_embed/table"], rates["model/position_embed/table"]], 0.9**4)
    assert rates["model/final_norm/scale"] == 1
    t5 = state.setup(config("t5", optimizer={"layer_decay": 0.5})).layout.rates
    assert t5["model/encoder_bias/table"] == t5["model/token_embed/table"] == 0.5**4 and t5["model/head/kernel"] == 1
    bert = state.setup(config("bert", optimizer={"layer_decay": 0.5})).layout.rates
    assert (
        bert["heads/masked_lm/bias"] == bert["heads/pooler/dense/kernel"] == 1
        and bert["model/embed_norm/scale"] == 0.5**4
    )


def test_decays_that_differ_in_a_last_bit_are_one_group():
    """0.1 · 3 is 0.30000000000000004; a group is named by six digits, and one that is alone keeps its exact factor."""
    factors = {"encoder": 0.1, "encoder[1:]": 3.0, "final_norm": 0.3, "token_embed": 1 / 3}
    optimizer = {"weight_decay": 0.1, "decay_multipliers": factors}
    groups = trainable.layout(families.config("gpt2", optimizer=optimizer), arrays(0), AXES).groups(0)
    assert [group.name for group in groups] == ["decay_0.1", "decay_0.3", "decay_0.333333"]
    assert {path: rows is None or rows.tolist() for path, rows in groups[1].rows.items()} == {
        "encoder/segment_0/block_0/bias": [1, 2], "encoder/segment_0/block_0/kernel": [1, 2], "final_norm/scale": True,
    }  # fmt: skip
    assert groups[2].decay == 1 / 3


@pytest.mark.parametrize(
    "optimizer",
    [
        {"kind": "sgd", "learning_rate": 1.0, "clip_norm": 1e-3, "clip_separately": ["model/decoder"]},
        {"kind": "lamb", "learning_rate": 1.0, "exclude": ["model/decoder/*/bias"]},
    ],
    ids=lambda optimizer: optimizer["kind"],
)
def test_patterns_of_an_optimizer_may_be_of_a_later_phase(optimizer):
    """In the first phase they hold for nothing that it trains."""
    phases = [{"steps": 5, "set": {"train.trainable": ["model/final_norm"]}}, {"set": {"train.trainable": ["*"]}}]
    given = config(optimizer=optimizer, train={"phases": phases})
    setup, before, after, _ = steps(given, 1)
    moved = jax.tree.map(lambda x, y: np.abs(y - x).max(), *(x.params["model"]["final_norm"] for x in (before, after)))
    assert min(jax.tree.leaves(moved)) > 0
    if optimizer["kind"] == "sgd":
        assert max(jax.tree.leaves(moved)) < 1e-3
    later = setup.for_phase(configs.phase_configs(given)[1], 1)
    assert len(later.trained) > len(setup.trained)
    key = [*optimizer][-1]
    with pytest.raises(UserError, match=rf"optimizer\.{key}: 'decoder' matches no trained parameter"):
        state.setup(config(optimizer={**optimizer, key: ["decoder"]}))


# ---- messages -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"trainable": ["decodr"]}, "train.trainable: 'decodr' matches no parameter; did you mean model/decoder"),
        ({"trainable": ["model/decoder", "!*"]}, r"leaves nothing to train in phase 1"),
        ({"optimizer": {"rate_multipliers": {"head": 2.0}}}, "optimizer.rate_multipliers: 'head' matches no"),
        ({"optimizer": {"decay_multipliers": {"x[": 2.0}}}, "optimizer.decay_multipliers: 'x\\[' is no pattern"),
        ({"train": {"lora": {"targets": ["*/bias"]}}}, "train.lora.targets: '\\*/bias' matches no matrix"),
        ({"train": {"phases": [{"steps": 5}, {"set": {"train.trainable": ["x"]}}]}}, "train.trainable: 'x' matches"),
    ],
)
def test_wrong_patterns_are_named(sections, said):
    with pytest.raises(UserError, match=said):
        state.setup(config(**sections))


def test_multipliers_of_frozen_parameters_alone_are_found():
    """Of what no stage trains; low-rank adapters have paths of their own."""

    def problems(rates, decays=(), **train):
        optimizer = {"rate_multipliers": dict.fromkeys(rates, 0.1), "decay_multipliers": dict.fromkeys(decays, 0.0)}
        given = config(optimizer=optimizer, train=train)
        network = given.objective.network(given.model)
        layout = trainable.layout(given, network.shapes(), network.logical_axes())
        return trainable.idle_multipliers(given.optimizer, layout)

    def line(key, pattern):
        return f"optimizer.{key}: {pattern!r} matches no trained parameter; remove it"

    phases = [{"steps": 5, "set": {"train.trainable": ["model/decoder[1:]"]}}, {"set": {"train.trainable": ["*embed"]}}]
    assert problems(
        ["model/decoder[0]", "model/decoder[:2]", "*/bias", "*/table"], ["model/final_norm", "model"], phases=phases
    ) == [line("rate_multipliers", "model/decoder[0]"), line("decay_multipliers", "model/final_norm")]
    assert problems(["model/decoder[0]", "adapter/model/decoder[0]"], lora={}) == [
        line("rate_multipliers", "model/decoder[0]")
    ]


def test_an_adapter_that_no_phase_trains_is_found():
    def problems(trainable_now, later):
        phases = [{"steps": 5}, {"set": {"train.trainable": [later]}}]
        given = config(trainable=[trainable_now], train={"lora": {"rank": 2}, "phases": phases})
        return trainable.problems(given, families.layout(given))

    assert problems("model/final_norm", "model/token_embed") == [
        "train.lora: no phase trains the adapter; add adapter to train.trainable, or leave train.lora out"
    ]
    assert problems("model/final_norm", "adapter/model/decoder[3]") == []


def test_a_run_with_multipliers_of_frozen_parameters_alone_does_not_begin(tmp_path):
    optimizer = {"rate_multipliers": {"model/decoder[0]": 0.1}}
    given = config(trainable=["model/final_norm"], optimizer=optimizer, run_dir=str(tmp_path / "run"))
    with pytest.raises(UserError, match=r"optimizer\.rate_multipliers: 'model/decoder\[0\]' matches no trained param"):
        loop.train(given)
    assert not (tmp_path / "run").exists()


def test_wrong_factors_are_named():
    with pytest.raises(UserError, match=r"optimizer\.rate_multipliers"):
        config(optimizer={"rate_multipliers": {"*": -1.0}})
    with pytest.raises(UserError, match=r"optimizer\.rate_multipliers"):
        config(optimizer={"rate_multipliers": ["*"]})
    with pytest.raises(UserError, match=r"a phase may set keys of data and objective, train\.trainable, and of"):
        config(train={"phases": [{"steps": 5}, {"set": {"train.log_every": 3}}]})


def test_multipliers_survive_a_file(tmp_path):
    given = config(trainable=["model/decoder[1:]"], optimizer={"rate_multipliers": {"*/bias": 2.0}})
    (tmp_path / "recipe.yaml").write_text(configs.to_yaml(given))
    assert configs.load(tmp_path / "recipe.yaml").optimizer == given.optimizer


# ---- runs -----------------------------------------------------------------------------------------------------------

TEXT = "\n".join(f"document number {i} says that the cat sat on the mat and the dog ran home" for i in range(60))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A recipe that thaws a model from the top, and a run of its six steps with a checkpoint of each."""
    folder = tmp_path_factory.mktemp("thaw")
    (folder / "text.txt").write_text(TEXT)
    phases = [
        {"steps": 2, "set": {"train.trainable": ["model/final_norm"]}},
        {"steps": 2, "set": {"train.trainable": ["model/decoder[1:]", "model/final_norm"]}},
        {"set": {"train.trainable": ["*", "!model/decoder[1:]/*/bias"]}},
    ]
    tree = families.tree(
        "gpt2",
        model={"vocab_size": 300, "layers": 3, "dropout": 0.1},
        data={"path": str(folder / "text.txt"), "cache_dir": str(folder / "cache"), "validation_fraction": 0.2,
              "length": 16},
        mesh={"data": 4, "fsdp": 2},
        optimizer={"kind": "adamw", "learning_rate": 1e-2, "ema_decay": 0.5, "weight_decay": 0.1, "layer_decay": 0.9,
                   "schedule": {"kind": "linear", "warmup_steps": 2}, "decay_multipliers": {"model/token_embed": 0}},
        train={"steps": 6, "log_every": 1, "eval_every": 2, "phases": phases},
        checkpoint={"keep_last": 9, "every": 1},
        log={"tensorboard": False},
    )  # fmt: skip
    (folder / "recipe.yaml").write_text(yaml.safe_dump(tree))
    run(folder, "whole")
    return folder


def run(folder, name, *overrides):
    assert cli.main(["train", str(folder / "recipe.yaml"), f"run_dir={folder / name}", *overrides]) == 0


def saved(folder, step):
    return final(folder / "whole", step)


@pytest.mark.slow
@pytest.mark.parametrize("at", grids.cases([2, 3], 3))
def test_a_run_that_thaws_resumes_with_the_same_bits(folder, at, capsys):
    """From within a phase, and from where the next one starts."""
    again = folder / f"again-{at}"
    shutil.copytree(folder / "whole", again)
    for later in range(at + 1, 7):
        shutil.rmtree(again / "checkpoints" / str(later))
    run(folder, again.name)
    assert f"resuming from step {at}" in capsys.readouterr().out
    assert_bit_equal(saved(folder, 6), final(again, 6))
    losses = [
        {x["step"]: x["train/loss"] for x in map(json.loads, (f / "metrics.jsonl").open()) if "train/loss" in x}
        for f in (folder / "whole", again)
    ]
    assert losses[0] == losses[1] and len(losses[0]) == 6


@pytest.mark.slow
def test_state_appears_where_training_begins_and_is_kept(folder):
    states = {at: saved(folder, at) for at in range(1, 7)}
    params = {at: flat(x.params) for at, x in states.items()}
    first = "model/decoder/segment_0/layers_0-0/block_0/attention/query/kernel"
    second = "model/decoder/segment_0/layers_1-2/block_0/attention/query/kernel"
    assert (params[1][second] == params[2][second]).all() and (params[3][second] != params[4][second]).any()
    assert (params[1][first] == params[4][first]).all() and (params[5][first] != params[6][first]).any()

    def groups(at):
        found, _ = states[at].opt_state
        return found

    assert list(groups(1)) == ["since_phase_1_decay_1"]
    assert list(groups(6)) == [
        "since_phase_1_decay_1", "since_phase_2_decay_1", "since_phase_3_decay_0", "since_phase_3_decay_1"
    ]  # fmt: skip
    counts = {name: (int(x[0].count), int(x[2].count)) for name, x in groups(5).items()}
    # Adam counts the updates of the group, the schedule those of the run.
    assert counts == {
        "since_phase_1_decay_1": (5, 5), "since_phase_2_decay_1": (3, 5), "since_phase_3_decay_0": (1, 5),
        "since_phase_3_decay_1": (1, 5),
    }  # fmt: skip
    bias = "model/decoder/segment_0/layers_1-2/block_0/attention/query/bias"
    assert bias in flat(states[4].ema) and bias not in flat(states[5].ema)


@pytest.mark.slow
def test_what_was_split_is_read_as_a_whole(folder):
    """By export, by a start from these weights, and by an evaluation."""
    read = weights.Saved(folder / "whole", 6)
    averaged = joined(saved(folder, 6).averaged)
    assert set(read) == set(averaged) and not any("layers_" in path for path in read)
    for path, x in averaged.items():
        np.testing.assert_array_equal(read[path], x)
    recipe, source = folder / "recipe.yaml", f"init_from.path={folder / 'whole'}"
    for overrides in ([], ["train.trainable=['model/decoder[2:]']", "init_from.partial=true"]):
        given = configs.load(recipe, [source, "train.phases=[]", "optimizer.ema_decay=null", *overrides])
        found = initial.start(state.setup(given), given.init_from, lambda line: None)
        for path, x in joined(found.averaged).items():
            np.testing.assert_array_equal(x, averaged[path], err_msg=path)
    assert "model/decoder/segment_0/layers_2-2/block_0/attention/query/bias" in flat(found.params)
    measured = [x["validation/loss"] for x in map(json.loads, (folder / "whole" / "metrics.jsonl").open())
                if "validation/loss" in x]  # fmt: skip
    for path, loss in ((folder / "whole" / "checkpoints" / "2", measured[0]), (folder / "whole", measured[-1])):
        assert evaluate.evaluate(str(path))["validation/loss"] == pytest.approx(loss, rel=1e-7)
