"""Optimizers: a stack is updated as its layers alone would be; what is decayed, clipped, factored and sharded."""

import doctest
import zlib

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import traverse_util

from jaxpt.config import OptimizerConfig, resolve
from jaxpt.errors import UserError
from jaxpt.models.elmo import ELMoConfig
from jaxpt.models.network import Network
from jaxpt.train import optimizers
from jaxpt.train.optimizers import groups, logical
from tests import grids
from tests.models.helpers import EVERY

KINDS = ["adamw", "adafactor", "adagrad", "adamax", "lamb", "lion", "muon", "sgd"]

AXES = {
    "embedding": {"table": ("vocab", "embed")},
    "encoder": {
        "kernel": ("layers", "embed", "mlp"),
        "big": ("layers", "embed", "heads"),
        "bias": ("layers", "mlp"),
        "gain": ("layers",),
    },
    "decoder": {"kernel": ("layers", "mlp", "embed"), "scale": ("layers", "norm")},
    "final": {"kernel": ("embed", "mlp"), "scale": ("norm",)},
}
SHAPES = {
    "embedding": {"table": (160, 128)},
    "encoder": {"kernel": (3, 8, 16), "big": (3, 128, 130), "bias": (3, 16), "gain": (3,)},
    "decoder": {"kernel": (2, 16, 8), "scale": (2, 8)},
    "final": {"kernel": (8, 16), "scale": (8,)},
}


def _config(kind="adamw", **kwargs):
    return resolve(kind, "jaxpt.train.optimizers", OptimizerConfig)(**kwargs)


def _random(seed):
    """A tree of random arrays; each layer has a scale of its own, so that norms over a whole stack would show."""

    def one(path, shape):
        name = jax.tree_util.keystr(path)
        x = np.random.default_rng([seed, zlib.crc32(name.encode())]).normal(size=shape)
        layers = shape[0] if "coder" in name else 1
        return (x * (10.0 ** np.arange(layers)).reshape(-1, *[1] * (len(shape) - 1))).astype(np.float32)

    return jax.tree_util.tree_map_with_path(one, SHAPES, is_leaf=lambda x: isinstance(x, tuple))


def _unrolled(tree, axes=AXES):
    """The same model without stacks: {"kernel": [L, …]} becomes {"kernel": {"0": […], "1": […]}}."""
    is_axes = optimizers.is_axes

    def one(names, x):
        if names[:1] != ("layers",):
            return x
        return {str(i): x[1:] if is_axes(x) else x[i] for i in range(3 if is_axes(x) else len(x))}

    return jax.tree.map(one, axes, tree, is_leaf=is_axes)


def _unrolled_axes(params):
    """Logical axes of the unrolled model: as many entries as there are layers."""
    return jax.tree.map(
        lambda names, x: {str(i): names[1:] for i in range(len(x))} if names[:1] == ("layers",) else names,
        AXES,
        params,
        is_leaf=optimizers.is_axes,
    )


def _steps(config, axes, params, gradients):
    """Parameters after some steps, and the last updates; may be traced."""
    tx = optimizers.make(config, optax.linear_schedule(config.learning_rate, 0.0, 10), axes)

    def step(current, gradient):
        params, state, _ = current
        updates, state = tx.update(gradient, state, params)
        return (optax.apply_updates(params, updates), state, updates), None

    together = jax.tree.map(lambda *x: jnp.stack(x), *gradients)
    start = params, tx.init(params), jax.tree.map(jnp.zeros_like, params)
    (params, _, updates), _ = jax.lax.scan(step, start, together)
    return params, updates


def _run(function, *arguments):
    """What a function of arrays gives, as NumPy; in one program."""
    return jax.device_get(jax.jit(function)(*arguments))


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("kind", grids.cases(KINDS, "adamw", "adafactor", "lamb", "muon"))
def test_a_stack_is_updated_as_its_layers_alone(kind):
    config = _config(kind=kind, learning_rate=0.01, weight_decay=0.1, clip_norm=1e3)

    def both(params, gradients):
        alone = _steps(config, _unrolled_axes(params), _unrolled(params), [_unrolled(g) for g in gradients])
        return _steps(config, AXES, params, gradients), alone

    stacked, alone = _run(both, _random(0), [_random(seed) for seed in (1, 2, 3)])
    for a, b in zip(jax.tree.leaves(_unrolled(stacked[0])), jax.tree.leaves(alone[0]), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    for a, b in zip(jax.tree.leaves(_unrolled(stacked[1])), jax.tree.leaves(alone[1]), strict=True):
        assert np.linalg.norm(a - b) <= 1e-5 * np.linalg.norm(b)


EXPERTS = [(layers, kind) for layers in (1, 2) for kind in KINDS]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layers", "kind"), grids.cases(EXPERTS, (1, "adafactor"), (2, "adafactor"), (2, "adamw"), (2, "lamb"), (2, "muon"))
)
def test_stacked_experts_are_updated_as_separate_matrices(kind, layers):
    """[expert, in, out] and [layers, expert, in, out]; a router's bias is one vector over the experts."""
    stacks = ("layers", "expert")[2 - layers :]
    axes = {"up": (*stacks, "embed", "mlp"), "bias": (*stacks, "mlp"), "router": (*stacks[:-1], "expert")}
    sizes, steps = (2, 3)[2 - layers :], range(4)
    shapes = {"up": (*sizes, 128, 130), "bias": (*sizes, 130), "router": sizes}
    rng = np.random.default_rng(0)
    trees = [{name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()} for _ in steps]
    for tree in trees:  # each matrix has a scale of its own, so that norms over several would show
        scales = 10.0 ** np.arange(np.prod(sizes), dtype=np.float32).reshape(sizes)
        tree.update(up=tree["up"] * scales[..., None, None], bias=tree["bias"] * scales[..., None])

    def separate(tree):
        flat = {f"{name} {i}": tree[name][i] for name in ("up", "bias") for i in np.ndindex(sizes)}
        return flat | {f"router {i}": tree["router"][i] for i in np.ndindex(sizes[:-1])}

    own = {name: axes[name.split()[0]][len(stacks) - name.startswith("router") :] for name in separate(trees[0])}
    config = _config(kind, learning_rate=0.01, weight_decay=0.1)

    def both(params, gradients):
        alone = _steps(config, own, separate(params), [separate(tree) for tree in gradients])
        return _steps(config, axes, params, gradients), alone

    stacked, alone = _run(both, trees[0], trees[1:])
    for a, b in zip(stacked, alone, strict=True):
        a = separate(a)
        for name in b:
            np.testing.assert_allclose(a[name], b[name], rtol=1e-5, atol=1e-5 * np.abs(b[name]).max(), err_msg=name)


def test_the_state_of_experts_keeps_their_axis():
    axes = {"up": ("layers", "expert", "embed", "mlp"), "norm": ("layers", "norm"), "router": ("embed", "expert")}
    shapes = {"up": (2, 3, 128, 256), "norm": (2, 128), "router": (128, 3)}
    params = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in shapes.items()}
    tx = optimizers.make(_config("adafactor"), optax.constant_schedule(1.0), axes)
    (names,) = optimizers.state_axes(tx, params, axes)
    experts = names["stack_2_experts_3"][0]
    assert experts.count == ("layers", "expert")
    assert (experts.v_row, experts.v_col) == (
        {"up": ("layers", "expert", "embed")},
        {"up": ("layers", "expert", "mlp")},
    )
    assert set(names) == {"stack_2_experts_3", "stack_2", "unstacked"}


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
def test_only_matrices_are_decayed_stacked_or_not(kind):
    """But for `decay_all`, fairseq's way."""
    params, zeros = _random(0), jax.tree.map(np.zeros_like, _random(0))

    def decayed(params, zeros):
        found = []
        for decay_all in (False, True):
            config = _config(kind=kind, weight_decay=0.1, decay_all=decay_all)
            tx = optimizers.make(config, optax.constant_schedule(0.5), AXES)
            found.append(tx.update(zeros, tx.init(params), params)[0])
        return found

    found = _run(decayed, params, zeros)
    share = 0.5 if kind == "lamb" else 0.05  # of LAMB the decay is the whole update, and takes the parameter's length
    leaves = jax.tree.leaves(AXES, is_leaf=optimizers.is_axes), *map(jax.tree.leaves, (*found, params))
    for axes, update, of_all, param in zip(*leaves, strict=True):
        np.testing.assert_allclose(of_all, -share * param, rtol=1e-5)
        if len(axes) - ("layers" in axes) < 2:
            assert not update.any(), axes
        else:
            np.testing.assert_allclose(update, -share * param, rtol=1e-5)


@pytest.mark.gpu
def test_adagrad_by_hand():
    """TensorFlow's, whose accumulator has a first value and no ε beside it."""
    tx = optimizers.make(_config("adagrad", initial_accumulator=0.25), optax.constant_schedule(0.5), {"w": ("norm",)})
    params, gradients = {"w": np.zeros(2, np.float32)}, np.array([[3.0, 0.0], [-1.0, 2.0]], np.float32)
    state, updates = tx.init(params), []
    for gradient in gradients:
        update, state = tx.update({"w": gradient}, state, params)
        updates.append(update["w"])
    accumulated = 0.25 + np.cumsum(gradients**2, axis=0)
    np.testing.assert_allclose(updates, -0.5 * gradients / np.sqrt(accumulated), rtol=1e-6)


@pytest.mark.parametrize(
    ("kind", "key"),
    [(kind, "b1") for kind in ("adafactor", "adamax", "adamw", "lamb", "muon")]
    + [(kind, "b2") for kind in ("adamw", "lamb", "muon")],
)
def test_an_average_decays(kind, key):
    """At 1 it stays zero: with the correction of its bias 0/0, and all weights NaN after a step."""
    with pytest.raises(ValueError, match=rf"{key}\s+Input should be less than 1"):
        _config(kind, **{key: 1.0})
    _config("adafactor", b2=1.0)  # an exponent


def test_adamw_takes_a_first_step_of_the_learning_rate():
    config = _config(learning_rate=0.1)
    _, updates = _run(lambda *given: _steps(config, AXES, *given), _random(0), [_random(1)])
    for update in jax.tree.leaves(updates):
        np.testing.assert_allclose(np.abs(update), 0.1, rtol=1e-3)


@pytest.mark.gpu
def test_adam_without_bias_correction_is_berts():
    config = _config(bias_correction=False, weight_decay=0.01, learning_rate=0.1)
    axes = {"kernel": ("embed", "mlp"), "bias": ("mlp",)}
    params = {"kernel": np.float32([[1.0, -2.0]]), "bias": np.float32([3.0, 0.5])}
    gradients = [{"kernel": np.float32([[0.5, 0.1]]), "bias": np.float32([-0.2, 0.3])}] * 3
    moved, _ = _run(lambda *given: _steps(config, axes, *given), params, gradients)
    for name, decay in (("kernel", 0.01), ("bias", 0.0)):
        x, g, m, v = params[name], gradients[0][name], 0.0, 0.0
        for step in range(3):
            m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
            x = x - 0.1 * (1 - step / 10) * (m / (np.sqrt(v) + 1e-6) + decay * x)
        np.testing.assert_allclose(moved[name], x, rtol=1e-5)


@pytest.mark.gpu
def test_lamb_without_correction_and_with_exclusions_is_alberts():
    """As google-research/albert's lamb_optimizer.py; a bias that begins at 0 grows as Adam's would."""
    config = _config("lamb", bias_correction=False, exclude=("*/bias", "scale"), weight_decay=0.01, learning_rate=0.1)
    axes = {"a": {"kernel": ("layers", "embed", "mlp"), "bias": ("layers", "mlp")}, "scale": ("norm",)}
    kernel = np.arange(12, dtype=np.float32).reshape(2, 2, 3) / 7
    params = {"a": {"kernel": kernel, "bias": np.zeros((2, 3), np.float32)}, "scale": np.ones(4, np.float32)}
    waves = [lambda x, i=i: np.cos(np.arange(x.size, dtype=np.float32) + i).reshape(x.shape) for i in range(3)]
    gradients = [jax.tree.map(wave, params) for wave in waves]
    moved, _ = _run(lambda *given: _steps(config, axes, *given), params, gradients)

    def by_hand(x, grads, plain):
        m = v = 0.0
        for step, g in enumerate(grads):
            m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
            update = m / (np.sqrt(v) + 1e-6) + (0 if plain else 0.01 * x)
            norms = np.linalg.norm(x), np.linalg.norm(update)
            ratio = 1.0 if plain or 0 in norms else norms[0] / norms[1]
            x = x - ratio * 0.1 * (1 - step / 10) * update
        return x

    for layer in range(2):
        for name, plain in (("kernel", False), ("bias", True)):
            grads = [g["a"][name][layer] for g in gradients]
            expected = by_hand(params["a"][name][layer], grads, plain)
            np.testing.assert_allclose(moved["a"][name][layer], expected, rtol=1e-5)
    np.testing.assert_allclose(
        moved["scale"], by_hand(params["scale"], [g["scale"] for g in gradients], True), rtol=1e-5
    )
    with pytest.raises(UserError, match=r"optimizer.exclude: '\*/bais' matches no trained parameter"):
        optimizers.check(_config("lamb", exclude=("*/bais",)), axes)


@pytest.mark.gpu
def test_adafactor_by_hand():
    config = _config(kind="adafactor", learning_rate=1.0)
    param, gradient = np.random.default_rng(0).standard_normal((2, 2, 128, 160), np.float32)
    axes = {"w": ("layers", "embed", "mlp")}
    tx = optimizers.make(config, optax.constant_schedule(0.01), axes)
    updates, state = _run(lambda g, p: tx.update(g, tx.init(p), p), {"w": gradient}, {"w": param})
    for p, g, update in zip(param, gradient, updates["w"]):
        rows, columns = (g**2).mean(1), (g**2).mean(0)  # the first step's decay is 1 − 1^−0.8 = 0
        u = g / np.sqrt(np.outer(rows, columns) / rows.mean())
        u /= max(1.0, np.sqrt((u**2).mean()))
        np.testing.assert_allclose(update, -0.01 * np.sqrt((p**2).mean()) * u, rtol=1e-4, atol=1e-7)
    assert max(x.size for x in jax.tree.leaves(state)) == 2 * 160, "a factored state is small"


def test_adafactor_without_parameter_scale_takes_steps_of_the_learning_rate():
    config = _config(kind="adafactor", scale_by_parameter=False, learning_rate=0.3)
    _, updates = _run(lambda *given: _steps(config, AXES, *given), _random(0), [_random(1)])
    np.testing.assert_allclose(np.abs(updates["encoder"]["bias"]), 0.3, rtol=1e-3)


@pytest.mark.gpu
def test_muon_makes_matrices_orthogonal_and_leaves_tables_to_adam():
    config = _config(kind="muon", learning_rate=0.1, adam_learning_rate=0.001)
    _, updates = _run(lambda *given: _steps(config, AXES, *given), _random(0), [_random(1)])
    for matrix in [*updates["encoder"]["kernel"], *updates["decoder"]["kernel"], updates["final"]["kernel"]]:
        scale = 0.1 * max(1.0, matrix.shape[1] / matrix.shape[0]) ** 0.5
        singular = np.linalg.svd(matrix, compute_uv=False) / scale
        assert singular.min() > 0.3 and singular.max() < 1.5, "Newton-Schulz brings them near 1"
    for table in (updates["embedding"]["table"], updates["encoder"]["bias"], updates["final"]["scale"]):
        np.testing.assert_allclose(np.abs(table), 0.001, rtol=1e-3)


@pytest.mark.parametrize("rms", [None, 0.2])
def test_muon_scales_matrices_as_optax_does(rms):
    """By their shape (Keller Jordan), or to one root mean square (Moonlight)."""
    config = _config(kind="muon", learning_rate=0.1, weight_decay=0.1, consistent_rms=rms)
    theirs = optax.contrib.muon(0.1, weight_decay=0.1, consistent_rms=rms)
    params, gradients = ({"wide": x["final"]["kernel"], "tall": x["final"]["kernel"].T} for x in map(_random, (0, 1)))

    def updates(params, gradients):
        axes = {"wide": ("embed", "mlp"), "tall": ("mlp", "embed")}
        ours = optimizers.make(config, optax.constant_schedule(0.1), axes)
        return [tx.update(gradients, tx.init(params), params)[0] for tx in (ours, theirs)]

    found, wanted = _run(updates, params, gradients)
    for name in params:
        np.testing.assert_allclose(found[name], wanted[name], rtol=1e-5, atol=1e-7)


def test_muon_leaves_biases_of_heads_and_tables_of_characters_to_adam():
    """They are decayed nevertheless."""
    elmo = ELMoConfig(vocab_size=200, layers=1, embed_dim=16, cells=16, char_dim=4, filters=((1, 8),), highways=1)
    of_heads = {"content_bias", "position_bias", "type_bias"}
    for model, decayed in ((EVERY["xlnet"](), of_heads | {"types"}), (elmo, {"characters"})):
        axes = traverse_util.flatten_dict(Network(model.build()).logical_axes(), sep="/")
        matrices = {path.rpartition("/")[2] for path, names in axes.items() if optimizers.takes_muon(names)}
        assert all(name.endswith("kernel") for name in matrices), matrices
        mask = logical.decay_mask(axes)
        assert {path.rpartition("/")[2] for path in axes if mask[path]} >= decayed | matrices


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
def test_the_gradient_is_clipped_by_its_norm_over_everything(kind):
    gradients = [_random(seed) for seed in (1, 2)]
    norms = [np.sqrt(sum((x**2).sum() for x in jax.tree.leaves(g))) for g in gradients]
    clipped = [jax.tree.map(lambda x, n=n: x * 0.5 / n, g) for g, n in zip(gradients, norms)]
    config = {"kind": kind, "learning_rate": 0.01}

    def both(params, gradients, clipped):
        one = _steps(_config(**config, clip_norm=0.5), AXES, params, gradients)[0]
        return one, _steps(_config(**config), AXES, params, clipped)[0]

    a, b = _run(both, _random(0), gradients, clipped)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-6)


def test_parts_are_clipped_by_norms_of_their_own():
    config = _config("sgd", clip_norm=0.5, clip_separately=("encoder", "*/table"))
    params, gradient = _random(0), _random(1)
    tx = optimizers.make(config, optax.constant_schedule(1.0), AXES)
    updates = _run(lambda gradient, params: tx.update(gradient, tx.init(params), params)[0], gradient, params)
    for parts in (["encoder"], ["embedding"], ["decoder", "final"]):
        norm = np.sqrt(sum((x**2).sum() for part in parts for x in jax.tree.leaves(gradient[part])))
        for part in parts:
            for update, x in zip(jax.tree.leaves(updates[part]), jax.tree.leaves(gradient[part]), strict=True):
                np.testing.assert_allclose(update, -x * 0.5 / norm, rtol=1e-5)
    axes = optimizers.state_axes(tx, jax.eval_shape(lambda: params), AXES)
    assert axes == jax.tree.map(lambda _: (), tx.init(params))
    with pytest.raises(UserError, match=r"optimizer\.clip_separately: wants optimizer\.clip_norm"):
        optimizers.check(_config("sgd", clip_separately=("encoder",)), AXES)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("momentum", [{}, {"b1": 0.9}])
def test_the_state_has_the_axes_of_its_parameters(kind, momentum):
    momentum = {} if kind == "adagrad" else momentum  # it has none
    config = _config(kind, **momentum, weight_decay=0.1, clip_norm=1.0)
    tx = optimizers.make(config, optax.constant_schedule(1.0), AXES)
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), _random(0))
    state = jax.eval_shape(tx.init, shapes)
    axes = optimizers.state_axes(tx, shapes, AXES)
    sizes = {"vocab": 160, "layers": 3}  # axes whose size tells them apart in AXES
    moments = 0
    for leaf, names in zip(jax.tree.leaves(state), jax.tree.leaves(axes, is_leaf=optimizers.is_axes), strict=True):
        assert len(names) == leaf.ndim
        assert all(size in (sizes[n], 2) for n, size in zip(names, leaf.shape) if n in sizes)
        moments += leaf.shape == (3, 8, 16) and names == ("layers", "embed", "mlp")
        if leaf.size > 160:  # nothing of size is left whole
            assert None not in names
    one, two = dict.fromkeys(("adagrad", "lion", "muon"), 1), dict.fromkeys(("adamw", "adamax", "lamb"), 2)
    of_kind = one | two | {"adafactor": 2 if momentum else 1}
    assert moments == of_kind.get(kind, 1 if momentum else 0)


def test_rows_and_columns_keep_their_axes():
    config = _config(kind="adafactor")
    axes = {"wide": ("layers", "embed", "mlp"), "tall": ("mlp", "embed"), "square": ("embed", "heads"), "b": ("mlp",)}
    shapes = {"wide": (2, 128, 256), "tall": (256, 128), "square": (128, 128), "b": (256,)}
    params = {k: jax.ShapeDtypeStruct(s, jnp.float32) for k, s in shapes.items()}
    tx = optimizers.make(config, optax.constant_schedule(1.0), axes)
    state, names = jax.eval_shape(tx.init, params), optimizers.state_axes(tx, params, axes)
    factored, stacked = names[0]["unstacked"][0], names[0]["stack_2"][0]
    assert factored.v_row == {"tall": ("embed",), "square": ("embed",), "b": (None,)}
    assert factored.v_col == {"tall": ("mlp",), "square": ("heads",), "b": (None,)}
    assert factored.v == {"tall": (None,), "square": (None,), "b": ("mlp",)}
    assert stacked.count == ("layers",)
    assert (stacked.v_row, stacked.v_col) == ({"wide": ("layers", "embed")}, {"wide": ("layers", "mlp")})
    assert state[0]["stack_2"][0].v_row["wide"].shape == (2, 128)


def test_examples_in_the_docstrings():
    assert [doctest.testmod(module).failed for module in (optimizers, groups, logical)] == [0, 0, 0]
