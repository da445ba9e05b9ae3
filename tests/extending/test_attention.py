"""Steps of attention from outside: QK-norm in Llama is a subclass of one page."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpt import config as configs
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


@pytest.mark.slow
def test_it_trains_and_resumes(lab):
    model = {"kind": KIND, "vocab_size": 300, "layers": 1, "embed_dim": 32, "heads": 4, "kv_heads": 2, "mlp_dim": 64}
    lab.assert_resumes(model={**model, "max_positions": 64})
