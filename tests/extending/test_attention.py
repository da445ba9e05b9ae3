"""Steps of attention from outside: QK-norm in Llama is a subclass of one page."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpt import config as configs
from jaxpt.errors import UserError
from jaxpt.models import llama as llama_module
from jaxpt.models.attention import Attention
from jaxpt.models.mask import Mask
from tests import families
from tests.extending.outside.qk_norm import QKNormAttention
from tests.models.helpers import drawn

KIND = "tests.extending.outside.qk_norm"


def llama(kind):
    tree = families.tree("gpt2")
    sizes = {"layers": 2, "embed_dim": 32, "heads": 4, "kv_heads": 2, "mlp_dim": 64, "max_positions": 64}
    return configs.build({**tree, "model": {"kind": kind, "vocab_size": tree["model"]["vocab_size"], **sizes}})


def paths(params):
    return {jax.tree_util.keystr(path): leaf.shape for path, leaf in jax.tree_util.tree_leaves_with_path(params)}


def test_it_adds_a_norm_of_queries_and_keys_to_each_layer():
    of_llama, of_qk_norm = (paths(drawn(families.network(llama(kind)))) for kind in ("llama", KIND))
    added = {path.replace("']['", "/").strip("[']"): of_qk_norm[path] for path in of_qk_norm.keys() - of_llama.keys()}
    assert {path.split("attention/")[1] for path in added} == {"query_norm/scale", "key_norm/scale"}
    assert set(added.values()) == {(2, 8)}, "layers, width of a head"
    assert of_llama.items() <= of_qk_norm.items()


@pytest.mark.parametrize("factor", [10.0, 0.1])
def test_scores_do_not_depend_on_the_size_of_what_is_projected(factor):
    """Of the normalised attention alone, with values that are not scaled along."""
    x = jnp.asarray(np.random.default_rng(0).normal(size=(2, 6, 16)), jnp.float32)

    def outputs(cls, size):
        class Scaled(cls):
            def project(self, name, x_BxLxD, heads, init):
                return super().project(name, x_BxLxD, heads, init) * (1.0 if name == "value" else size)

        init = jax.nn.initializers.normal(0.5)
        attention = Scaled(2, 8, jnp.float32, init, init, use_bias=False)
        call = functools.partial(attention.apply, mask=Mask(causal=True))
        return call(attention.init(jax.random.key(0), x, Mask(causal=True)), x)[0]

    np.testing.assert_allclose(outputs(QKNormAttention, factor), outputs(QKNormAttention, 1.0), rtol=1e-3, atol=1e-4)
    assert float(jnp.abs(outputs(Attention, factor) - outputs(Attention, 1.0)).max()) > 0.1


def test_a_step_whose_name_is_misspelt_is_refused():
    """Attention would train as if it were not there."""
    for base, wrong, right in (
        (Attention, "normalise", "normalize"), (Attention, "scores", "score"),
        (llama_module.Block, "attention_clas", "attention_class"),
    ):  # fmt: skip
        words = f"class Mine: {wrong} is never used; did you mean {right}? (else call it _{wrong})"
        with pytest.raises(TypeError, match=re.escape(words)):
            type("Mine", (base,), {wrong: lambda self: None})
        type("Mine", (base,), dict.fromkeys((wrong, right, f"_{wrong}", "helper"), lambda self: None))


@pytest.mark.parametrize(
    ("step", "returned", "of", "found"),
    [
        ("normalize", lambda name, x: x.mean(-1), " of the query", "one of the shape [2, 6, 2]"),
        ("normalize", lambda name, x: None if name == "key" else x, " of the key", "NoneType"),
        ("project", lambda name, x, *rest: x, " of the query", "one of the shape [2, 6, 16]"),
        ("score", lambda q, *rest: q.reshape(2, 6, -1), "", "one of the shape [2, 6, 16]"),
    ],
)
def test_what_a_step_returns_is_looked_at(step, returned, of, found):
    """Elsewhere JAX would name a place of jaxpt's."""
    mine = type("Mine", (Attention,), {step: lambda self, *arguments: returned(*arguments)})
    init = jax.nn.initializers.normal(0.5)
    attention, x = mine(2, 8, jnp.float32, init, init), jax.ShapeDtypeStruct((2, 6, 16), jnp.float32)
    with pytest.raises(UserError) as error:
        jax.eval_shape(lambda x: attention.init(jax.random.key(0), x, Mask(causal=True)), x)
    wanted = "must return an array of the shape [2, 6, 2, 8], it returns"
    assert str(error.value) == f"{__name__}.Mine.{step}{of} {wanted} {found}"


@pytest.mark.slow
def test_it_trains_and_resumes(lab):
    model = {"kind": KIND, "vocab_size": 300, "layers": 1, "embed_dim": 32, "heads": 4, "kv_heads": 2, "mlp_dim": 64}
    lab.assert_resumes(model={**model, "max_positions": 64})
