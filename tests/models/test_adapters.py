"""Adapters in blocks: every architecture has their places, none are there by default, fresh ones change little."""

from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import traverse_util

from jaxpt.config import AdapterConfig
from jaxpt.errors import UserError
from jaxpt.models.adapters.bottleneck import BottleneckConfig
from jaxpt.models.awd_lstm import AWDLSTMConfig
from jaxpt.models.elmo import ELMoConfig
from jaxpt.models.network import Network
from jaxpt.models.word_vectors import WordVectorsConfig
from tests import families, grids
from tests.models.helpers import EVERY, OF_THEIR_OWN, drawn
from tests.train.test_trainable import flat, steps

PARTS = {"attention", "feed_forward"}


def made(name, adapter=None):
    config = EVERY[name](adapter=adapter) if adapter else EVERY[name]()
    model = config.build()
    return model, {
        path: x.shape for path, x in traverse_util.flatten_dict(Network(model).shapes()["model"], sep="/").items()
    }


@pytest.mark.parametrize("name", grids.cases(EVERY, *OF_THEIR_OWN))
def test_every_block_has_the_places(name):
    adapter = BottleneckConfig(dim=5)
    plain, adapted = made(name)[1], made(name, adapter)[1]
    new = {path: shape for path, shape in adapted.items() if path not in plain}
    assert plain.items() <= adapted.items() and not any("_adapter" in path for path in plain)
    attentions = {path.rpartition("/attention/")[0] for path in plain if "/attention/" in path}
    for block in attentions:
        places = {path.removeprefix(f"{block}/").partition("/")[0] for path in new if path.startswith(f"{block}/")}
        wanted = {f"{part}_adapter" for part in PARTS}
        if any(path.startswith(f"{block}/cross_attention/") for path in plain):
            wanted.add("cross_attention_adapter")
        assert places == wanted
    assert {path.split("/")[-3].removesuffix("_adapter") for path in new} <= PARTS | {"cross_attention"}
    assert {shape[-1] for path, shape in new.items() if path.endswith("down/bias")} == {5}


@pytest.mark.slow
@pytest.mark.parametrize("name", grids.cases(["bert", "gpt2"], "bert"))
def test_fresh_ones_change_next_to_nothing_and_then_compute_the_formula(name):
    adapter = BottleneckConfig(dim=5, activation="relu")
    (plain, _), (adapted, _) = made(name), made(name, adapter)
    params = jax.jit(lambda key: Network(adapted).init(key)["model"])(jax.random.key(0))
    tokens = jnp.arange(16).reshape(2, 8)

    @jax.jit
    def run(params, zero):
        def hidden(model, params):
            bound = Network(model).bind({"model": params})
            return (bound.encode if name == "bert" else bound.decode)(tokens).hidden

        return hidden(plain, params), hidden(adapted, params), hidden(adapted, zero)

    zero = jax.tree_util.tree_map_with_path(
        lambda path, x: np.zeros_like(x) if "_adapter" in jax.tree_util.keystr(path) else x, params
    )
    old, new, zeroed = run(params, zero)
    assert 0 < np.abs(old - new).max() < 1e-3
    np.testing.assert_array_equal(zeroed, old)
    y = np.random.default_rng(1).standard_normal((2, 3, 24)).astype(np.float32)
    module = adapter.build(jnp.float32, "x")
    boxed = jax.eval_shape(module.init, jax.random.key(2), y)["params"]
    rng, is_box = np.random.default_rng(2), lambda x: hasattr(x, "value")
    weights = jax.tree.map(lambda x: rng.normal(0.3, 0.1, x.value.shape).astype(np.float32), boxed, is_leaf=is_box)
    h = np.maximum(y @ weights["down"]["kernel"] + weights["down"]["bias"], 0)
    by_hand = y + h @ weights["up"]["kernel"] + weights["up"]["bias"]
    np.testing.assert_allclose(module.apply({"params": weights}, y), by_hand, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["bert", pytest.param("gpt2", marks=pytest.mark.slow)])
def test_they_stand_after_the_projection_and_before_the_residual(name):
    """As in the paper's figure 2: one that adds b to its input is a bias b of the projection before it."""
    (plain, _), (adapted, _) = made(name), made(name, BottleneckConfig(dim=5))
    params = flat(drawn(adapted))
    zero = {path: np.zeros_like(x) if "_adapter/" in path else x for path, x in params.items()}
    without = {path: x for path, x in params.items() if "_adapter/" not in path}
    pairs = {}
    for part, last in (("attention", "attention/output/bias"), ("feed_forward", "feed_forward/down/bias")):
        up = next(path for path in params if path.endswith(f"{part}_adapter/up/bias"))
        bias = up.replace(f"{part}_adapter/up/bias", last)
        b = np.random.default_rng(1).standard_normal(params[up].shape).astype(np.float32)
        pairs[part] = {**zero, up: b}, {**without, bias: without[bias] + b}

    @jax.jit
    def run(pairs, without):
        def hidden(model, flat_params):
            bound = Network(model).bind({"model": traverse_util.unflatten_dict(flat_params, sep="/")})
            return (bound.encode if name == "bert" else bound.decode)(np.arange(16).reshape(2, 8)).hidden

        both = {part: (hidden(adapted, one), hidden(plain, other)) for part, (one, other) in pairs.items()}
        return both, hidden(plain, without)

    both, neither = run(pairs, without)
    assert both.keys() == PARTS
    for one, two in both.values():
        np.testing.assert_allclose(one, two, rtol=1e-5, atol=1e-5)
        assert np.abs(one - neither).max() > 0.1


@pytest.mark.slow
def test_they_are_trained_alone():
    """Houlsby's recipe: adapters, all layer norms and the head, as in the released code."""
    given = families.config(
        "bert", model={"adapter": {"dim": 4}}, train={"trainable": ["*_adapter", "*norm*", "heads"]}
    )
    setup, before, after, _ = steps(given)
    old, new = flat(before.params), flat(after.params)
    for path in old:
        trained = "_adapter/" in path or "_norm/" in path or path.startswith("heads/")
        assert (path in setup.trained) == trained, path
        assert (old[path].tobytes() != new[path].tobytes()) == trained, path
    moments = [jax.tree_util.keystr(p) for p, _ in jax.tree_util.tree_leaves_with_path(after.opt_state)]
    assert sum(".mu" in name for name in moments) == len(setup.trained) < len(old) - 10


OWN = '''
from typing import Literal
import flax.linen as nn
from jaxpt.config import AdapterConfig
from jaxpt.models.layers import param


class Scale(AdapterConfig):
    """One factor for each feature (https://arxiv.org/abs/2205.05638)."""

    kind: Literal["own_lab.scale"] = "own_lab.scale"

    def build(self, dtype, name):
        return Scaled(name=name)


class Scaled(nn.Module):
    @nn.compact
    def __call__(self, y):
        return y * param(self, "scale", nn.initializers.ones, y.shape[-1:], ("norm",)).astype(y.dtype)
'''


@pytest.mark.slow
def test_a_kind_of_ones_own(tmp_path, monkeypatch):
    (tmp_path / "own_lab").mkdir()
    (tmp_path / "own_lab" / "scale.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    given = families.config(
        "t5", model={"adapter": {"kind": "own_lab.scale"}}, train={"trainable": ["model/decoder[1:]/*_adapter"]}
    )
    setup, _, after, _ = steps(given)
    parts = ("attention", "cross_attention", "feed_forward")
    names = {f"model/decoder/segment_0/layers_1-1/block_0/{part}_adapter/scale" for part in parts}
    assert set(setup.trained) == names and all((flat(after.params)[path] != 1).any() for path in names)


class Shortening(AdapterConfig):
    """Gives the first token alone, which would be added to all."""

    kind: Literal["own_lab.shortening"] = "own_lab.shortening"

    def build(self, dtype, name):
        return lambda y: y[:, :1]


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_another_shape_is_refused(name):
    model = EVERY[name]().model_copy(update={"adapter": Shortening()}).build()
    method = "encode" if name == "bert" else "decode"
    words = r"model\.adapter: own_lab\.shortening must return an array \[2, 8, \d+\], .* returns an array \[2, 1, \d+\]"
    with pytest.raises(UserError, match=words):
        jax.eval_shape(lambda tokens: model.init(jax.random.key(0), tokens, method=method), jnp.zeros((2, 8), int))


def test_wrong_kinds_are_named():
    with pytest.raises(UserError, match=r"model\.adapter\.kind: 'bottelneck' is none of bottleneck"):
        families.config("bert", model={"adapter": {"kind": "bottelneck"}})
    with pytest.raises(UserError, match=r"model\.adapter"):
        families.config("bert", model={"adapter": {"dim": 0}})
    with pytest.raises(UserError, match=r"model\.adapter: wants null, got"):
        families.config("awd_lstm", model={"adapter": {"kind": "bottleneck", "dim": 4}})


@pytest.mark.parametrize("make", [AWDLSTMConfig, ELMoConfig, WordVectorsConfig])
def test_models_without_the_places_have_none(make):
    assert make.model_fields["adapter"].annotation is type(None)
