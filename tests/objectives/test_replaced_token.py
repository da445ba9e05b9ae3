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

from jaxpt import hf
from jaxpt.errors import UserError
from jaxpt.models import base
from jaxpt.models.base import bind
from jaxpt.objectives import replaced_token
from jaxpt.objectives.base import Vocabulary
from jaxpt.objectives.replaced_token import ReplacedToken
from tests import families
from tests.models.helpers import drawn

EMBEDDINGS = {"token_embed", "position_embed", "type_embed", "embed_norm"}


ELECTRA = {"kind": "electra", "embedding_dim": 24, "generator": 0.5, "layers": 1}
DEBERTA = {
    "kind": "deberta", "buckets": 8, "generator": 1, "generator_layers": 0.5, "layers": 4, "mask_decoder": True,
    "sharing": "disentangled",
}  # fmt: skip


def make(sizes):
    """(config, batch, model, parameters, gradients {part: of its loss}) of a toy pair."""
    config = families.config("bert", model=sizes, objective={"kind": "replaced_token"}, data={"batch_size": 4})
    batch, model = families.batch(config), config.model.build()
    params, keys = drawn(model), {"dropout": jax.random.key(1), "sample": jax.random.key(2)}
    gradients = jax.jit(jax.jacrev(lambda p: config.objective.loss(bind(model, p, keys), batch)[0]))(params)
    return config, batch, model, params, gradients


@pytest.fixture(scope="module")
def shared():
    return make(ELECTRA)


@pytest.fixture(scope="module")
def disentangled():
    return make(ELECTRA | {"sharing": "disentangled"})


@pytest.fixture(scope="module")
def deberta():
    return make(DEBERTA)


def reached(tree):
    """Top-level parts of which every array has a gradient, and of which none has."""
    found = {"all": set(), "none": set()}
    for name, part in tree.items():
        leaves = [(jax.tree_util.keystr(p, simple=True, separator="/"), g) for p, g in jax.tree.leaves_with_path(part)]
        has = [float(jnp.abs(g).max()) > 0 for path, g in leaves if not path.endswith("key/bias")]
        found["all"] |= {name} if all(has) else set()
        found["none"] |= set() if any(has) else {name}
    return found


def test_shared_embeddings_get_both_gradients_and_the_generator_only_its_own(shared):
    *_, gradients = shared
    own = {"encoder", "mlm_head", "embed_project"}
    assert set(gradients["masked_lm"]["generator"]) == own, "the generator has no embeddings of its own"
    assert reached(gradients["masked_lm"]) == {
        "all": EMBEDDINGS | {"generator"},
        "none": {"encoder", "replaced_head", "embed_project"},
    }
    assert reached(gradients["replaced_token"]) == {
        "all": EMBEDDINGS | {"encoder", "replaced_head", "embed_project"}, "none": {"generator"}
    }  # fmt: skip


def test_disentangled_embeddings_get_only_their_own(disentangled):
    _, _, model, _, gradients = disentangled
    tables = jax.jit(lambda key: {name: base.init(model, key)[name] for name in EMBEDDINGS - {"embed_norm"}})
    assert all(not table.any() for table in jax.tree.leaves(tables(jax.random.key(0)))), "the difference starts at 0"
    rest = EMBEDDINGS | {"encoder", "replaced_head", "embed_project"}
    assert reached(gradients["masked_lm"]) == {"all": {"generator"}, "none": rest}
    assert reached(gradients["replaced_token"]) == {"all": rest, "none": {"generator"}}


@pytest.mark.slow
def test_a_deberta_s_embeddings_get_only_their_own(deberta):
    """DeBERTa-v3: the generator has half the layers, its own positions and norms; the discriminator a difference."""
    _, _, model, _, gradients = deberta
    table = jax.jit(lambda key: base.init(model, key)["token_embed"]["table"])(jax.random.key(0))
    assert not table.any(), "the difference starts at 0"
    own = {"token_embed", "embed_norm", "relative_table", "relative_norm", "encoder"}
    assert set(gradients["masked_lm"]["generator"]) == own | {"last", "position_embed", "mlm_head"}
    assert reached(gradients["masked_lm"]) == {"all": {"generator"}, "none": own | {"replaced_head"}}
    assert reached(gradients["replaced_token"]) == {"all": own | {"replaced_head"}, "none": {"generator"}}
    layers = [p["encoder"]["segment_0"]["block_0"]["feed_forward"]["up"]["bias"].shape[0] for p in
              (base.shapes(model), base.shapes(model)["generator"])]  # fmt: skip
    assert layers == [4, 1], "the generator's other layer is the mask decoder's"


@pytest.mark.slow
def test_a_deberta_ships_its_discriminator_without_a_head(deberta, tmp_path):
    config, batch, model, params, _ = deberta
    flat = traverse_util.flatten_dict(jax.device_get(params), sep="/")
    export_view, summands = config.model.export_view(flat)
    tree = traverse_util.unflatten_dict({p: sum(flat[q] for q in paths) for p, paths in summands.items()}, sep="/")
    hf.save(tmp_path, export_view.build(), tree)
    assert json.loads((tmp_path / "config.json").read_text())["architectures"] == ["DebertaV2Model"]
    alone, loaded = hf.load(tmp_path)
    assert alone.config.masked_lm is False
    inputs = (batch["encoder_input_tokens"],)
    pair, single = (
        jax.jit(functools.partial(m.apply, method="encode"))({"params": p}, *inputs).hidden
        for m, p in ((model, params), (alone, loaded))
    )
    np.testing.assert_allclose(pair, single, rtol=1e-5, atol=1e-5)


def test_sizes_of_a_deberta_s_generator():
    pair = families.config("bert", model=DEBERTA).model
    alone = pair.of_generator()
    assert (alone.layers, alone.embed_dim, alone.heads, alone.generator, alone.decodes_masks) == (2, 32, 4, None, True)
    assert pair.decodes_masks is False and pair.parts() == {"encoder": range(4)}
    for wrong, match in (
        ({"generator": 0.5}, "has the same width, 1"),
        ({"sharing": "shared"}, "set sharing: disentangled"),
        ({"layers": 2}, "layers: 1 are too few"),
    ):
        with pytest.raises(UserError, match=match):
            families.config("bert", model=DEBERTA | wrong)


def test_the_discriminator_sees_the_samples_and_not_the_targets(shared):
    config, batch, model, params, _ = shared

    @jax.jit
    def run(batch):
        """Loss, metrics, and the discriminator's input and scores."""
        seen = {}

        def spy(call, args, kwargs, context):
            out = call(*args, **kwargs)
            of_discriminator = context.module.name is None and context.module.config.role == "discriminator"
            if of_discriminator and context.method_name in ("encode", "replaced"):
                seen[context.method_name] = args[0] if context.method_name == "encode" else out
            return out

        with nn.intercept_methods(spy):
            return *config.objective.loss(bind(model, params), batch), seen["encode"], seen["replaced"]

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
    assert float(config.objective.loss.weights(batch)["replaced_token"]) == real.sum()
    assert config.objective.loss.coefficients() == {"masked_lm": 1, "replaced_token": 50}


@pytest.mark.parametrize("sharing", ["shared", "disentangled"])
def test_export_ships_the_discriminator(sharing, request):
    config, batch, model, params, _ = request.getfixturevalue(sharing)
    flat = {"/".join(k.key for k in p): x for p, x in jax.tree_util.tree_leaves_with_path(params)}
    export_view, summands = config.model.export_view(flat)
    alone = {path: sum(flat[p] for p in paths) for path, paths in summands.items()}
    tree = base.shapes(export_view.build())
    tree = jax.tree_util.tree_map_with_path(lambda p, _: alone["/".join(k.key for k in p)], tree)
    assert len(alone) == len(jax.tree.leaves(tree)) and export_view.generator is None
    one, other = (
        jax.jit(m.apply)({"params": p}, batch["encoder_input_tokens"])[0]
        for m, p in ((model, params), (export_view.build(), tree))
    )
    np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_sizes_of_the_generator():
    """ELECTRA small: 64 wide, 1 head, 256 in the feed-forward, 12 layers; base: 256, 4, 1,024."""
    for width, embedding, share, expected in (
        (256, 128, 0.25, (64, 1, 256, 128)),
        (768, None, 1 / 3, (256, 4, 1024, 768)),
    ):
        sizes = {"kind": "electra", "embed_dim": width, "embedding_dim": embedding, "heads": 4, "mlp_dim": 4 * width}
        made = families.config("bert", model=sizes | {"generator": share, "layers": 12}).model.of_generator()
        assert (made.embed_dim, made.heads, made.mlp_dim, made.table_dim) == expected and made.layers == 12


def test_the_discriminator_beside_a_constant():
    means = {"replaced_share": 0.1, "replaced_token": 0.2, "discriminator_accuracy": 0.95}
    (line,) = ReplacedToken().judge.report_lines(means)
    assert "discriminator 0.200 nats, one probability for all 0.325: 0.125 nats below it" in line
    assert "right in 95.0%, 90.0% without looking" in line
    assert "ABOVE" in ReplacedToken().judge.report_lines(means | {"replaced_token": 0.33})[0]


def test_check():
    vocabulary = Vocabulary(size=200, cls=2, sep=3, mask=4)
    for model in (families.config("bert").model, families.config("bert", model={"kind": "electra"}).model):
        with pytest.raises(UserError, match="has no generator"):
            ReplacedToken().check(model, 32, vocabulary)
    with pytest.raises(UserError, match="200 wide, which 3 heads"):
        families.config("bert", model={"kind": "electra", "embed_dim": 800, "generator": 0.25})
    pair = families.config("bert", model={"kind": "electra", "generator": 0.5}).model
    ReplacedToken().check(pair, 32, vocabulary)
    with pytest.raises(UserError, match="no next-sentence head"):
        ReplacedToken(next_sentence=True).check(pair, 32, vocabulary)


def test_examples_in_docstrings():
    assert doctest.testmod(replaced_token).failed == 0
