"""The span-boundary objective: what stands beside a span, what each of its two losses sees, what export leaves out."""

import dataclasses
import doctest

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpt.data.calls import Vocabulary
from jaxpt.errors import UserError
from jaxpt.hf import convert
from jaxpt.objectives import span_boundary
from jaxpt.objectives.span_boundary import SpanBoundary, boundaries
from tests import families
from tests.models.helpers import EVERY, drawn

CONFIG = families.config(
    "bert", model={"layers": 1}, data={"batch_size": 2},
    objective={"kind": "span_boundary", "max_span": 3, "position_dim": 6, "max_predictions": 8},
)  # fmt: skip
# Spans 3–7 (five tokens) and 12; then 5 and 20–21.
POSITIONS = np.array([[3, 4, 5, 6, 7, 12, 0, 0], [5, 20, 21, 0, 0, 0, 0, 0]], np.int32)


@pytest.fixture(scope="module")
def case():
    batch = families.batch(CONFIG) | {"masked_positions": POSITIONS, "masked_weights": np.float32(POSITIONS > 0)}
    batch["encoder_segment_ids"] = np.ones_like(batch["encoder_segment_ids"])
    network = families.network(CONFIG)
    return batch, network, drawn(network)


def test_boundaries_against_a_loop():
    rng = np.random.default_rng(0)
    chosen = rng.random((2000, 30)) < 0.4
    chosen[:, [0, -1]] = False
    positions, weights = np.zeros((2000, 28), np.int32), np.zeros((2000, 28), np.float32)
    for row, at in enumerate(chosen):
        positions[row, : at.sum()], weights[row, : at.sum()] = np.flatnonzero(at), 1
    left, right, places = map(np.asarray, jax.jit(boundaries)(positions, weights))
    for row, column in zip(*np.nonzero(weights)):
        first = last = positions[row, column]
        while chosen[row, first - 1]:
            first -= 1
        while chosen[row, last + 1]:
            last += 1
        found = (left[row, column], right[row, column], places[row, column])
        assert found == (first - 1, last + 1, positions[row, column] - first)


@pytest.fixture(scope="module")
def run(case):
    """Targets → (losses, their derivatives by the hidden states, and by the parameters): one program for all tests."""
    batch, network, params = case

    def losses(shift_BxLxD, params, targets):
        def shifted(call, args, kwargs, context):
            out = call(*args, **kwargs)
            return out.replace(hidden=out.hidden + shift_BxLxD) if context.method_name == "encode" else out

        with nn.intercept_methods(shifted):
            parts = CONFIG.objective.loss(network.bind(params), batch | {"masked_targets": targets})[0]
        return parts, parts

    derivatives = jax.jit(jax.jacrev(losses, argnums=(0, 1), has_aux=True))

    def made(targets):
        slopes, parts = derivatives(jnp.zeros((2, 32, 32)), params, targets)
        return parts, *({part: of[n] for part, of in slopes.items()} for n in (0, 1))

    return made


def test_the_losses_and_what_they_see(case, run):
    """The boundary loss is of the first three tokens of a span, from the hidden states beside it and no others."""
    batch, _, _ = case
    moved, seen, _ = run(batch["masked_targets"])
    seen = {part: np.abs(x).max(-1) > 0 for part, x in seen.items()}
    for row, beside, chosen in ((0, {2, 8, 11, 13}, {3, 4, 5, 6, 7, 12}), (1, {4, 6, 19, 22}, {5, 20, 21})):
        assert set(np.flatnonzero(seen["span_boundary"][row])) == beside
        assert set(np.flatnonzero(seen["masked_lm"][row])) == chosen
    weights = CONFIG.objective.weights(batch)
    assert {k: float(v) for k, v in weights.items()} == {"masked_lm": 9, "span_boundary": 7}
    far = batch["masked_targets"].copy()
    far[0, 3:5] = (far[0, 3:5] + 1) % 200  # the fourth and the fifth token of the first span
    other, _, _ = run(far)
    assert other["span_boundary"] == moved["span_boundary"] and other["masked_lm"] != moved["masked_lm"]


def test_spans_at_the_ends_have_no_boundary_loss(case):
    """As span_masking of facebookresearch/SpanBERT: it wants a token of the text on both sides."""
    batch, _, _ = case
    segments = np.repeat([[1] * 10 + [2] * 12 + [0] * 10], 2, 0)
    positions = np.array([[1, 2, 5, 8, 11, 20, 0, 0], [3, 7, 8, 12, 13, 19, 0, 0]], np.int32)
    batch = batch | {"encoder_segment_ids": segments, "masked_positions": positions}
    batch["masked_weights"] = np.float32(positions > 0)
    expected = [[0, 0, 1, 0, 0, 0, 0, 0], [1, 0, 0, 1, 1, 1, 0, 0]]  # texts 0–9 and 10–21 between [CLS] and [SEP]
    everywhere = CONFIG.objective.model_copy(update={"edge_spans": True})
    found = jax.jit(lambda batch: [h.boundary_targets(batch)[3] for h in (CONFIG.objective, everywhere)])(batch)
    assert [weights.tolist() for weights in found] == [expected, batch["masked_weights"].tolist()]


def test_spans_beside_which_the_text_has_no_token_have_no_boundary_loss(case):
    """With `mask_specials`: of texts 0–9 and 10–31, the first tokens, the last of one and the first of the next."""
    batch, network, params = case
    positions = np.array([[0, 1, 5, 9, 10, 14, 31, 0], [9, 31, 0, 0, 0, 0, 0, 0]], np.int32)
    objective = CONFIG.objective.model_copy(update={"mask_specials": True, "edge_spans": True})
    batch = batch | {"encoder_segment_ids": np.repeat([[1] * 10 + [2] * 22], 2, 0), "masked_positions": positions}
    batch["masked_weights"] = np.float32(np.arange(8) < [[7], [2]])
    weights, parts = jax.jit(
        lambda batch: (objective.boundary_targets(batch)[3], objective.loss(network.bind(params), batch)[0])
    )(batch)
    assert weights.tolist() == [[0, 0, 1, 0, 0, 1, 0, 0], [0] * 8]
    assert parts["span_boundary"] > 0 and all(map(jnp.isfinite, parts.values()))


def test_every_parameter_has_a_gradient_and_export_leaves_the_head_out(case, run):
    batch, network, _ = case
    gradient = jax.tree.map(lambda *parts: np.sum(parts, axis=0), *run(batch["masked_targets"])[2].values())
    for path, g in jax.tree_util.tree_leaves_with_path(gradient):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        assert name.endswith("key/bias") or float(np.abs(g).max()) > 0, name
    kept, _, left_out = convert.exported(network)
    assert set(kept.heads) == {"masked_lm"} and left_out == ["span_boundary"]


def test_the_head_has_the_size_of_the_paper():
    """BERT base: 200-wide places, dense layers 1,736 → 768 and 768 → 768 with norms, a bias of the vocabulary."""
    sizes = {"vocab_size": 28996, "embed_dim": 768, "heads": 12, "mlp_dim": 3072}
    network = families.network(families.config("bert", model=sizes, objective={"kind": "span_boundary"}))
    rest = dataclasses.replace(network, heads={"masked_lm": network.heads["masked_lm"]})
    head = network.count_params() - rest.count_params()
    assert head == 20 * 200 + (2 * 768 + 200) * 768 + 768 * 768 + 6 * 768 + 28996


def test_check():
    vocabulary = Vocabulary(size=200, cls=2, sep=3, mask=4)
    CONFIG.objective.check(CONFIG.model, 64, vocabulary)
    with pytest.raises(UserError, match=r"model.kind: xlnet has no masked-LM head"):
        SpanBoundary().check(EVERY["xlnet"](), 64, vocabulary)


def test_examples_in_docstrings():
    assert doctest.testmod(span_boundary).failed == 0
