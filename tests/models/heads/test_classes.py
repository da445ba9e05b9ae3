"""The heads of fine-tuning against their formula in NumPy, for each architecture; where they drop out."""

import jax
import numpy as np
import pytest

from jaxpt.config import HEAD_NAMES
from jaxpt.models.heads import classes
from jaxpt.models.layers import ACTIVATIONS, PARAMETER_AXES
from jaxpt.models.network import Network
from tests import grids
from tests.models.heads.test_heads import D, bound, dense, hidden, norm
from tests.models.helpers import EVERY

NAMES = [name for name in EVERY if name not in ("t5_old", "t5_shared", "umt5", "deberta_v2", "mbart", "mistral")]
POSITIONS = {"encoder": "first", "decoder": "last", "encoder_decoder": "eos"}


@pytest.mark.gpu
@pytest.mark.parametrize("name", grids.cases(["bert", "distilbert", "gpt2", "modernbert"], "bert", "modernbert"))
def test_logits_are_their_formula(name):
    config = EVERY[name](layers=3 if name == "modernbert" else 1)
    for head in HEAD_NAMES:
        options = config.task_head(head)
        outputs = classes.OUTPUTS.get(head, 3)
        heads = classes.declare(config, head, outputs)
        model, params = bound(config, heads)
        p, x = params["heads"], hidden(2, 3)
        want = x
        if options.pooler is not None:
            want = np.asarray(ACTIVATIONS[options.pooler.activation](dense(x, p["pooler"]["dense"])))
            want = norm(want, p["pooler"]["norm"], config.epsilon) if "norm" in p["pooler"] else want
        want = dense(want, p[head]["dense"])
        got = jax.jit(lambda x, model=model, head=head: classes.apply(model, head, x))(x)
        assert got.shape == (2, 3, outputs) and got.dtype == np.float32
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
        axes = Network(config.build(), heads).logical_axes()["heads"]
        axes = jax.tree.leaves(axes, is_leaf=lambda x: isinstance(x, tuple))
        assert all(set(names) <= set(PARAMETER_AXES) for names in axes)


@pytest.mark.parametrize("name", NAMES)
def test_where_a_text_is_read(name):
    """As the classes of transformers do: whole texts at one place, tokens at each."""
    config = EVERY[name]()
    own = {"xlnet": "last", "eurobert": "late"}.get(name, POSITIONS[config.family])
    assert [config.task_head(head).position for head in HEAD_NAMES] == [own, "each", "each", own]
    stacks = {config.task_head(head).stack for head in HEAD_NAMES}
    assert stacks == (
        {"encoder", "decoder"} if name == "t5" else {"encoder" if config.family == "encoder" else "decoder"}
    )


def test_modernbert_may_take_the_mean():
    config = EVERY["modernbert"](pooling="mean")
    assert config.task_head("classes").position == "mean" and config.task_head("tags").position == "each"


def test_t5_may_take_the_mean_of_the_encoder():
    config = EVERY["t5"](pooling="mean")
    assert {head: config.task_head(head).position for head in HEAD_NAMES} == {
        "classes": "mean", "tags": "each", "span": "each", "choice": "mean",
    }  # fmt: skip
    assert [config.task_head(head).stack for head in ("classes", "choice", "tags")] == ["encoder"] * 3


@pytest.mark.parametrize(
    "name, head, rates",
    [
        ("bert", "classes", (0, 0.3)), ("bert", "tags", (None, 0.3)), ("bert", "span", (None, 0)),
        ("roberta", "classes", (0.3, 0.3)), ("roberta", "choice", (0, 0.3)),
        ("distilbert", "classes", (0, 0.3)), ("distilbert", "span", (None, 0.3)),
        ("electra", "classes", (0.3, 0.3)), ("electra", "choice", (0, 0.3)), ("deberta", "classes", (0, 0.3)),
        ("xlnet", "classes", (0, 0.3)), ("xlnet", "tags", (None, 0)), ("modernbert", "span", (0, 0.3)),
        ("gpt2", "classes", (None, 0)), ("gpt2", "tags", (None, 0.3)), ("bart", "classes", (0.3, 0.3)),
        ("bart", "span", (None, 0)), ("t5", "classes", (0.3, 0.3)),
    ],
)  # fmt: skip
def test_dropout_is_the_models_where_transformers_has_it(name, head, rates):
    config = EVERY[name](dropout=0.3)

    def found(**more):
        heads = classes.declare(config, head, 2, **more)
        return tuple(heads[n].module.dropout if n in heads else None for n in ("pooler", head))

    assert found() == rates
    assert found(dropout=0.0) == tuple(None if rate is None else 0 for rate in rates)
    assert found(dropout=0.2) == ({None: None, 0: 0, 0.3: 0.2}[rates[0]], 0.2)  # what is asked for is done


def test_dropout_needs_a_key():
    config = EVERY["roberta"](dropout=0.5)
    network = Network(config.build(), classes.declare(config, "classes", 2))
    params = jax.tree.map(lambda x: np.ones(x.shape, x.dtype), network.shapes())
    x = hidden(4)

    @jax.jit
    def logits(**rngs):
        return classes.apply(network.bind(params, rngs), "classes", x)

    one, same, other = (logits(dropout=jax.random.key(i)) for i in (0, 0, 1))
    np.testing.assert_array_equal(one, same)
    assert not np.array_equal(one, other) and not np.array_equal(one, logits())


def test_two_heads_of_one_network_share_no_pooler_that_one_of_them_lacks():
    config = EVERY["bert"]()
    model, params = bound(config, classes.declare(config, "classes", 3) | classes.declare(config, "tags", 4))
    x = hidden(2, 3)
    tags, of_text = jax.jit(lambda x: (classes.apply(model, "tags", x), classes.apply(model, "classes", x[:, 0])))(x)
    np.testing.assert_allclose(tags, dense(x, params["heads"]["tags"]["dense"]), rtol=1e-4, atol=1e-5)
    assert of_text.shape == (2, 3) and x.shape[-1] == D
