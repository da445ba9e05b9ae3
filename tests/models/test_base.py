"""What holds for every model: counts, axes, the loss at the start, rematerialisation, types."""

import functools
import re
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import yaml

from jaxpt.config import MeshConfig, ModelConfig, resolve
from jaxpt.models import base
from jaxpt.models.layers import PARAMETER_AXES
from jaxpt.parallel import mesh as meshes
from jaxpt.parallel import rules
from tests.models.helpers import ALL, V, apply, made, tokens

SIZES = sorted((Path(__file__).parents[2] / "configs" / "models").glob("*.yaml"))
PUBLISHED = {
    "bert_tiny": 4_433_468, "bert_base": 110_106_428, "bert_large": 336_226_108,
    "gpt2_124m": 124_439_808, "gpt2_355m": 354_823_168, "gpt2_774m": 774_030_080, "gpt2_1558m": 1_557_611_200,
    "t5_small": 60_506_624, "t5_base": 222_903_552, "t5_large": 737_668_096, "t5_3b": 2_851_598_336,
    "t5_11b": 11_307_321_344, "t5_1_1_small": 76_961_152, "t5_1_1_base": 247_577_856,
    "t5_1_1_large": 783_150_080, "t5_1_1_xl": 2_849_757_184, "t5_1_1_xxl": 11_135_332_352,
}  # fmt: skip
WITHOUT_HEADS = {"bert_tiny": 4_385_920, "bert_base": 109_482_240, "bert_large": 335_141_888}


FAMILIES = ("bert", "gpt2", "t5")


def scores(model, variables, ids):
    out = model.apply(variables, ids)
    return out[0] if isinstance(out, tuple) else out


compiled_scores = functools.cache(lambda model: jax.jit(functools.partial(scores, model)))


def test_every_size_is_listed():
    assert {path.stem for path in SIZES} == set(PUBLISHED)


@pytest.mark.parametrize("path", SIZES, ids=lambda path: path.stem)
def test_parameter_counts_are_those_published(path):
    text = path.read_text()
    fields = yaml.safe_load(text)["model"]
    model = resolve(fields["kind"], "jaxpt.models", ModelConfig)(**fields).build()
    assert base.count_params(model) == PUBLISHED[path.stem]
    named = [int(n.replace(",", "")) for n in re.findall(r"\d{1,3}(?:,\d{3})+", text)]
    assert named[0] == PUBLISHED[path.stem]  # the header says the same
    if path.stem in WITHOUT_HEADS:
        assert base.count_params(model, exclude=("mlm_head", "next_sentence_head")) == WITHOUT_HEADS[path.stem]


@pytest.mark.parametrize("name", ALL)
def test_every_parameter_has_known_axes(name):
    model, variables = made(name)
    axes = base.logical_axes(model)
    paths = jax.tree_util.tree_leaves_with_path(variables["params"])
    for path, value in paths:
        names = axes
        for key in path:
            names = names[key.key]
        assert len(names) == value.ndim and set(names) <= set(PARAMETER_AXES) and len(set(names)) == len(names), path
        stacked = any(key.key.startswith("segment_") for key in path)
        assert (names[0] == "layers") == stacked, path
        for axis, size in zip(names, value.shape):
            assert axis != "vocab" or size == 256


@pytest.mark.parametrize("name", ALL)
def test_init_is_plain_float32_and_as_announced(name):
    model = ALL[name]().build()
    params = jax.jit(lambda key: base.init(model, key))(jax.random.key(1))
    assert not any(isinstance(x, nn.meta.AxisMetadata) for x in jax.tree.leaves(params))
    announced = base.shapes(model)
    assert jax.tree.map(lambda x: (x.shape, x.dtype), params) == jax.tree.map(lambda x: (x.shape, x.dtype), announced)
    assert {x.dtype for x in jax.tree.leaves(params)} == {jnp.dtype("float32")}


@pytest.mark.parametrize("name", ALL)
def test_loss_at_the_start(name):
    options = {"vocab_size": 1000, "embed_dim": 64, "heads": 4, "mlp_dim": 128} | (
        {"head_dim": 16} if name.startswith("t5") else {"max_positions": 64}
    )
    model = ALL[name](**options).build()
    variables = {"params": jax.jit(lambda key: base.init(model, key))(jax.random.key(0))}
    rng = np.random.default_rng(0)
    ids, labels = rng.integers(0, 1000, (8, 64)), rng.integers(0, 1000, (8, 64))
    logits = jax.jit(lambda v, x: scores(model, v, x))(variables, ids)
    loss = -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[..., None], -1).mean()
    want = np.log(1000) + (0.5 if name.startswith("t5") else 0)
    np.testing.assert_allclose(loss, want, rtol=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_remat_changes_nothing(name):
    ids = tokens(2, 8)

    def run(remat):
        _, variables = made(name)
        model = ALL[name](remat=remat).build()
        return jax.jit(jax.value_and_grad(lambda v: jnp.square(scores(model, v, ids)).mean()))(variables)

    plain = run("none")
    for policy in ("full", "dots", "names"):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), plain, run(policy))


@pytest.mark.parametrize("name", ALL)
def test_bfloat16_computation_keeps_float32_parameters(name):
    model, variables = made(name)
    ids = tokens(2, 8)
    low = ALL[name](dtype="bfloat16").build()
    method = "decode" if name == "gpt2" else "encode"
    assert jax.eval_shape(lambda v: low.apply(v, ids, method=method), variables).dtype == jnp.bfloat16

    def loss(v):
        logits = scores(low, v, ids)
        return jnp.square(logits).mean(), logits

    (value, logits), gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))(variables)
    assert {x.dtype for x in jax.tree.leaves(gradient)} == {jnp.dtype("float32")}
    assert logits.dtype == jnp.float32 and np.isfinite(value)
    exact = np.asarray(compiled_scores(model)(variables, ids))
    assert np.abs(logits - exact).max() < 0.1 * np.abs(exact).max()


@pytest.mark.parametrize("name", ALL)
def test_every_parameter_has_a_gradient(name):
    """Nothing is left out of the computation. A key's bias shifts all scores of a query alike: no gradient."""
    model, variables = made(name)

    def total(v):
        return sum(jnp.square(x).mean() for x in jax.tree.leaves(model.apply(v, tokens(2, 8))))

    gradient = jax.jit(jax.grad(total))(variables)["params"]
    for path, g in jax.tree_util.tree_leaves_with_path(gradient):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        assert name.endswith("key/bias") or float(jnp.abs(g).max()) > 0, name


@pytest.mark.parametrize("name", ALL)
def test_dropout_is_off_without_keys_and_on_with_them(name):
    model, variables = made(name, dropout=0.5)
    plain, _ = made(name)
    ids, method = tokens(1, 8), "decode" if name == "gpt2" else "encode"

    @jax.jit
    def noisy(key):
        return model.apply(variables, ids, method=method, deterministic=False, rngs={"dropout": key})

    np.testing.assert_array_equal(apply(model, variables, method, ids), apply(plain, variables, method, ids))
    first, again, other = (np.asarray(noisy(jax.random.key(k))) for k in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 0.01


def test_padded_vocabulary_never_shows():
    model, variables = made("t5")
    assert jax.eval_shape(lambda v: scores(model, v, tokens(1, 4)), variables).shape[-1] == V
    hidden = np.ones((2, 3, 24), np.float32)
    padded = np.asarray(jax.jit(lambda v: model.apply(v, hidden, padded=True, method="logits"))(variables))
    assert padded.shape == (2, 3, 256) and padded[..., V:].max() < -1e8
    np.testing.assert_array_equal(padded[..., :V], apply(model, variables, "logits", hidden))


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_a_mesh_changes_nothing_and_embeddings_are_not_gathered_whole(name):
    model = ALL[name](heads=2).build()
    ids = tokens(8, 8)
    mesh = meshes.make(MeshConfig(data=2, fsdp=2, tensor=2))
    params = jax.jit(lambda key: base.init(model, key))(jax.random.key(0))

    def run(params, ids):
        return jnp.square(scores(model, {"params": params}, ids)).mean()

    want = jax.jit(run)(params, ids)
    placed = jax.device_put(params, rules.shardings(base.logical_axes(model), base.shapes(model), mesh))
    with meshes.use(mesh):
        again = jax.jit(lambda key: base.init(model, key))(jax.random.key(0))
        rows = jax.device_put(ids, rules.batch_sharding(mesh))
        compiled = jax.jit(run).lower(placed, rows).compile()
        got = compiled(placed, rows)
    jax.tree.map(np.testing.assert_array_equal, params, again)
    np.testing.assert_allclose(got, want, rtol=1e-5)
    # No device ever holds the hidden states of the whole batch of 8 × 8 tokens.
    assert not re.findall(r"= f32\[8,8,\d+\]\S* all-gather", compiled.as_text())
