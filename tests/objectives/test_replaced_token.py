"""Replaced-token detection: what the discriminator is shown and asked, and where each loss's gradient goes."""

import doctest
import functools
import json

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import traverse_util

from jaxpt import config as configs
from jaxpt import hf
from jaxpt.data.calls import Vocabulary
from jaxpt.errors import UserError
from jaxpt.hf import convert
from jaxpt.models.bert import Bert
from jaxpt.models.eurobert import EuroBertConfig
from jaxpt.models.heads.replaced_token import ReplacedTokenHead
from jaxpt.models.modernbert import ModernBertConfig
from jaxpt.objectives import replaced_token
from jaxpt.objectives.replaced_token import ReplacedToken
from tests import families
from tests.models.helpers import drawn

EMBEDDINGS = {"token_embed", "position_embed", "type_embed", "embed_norm"}


ELECTRA = {"kind": "electra", "embedding_dim": 24, "layers": 1}
DEBERTA = {"kind": "deberta", "buckets": 8, "layers": 4}
HALF = {"kind": "replaced_token", "generator": {"embed_dim": 16, "mlp_dim": 64}}
V3 = {
    "kind": "replaced_token", "generator": {"layers": 2, "mask_decoder": True}, "sharing": "disentangled",
    "sees_first": True,
}  # fmt: skip
PAIRS = {
    "shared": (ELECTRA, HALF), "disentangled": (ELECTRA, HALF | {"sharing": "disentangled"}), "deberta": (DEBERTA, V3),
}  # fmt: skip


def configured(model, objective):
    return families.config("bert", model=model, objective=objective, data={"batch_size": 4})


@functools.cache
def make(name):
    """(config, batch, network, parameters) of a toy pair."""
    config = configured(*PAIRS[name])
    network = families.network(config)
    return config, families.batch(config), network, drawn(network)


@functools.cache
def gradients_of(name):
    """{part: of its loss}"""
    config, batch, network, params = make(name)
    keys = {"dropout": jax.random.key(1), "sample": jax.random.key(2)}
    return jax.jit(jax.jacrev(lambda p: config.objective.loss(network.bind(p, keys), batch)[0]))(params)


def initial(network, *names):
    """These parts of a model as they are initialised; nothing else is computed."""
    return jax.jit(lambda key: {name: network.init(key)["model"][name] for name in names})(jax.random.key(0))


def reached(tree):
    """Parts of model and heads of which every array has a gradient, and of which none has."""
    found = {"all": set(), "none": set()}
    for name, part in (tree["model"] | tree["heads"]).items():
        leaves = [(jax.tree_util.keystr(p, simple=True, separator="/"), g) for p, g in jax.tree.leaves_with_path(part)]
        has = [float(jnp.abs(g).max()) > 0 for path, g in leaves if not path.endswith("key/bias")]
        found["all"] |= {name} if all(has) else set()
        found["none"] |= set() if any(has) else {name}
    return found


def test_a_position_drawn_twice_is_read_as_the_mean_of_its_samples():
    """As scatter_update of google-research/electra: (10 + 13) // 2 = 11; it is replaced unless that is the original."""
    masked = {"positions": [[1, 3, 3, 4, 4, 0]], "targets": [[9, 7, 7, 11, 11, 0]], "weights": [[1.0] * 5 + [0.0]]}
    batch = {f"masked_{name}": jnp.array(x) for name, x in masked.items()}
    batch["encoder_input_tokens"] = jnp.array([[2, 4, 12, 4, 4, 3]])
    tokens, labels = replaced_token.replaced(batch, jnp.array([[9, 10, 13, 10, 13, 55]]))
    assert tokens.tolist() == [[2, 9, 12, 11, 11, 3]] and labels.tolist() == [[0, 0, 0, 1, 0, 0]]


@pytest.mark.slow
def test_shared_embeddings_get_both_gradients_and_the_generator_only_its_own():
    gradients = gradients_of("shared")
    generator = gradients["masked_lm"]["heads"]["generator"]
    assert set(generator["model"]) == {"encoder", "embed_project"}, "the generator has no embeddings of its own"
    own = {"encoder", "replaced_token", "embed_project"}
    assert reached(gradients["masked_lm"]) == {"all": EMBEDDINGS | {"generator"}, "none": own}
    assert reached(gradients["replaced_token"]) == {"all": EMBEDDINGS | own, "none": {"generator"}}


@pytest.mark.slow
def test_disentangled_embeddings_get_only_their_own():
    network, gradients = make("disentangled")[2], gradients_of("disentangled")
    tables = initial(network, *(EMBEDDINGS - {"embed_norm"}))
    assert all(not table.any() for table in jax.tree.leaves(tables)), "the difference starts at 0"
    rest = EMBEDDINGS | {"encoder", "replaced_token", "embed_project"}
    assert reached(gradients["masked_lm"]) == {"all": {"generator"}, "none": rest}
    assert reached(gradients["replaced_token"]) == {"all": rest, "none": {"generator"}}


@pytest.mark.slow
def test_a_deberta_s_embeddings_get_only_their_own():
    """DeBERTa-v3: the generator has half the layers, its own positions and norms; the discriminator a difference."""
    network, gradients = make("deberta")[2], gradients_of("deberta")
    assert not initial(network, "token_embed")["token_embed"]["table"].any(), "it starts at 0"
    own = {"token_embed", "embed_norm", "relative_table", "relative_norm", "encoder"}
    generator = gradients["masked_lm"]["heads"]["generator"]
    assert set(generator["model"]) == own | {"last", "position_embed"} and set(generator["heads"]) == {"masked_lm"}
    assert reached(gradients["masked_lm"]) == {"all": {"generator"}, "none": own | {"replaced_token"}}
    assert reached(gradients["replaced_token"]) == {"all": own | {"replaced_token"}, "none": {"generator"}}
    shapes = network.shapes()
    layers = [p["model"]["encoder"]["segment_0"]["block_0"]["feed_forward"]["up"]["bias"].shape[0] for p in
              (shapes, shapes["heads"]["generator"])]  # fmt: skip
    assert layers == [4, 1], "the generator's other layer is the mask decoder's"


def ship(network, params):
    """(network, parameters) that `jaxpt export` writes."""
    flat = traverse_util.flatten_dict(jax.device_get(params), sep="/")
    kept, summands, left_out = convert.exported(network)
    assert "generator" in left_out
    written = {path: sum(flat[p] for p in paths) for path, paths in summands.items()}
    return kept, traverse_util.unflatten_dict(written, sep="/")


@pytest.mark.slow
def test_a_deberta_ships_its_discriminator_without_a_head(tmp_path):
    _, batch, network, params = make("deberta")
    hf.save(tmp_path, *ship(network, params))
    assert json.loads((tmp_path / "config.json").read_text())["architectures"] == ["DebertaV2Model"]
    alone, loaded = hf.load(tmp_path)
    assert not alone.heads
    pair, single = (
        jax.jit(lambda p, n=n: n.bind(p).encode(batch["encoder_input_tokens"]).hidden)(p)
        for n, p in ((network, params), (alone, loaded))
    )
    np.testing.assert_allclose(pair, single, rtol=1e-5, atol=1e-5)


def test_a_deberta_s_generator_alone_has_the_mask_decoder():
    network = families.network(configured(DEBERTA, V3))
    pair, alone = network.config, network.heads["generator"].config
    assert (alone.layers, alone.embed_dim, alone.heads, alone.mask_decoder) == (2, 32, 4, True)
    assert pair.mask_decoder is False and pair.parts() == {"encoder": range(4)}


@pytest.mark.parametrize(
    ("generator", "match"),
    [
        ({"layers": 1, "mask_decoder": True}, r"objective\.generator: layers: 1 are too few"),
        ({"hidden": 3}, r"objective\.generator\.hidden: Extra inputs are not permitted"),
        ({"embed_dim": "wide"}, r"objective\.generator\.embed_dim: "),
        ({"embed_dim": 64}, r"its embeddings have width 64, but the model, which shares them, has 32"),
    ],
)
def test_a_generator_that_cannot_be_is_refused(generator, match):
    config = configured(DEBERTA, V3 | {"generator": generator})
    with pytest.raises(UserError, match=match):
        config.objective.check(config.model, 32, Vocabulary(size=200, cls=2, sep=3, mask=4))


def test_the_discriminator_sees_the_samples_and_not_the_targets():
    config, batch, network, params = make("shared")

    @jax.jit
    def run(batch):
        """Loss, metrics, and the discriminator's input and scores."""
        seen = {}

        def spy(call, args, kwargs, context):
            out = call(*args, **kwargs)
            module, method = context.module, context.method_name
            if isinstance(module, Bert) and method == "encode" and module.config.embed_dim == 32:
                seen["encode"] = args[0]
            if isinstance(module, ReplacedTokenHead) and method == "__call__":
                seen["scores"] = out
            return out

        with nn.intercept_methods(spy):
            return *config.objective.loss(network.bind(params), batch), seen["encode"], seen["scores"]

    sums, metrics, tokens, scores = jax.tree.map(np.asarray, run(batch))
    chosen, original = np.zeros(tokens.shape, bool), batch["encoder_input_tokens"].copy()
    for row, column in zip(*np.nonzero(batch["masked_weights"])):
        at = batch["masked_positions"][row, column]
        chosen[row, at], original[row, at] = True, batch["masked_targets"][row, column]
    np.testing.assert_array_equal(tokens[~chosen], original[~chosen])
    others = (batch["masked_targets"] + 1) % 200
    np.testing.assert_array_equal(run(batch | {"masked_targets": others})[2], tokens)

    labels, real = tokens != original, batch["encoder_segment_ids"] > 0
    expected = np.where(labels, np.logaddexp(0, -scores), np.logaddexp(0, scores))
    np.testing.assert_allclose(sums["replaced_token"], expected[real].sum(), rtol=1e-5)
    found = {name: float(x) / float(w) for name, (x, w) in metrics.items()}
    np.testing.assert_allclose(found["discriminator_accuracy"], ((scores > 0) == labels)[real].mean(), rtol=1e-6)
    np.testing.assert_allclose(found["replaced_share"], labels[real].mean(), rtol=1e-6)
    assert float(config.objective.weights(batch)["replaced_token"]) == real.sum()
    assert config.objective.coefficients() == {"masked_lm": 1, "replaced_token": 50}


@pytest.mark.parametrize("config", [ModernBertConfig, EuroBertConfig])
def test_a_model_whose_embeddings_cannot_be_added_to_is_refused(config):
    model = config(vocab_size=64, layers=2, embed_dim=32, heads=2, mlp_dim=32)
    objective = ReplacedToken(sharing="disentangled", generator={"mlp_dim": 16})
    with pytest.raises(UserError, match=r"objective\.sharing: .* model\.kind: .*bert and deberta have both"):
        objective.check(model, 16, Vocabulary(size=64))


@pytest.mark.parametrize("sharing", ["shared", "disentangled"])
def test_export_ships_the_discriminator(sharing):
    _, batch, network, params = make(sharing)
    alone, tree = ship(network, params)
    assert set(alone.heads) == {"replaced_token"}
    assert jax.tree.map(np.shape, tree) == jax.tree.map(lambda x: x.shape, alone.shapes())

    def scores(network, params):
        bound = network.bind(params)
        return bound.heads["replaced_token"](bound.encode(batch["encoder_input_tokens"]).hidden)

    one, other = (jax.jit(scores, static_argnums=0)(n, p) for n, p in ((network, params), (alone, tree)))
    np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("recipe", "expected"),
    [
        ("electra_small", (64, 1, 256, 128, 12)),
        ("electra_base", (256, 4, 1024, 768, 12)),
        ("electra_large", (256, 4, 1024, 1024, 24)),
    ],
)
def test_sizes_of_the_published_generators(recipe, expected):
    config = configs.load(f"configs/pretrain/{recipe}.yaml")
    made = config.objective.generator_of(config.model).config
    assert (made.embed_dim, made.heads, made.mlp_dim, made.table_dim, made.layers) == expected


def test_the_discriminator_beside_a_constant():
    means = {"replaced_share": 0.1, "replaced_token": 0.2, "discriminator_accuracy": 0.95}
    (line,) = ReplacedToken().baseline.report_lines(means)
    assert "discriminator 0.200 nats, constant prediction 0.325: 0.125 nats below it" in line
    assert "accuracy 95.0%, constant prediction 90.0%" in line
    assert "ABOVE" in ReplacedToken().baseline.report_lines(means | {"replaced_token": 0.33})[0]


def test_check():
    vocabulary = Vocabulary(size=200, cls=2, sep=3, mask=4)
    electra = families.config("bert", model={"kind": "electra"}).model
    with pytest.raises(UserError, match=r"objective\.generator is missing: set the generator's overrides"):
        ReplacedToken().check(electra, 32, vocabulary)
    config = configured(ELECTRA, HALF)
    config.objective.check(config.model, 32, vocabulary)
    with pytest.raises(UserError, match=r"its embeddings have width 16.* 32; set model\.embedding_dim=32"):
        config.objective.check(electra, 32, vocabulary)
    with pytest.raises(UserError, match=r"heads: 3 does not divide embed_dim 200"):
        ReplacedToken(generator={"embed_dim": 200, "heads": 3}).check(electra, 32, vocabulary)
    short = ReplacedToken(generator={"max_positions": 16})
    with pytest.raises(UserError, match=r"generator\.max_positions: its position_embed has 16 rows, but the .* has 32"):
        short.check(electra, 16, vocabulary)


def test_examples_in_docstrings():
    assert doctest.testmod(replaced_token).failed == 0
