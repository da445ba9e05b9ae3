"""Losses: values, gradients, and what the compiled program holds in memory."""

import doctest
import functools
import re

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from jaxpt.models import logits
from jaxpt.models.output import Projection
from jaxpt.objectives import losses
from jaxpt.parallel import compiler
from tests import grids

B, T, D, V = 4, 30, 8, 512


@functools.cache
def _data():
    rng = np.random.default_rng(0)

    def normal(*shape):
        return jnp.asarray(rng.standard_normal(shape), jnp.float32)

    return {
        "params": {"kernel": normal(D, V), "bias": normal(V)},
        "hidden": normal(B, T, D),
        "targets": jnp.asarray(rng.integers(0, V, (B, T))),
        "weights": jnp.asarray(rng.random((B, T)) < 0.7, jnp.float32),
        "probe": jnp.asarray(rng.random((B, T)), jnp.float32),
    }


@pytest.fixture
def data():
    return _data()


def _loss(params, hidden, data, **kwargs):
    return losses.token_loss(hidden, Projection(**params), data["targets"], data["weights"], **kwargs)


def _grad(data, **kwargs):
    """((loss, metrics), gradients with respect to parameters and hidden states), compiled."""
    function = jax.value_and_grad(lambda p, h: _loss(p, h, data, **kwargs), argnums=(0, 1), has_aux=True)
    return jax.jit(function).lower(data["params"], data["hidden"]).compile()


@functools.cache
def _compiled(with_probe=False, **kwargs):
    """`_grad` of the data that all tests have, once for each of these options."""
    return _grad(_data(), **kwargs, **({"eval_mask": _data()["probe"]} if with_probe else {}))


def _found(**kwargs):
    return jax.tree.leaves(_compiled(**kwargs)(_data()["params"], _data()["hidden"]))


def _entropy(logits, targets):
    """In float64."""
    logits = np.asarray(logits, np.float64)
    gold = np.take_along_axis(logits, np.asarray(targets)[..., None], -1)[..., 0]
    return np.log(np.exp(logits).sum(-1)) - gold


cross_entropy = jax.jit(losses.cross_entropy, static_argnames="z_loss")


def _largest(compiled):
    """Elements of the largest array that the compiled program mentions."""
    shapes = re.findall(r"\b[a-z]+\d+\[([\d,]+)\]", compiled.as_text())
    return max(np.prod([int(n) for n in shape.split(",")]) for shape in shapes)


@pytest.mark.gpu
def test_cross_entropy_is_the_negative_log_probability():
    rng = np.random.default_rng(0)
    logits, targets = rng.standard_normal((3, 5, 7), np.float32) * 5, rng.integers(0, 7, (3, 5))
    np.testing.assert_allclose(cross_entropy(logits, targets), _entropy(logits, targets), rtol=1e-4, atol=1e-6)


@pytest.mark.gpu
def test_cross_entropy_of_extreme_and_masked_logits():
    logits, targets = np.array([[1e4, -1e4, -np.inf], [0.0, 0.0, -np.inf]], np.float32), np.array([1, 0])
    np.testing.assert_allclose(cross_entropy(logits, targets), [2e4, np.log(2)], rtol=1e-6)
    gradient = jax.jit(jax.grad(lambda x: losses.cross_entropy(x, targets, z_loss=0.1).sum()))(logits)
    assert np.isfinite(gradient).all() and (gradient[:, 2] == 0).all()


@pytest.mark.gpu
def test_z_loss_is_the_squared_log_partition():
    logits = np.log(np.array([[1.0, 2.0, 3.0]], np.float32))
    plain, penalised = (cross_entropy(logits, np.array([0]), z_loss=z) for z in (0.0, 0.5))
    np.testing.assert_allclose(penalised - plain, 0.5 * np.log(6) ** 2, rtol=1e-6)


@pytest.mark.gpu
def test_bfloat16_logits_are_summed_in_float32():
    logits = jnp.asarray(np.random.default_rng(0).standard_normal((8, 4096)), jnp.bfloat16)
    loss = cross_entropy(logits, np.arange(8))
    assert loss.dtype == jnp.float32
    np.testing.assert_allclose(loss, _entropy(logits, np.arange(8)), rtol=1e-6)


@pytest.mark.gpu
@pytest.mark.parametrize("chunk", grids.cases([1, 6, 7, 29], 6, 7))
def test_chunks_change_neither_value_nor_gradient(chunk):
    whole, parts = (_found(z_loss=1e-2, with_probe=True, chunk=c) for c in (T, chunk))
    for a, b in zip(whole, parts, strict=True):
        assert np.linalg.norm(a - b) <= 1e-6 * np.linalg.norm(a)


@pytest.mark.gpu
def test_metrics_are_weighted_sums_with_their_weights(data):
    (total, metrics), _ = _compiled(z_loss=1e-2, with_probe=True, chunk=7)(data["params"], data["hidden"])
    logits = np.asarray(data["hidden"]) @ np.asarray(data["params"]["kernel"]) + np.asarray(data["params"]["bias"])
    entropy, hits = _entropy(logits, data["targets"]), logits.argmax(-1) == data["targets"]
    weights, probe = np.asarray(data["weights"]), np.asarray(data["probe"])
    np.testing.assert_allclose(metrics["token_loss"], [(entropy * weights).sum(), weights.sum()], rtol=1e-5)
    np.testing.assert_allclose(metrics["accuracy"], [(hits * weights).sum(), weights.sum()], rtol=1e-6)
    np.testing.assert_allclose(metrics["target_loss"], [(entropy * probe).sum(), probe.sum()], rtol=1e-5)
    with_z = entropy + 1e-2 * np.log(np.exp(logits.astype(np.float64)).sum(-1)) ** 2
    np.testing.assert_allclose(total, (with_z * weights).sum(), rtol=1e-5)
    without = jax.eval_shape(lambda hidden: _loss(data["params"], hidden, data)[1], data["hidden"])
    assert set(without) == {"token_loss", "accuracy"}


@pytest.mark.gpu
def test_accuracy_counts_hits_and_no_ties():
    @jax.jit
    def accuracy(hidden):
        weights = jnp.array([[1.0, 0.5, 2.0]])
        return losses.token_loss(hidden, Projection(jnp.eye(4)), np.array([[2, 0, 1]]), weights)[1]["accuracy"]

    np.testing.assert_allclose(accuracy(np.eye(4, dtype=np.float32)[[[2, 0, 0]]]), [1.5, 3.5])
    assert accuracy(np.zeros((1, 3, 4), np.float32))[0] == 0


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("chunk", grids.cases([0, 7, 13], 7))
def test_label_smoothing_mixes_the_target_with_the_uniform_distribution(data, chunk):
    """Of the real vocabulary: padding columns have no part, in value and gradient, whatever the chunks."""
    size, smoothing = V - 5, 0.1
    targets = jnp.minimum(data["targets"], size - 1)

    def ours(params, hidden):
        projection = Projection(**params, vocab_size=size)
        options = {"z_loss": 1e-3, "label_smoothing": smoothing, "chunk": chunk}
        return losses.token_loss(hidden, projection, targets, data["weights"], **options)

    def brute(params, hidden):
        logits = (hidden @ params["kernel"] + params["bias"])[..., :size]
        wanted = (1 - smoothing) * jax.nn.one_hot(targets, size) + smoothing / size
        log_z = jax.nn.logsumexp(logits, -1)
        loss = -(wanted * jax.nn.log_softmax(logits)).sum(-1) + 1e-3 * log_z**2
        return (loss * data["weights"]).sum()

    arguments = data["params"], data["hidden"]
    (total, metrics), gradients = jax.jit(jax.value_and_grad(ours, (0, 1), has_aux=True))(*arguments)
    expected, wanted = jax.jit(jax.value_and_grad(brute, (0, 1)))(*arguments)
    np.testing.assert_allclose(total, expected, rtol=1e-5)
    for a, b in zip(jax.tree.leaves(gradients), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)
    logits = np.asarray(data["hidden"]) @ np.asarray(data["params"]["kernel"]) + np.asarray(data["params"]["bias"])
    entropy, weights = _entropy(logits[..., :size], targets), np.asarray(data["weights"])
    expected = [(entropy * weights).sum(), weights.sum()]
    np.testing.assert_allclose(metrics["token_loss"], expected, rtol=1e-6, err_msg="it is not smoothed")


def test_label_smoothing_never_holds_the_logits_of_the_batch():
    plain, smoothed = _compiled(chunk=2), _compiled(chunk=2, label_smoothing=0.1)
    assert _largest(smoothed) == _largest(plain) == B * 2 * V
    more = smoothed.memory_analysis().temp_size_in_bytes - plain.memory_analysis().temp_size_in_bytes
    assert more < 2 * 4 * B * 2 * V, "two chunks' logits"


@pytest.mark.parity
def test_label_smoothing_is_torchs(data):
    torch = pytest.importorskip("torch")
    size, smoothing = V - 5, 0.1
    targets = np.minimum(data["targets"], size - 1)

    def ours(hidden):
        projection = Projection(**data["params"], vocab_size=size)
        return losses.token_loss(hidden, projection, targets, data["weights"], label_smoothing=smoothing, chunk=7)[0]

    hidden = torch.tensor(np.asarray(data["hidden"]), requires_grad=True)
    kernel, bias = (torch.tensor(np.asarray(data["params"][name])) for name in ("kernel", "bias"))
    logits = (hidden @ kernel + bias)[..., :size].flatten(0, 1)
    ignored = np.where(data["weights"] > 0, targets, -100)
    loss = torch.nn.CrossEntropyLoss(label_smoothing=smoothing, reduction="sum", ignore_index=-100)
    theirs = loss(logits, torch.tensor(ignored, dtype=torch.long).flatten())
    theirs.backward()
    total, gradient = jax.value_and_grad(ours)(data["hidden"])
    np.testing.assert_allclose(total, theirs.item(), rtol=1e-5)
    np.testing.assert_allclose(gradient, hidden.grad.numpy(), rtol=1e-4, atol=1e-5)


def test_positions_without_weight_change_nothing(data):
    other = data | {"targets": jnp.where(data["weights"] > 0, data["targets"], 3)}
    hidden = jnp.where(data["weights"][..., None] > 0, data["hidden"], 5.0)
    total = jax.jit(lambda hidden, data: _loss(data["params"], hidden, data)[0])
    assert total(data["hidden"], data) == total(hidden, other)


def test_the_program_never_holds_the_logits_of_the_batch():
    whole, parts = _compiled(chunk=T), _compiled(chunk=2)
    assert _largest(whole) >= B * T * V, "the scan of the program's text misses buffers"
    assert _largest(parts) == D * V == B * 2 * V, "the kernel, and a chunk's logits"
    logits = 4 * B * T * V
    assert whole.memory_analysis().temp_size_in_bytes > logits > 2 * parts.memory_analysis().temp_size_in_bytes


def test_the_chunk_is_chosen_by_tokens_between_bounds_of_bytes(data, monkeypatch):
    assert "while" not in _compiled().as_text(), "one chunk needs no scan"
    monkeypatch.setattr(logits, "CHUNK_BYTES", 4 * B * V * 6)
    monkeypatch.setattr(logits, "CHUNK_TOKENS", 1)
    assert _largest(_grad(data)) == B * 6 * V
    monkeypatch.setattr(logits, "CHUNK_TOKENS", B * 10)
    assert _largest(_grad(data)) == B * 10 * V, "the tokens that the table's traffic asks for"
    monkeypatch.setattr(logits, "LARGEST_CHUNK", 1)  # one position is the least
    assert _largest(_grad(data)) <= max(B * V, D * V)


RULES = (("batch", ("data", "fsdp")), ("act_vocab", ("tensor",)), ("length", ("context",)))


def _rules(mesh, rules=RULES):
    """Rules that name axes of the mesh alone."""
    return tuple((name, tuple(axis for axis in to if axis in mesh.shape)) for name, to in rules)


def _on_mesh(data, sizes, rules=RULES, **options):
    """The compiled program and its results where batch, table and vocabulary are sharded."""
    names = ("data", "fsdp", "tensor", "context")[: len(sizes)]
    mesh = jax.make_mesh(sizes, names, axis_types=(AxisType.Auto,) * len(sizes))
    specs = {"kernel": PartitionSpec("fsdp", "tensor"), "bias": PartitionSpec("tensor")}
    params = {k: jax.device_put(v, NamedSharding(mesh, specs[k])) for k, v in data["params"].items()}
    rows = NamedSharding(mesh, PartitionSpec(("data", "fsdp")))
    rest = {k: jax.device_put(data[k], rows) for k in data if k != "params"}
    with jax.set_mesh(mesh), nn.logical_axis_rules(_rules(mesh, rules)):
        compiled = _grad({"params": params, **rest}, chunk=5, **options)
        return compiled, compiled(params, rest["hidden"])


BY = {"shard": RULES, "compiler": ()}
SIZES = [(4, 1, 1), (2, 1, 4), (1, 4, 2), (2, 2, 2), (2, 1, 2, 2)]
KEPT = [((2, 2, 2), "shard"), ((2, 1, 2, 2), "shard"), ((2, 2, 2), "compiler")]


@pytest.mark.parametrize(("sizes", "by"), grids.cases([(sizes, by) for by in BY for sizes in SIZES], *KEPT))
def test_on_a_mesh_the_batch_and_the_vocabulary_stay_sharded(data, sizes, by):
    compiled, sharded = _on_mesh(data, sizes, BY[by])
    shards, tensor = sizes[0] * sizes[1], sizes[2]
    assert _largest(compiled) <= max(B * T * D // shards, B * 5 * V // (shards * tensor), D * V // tensor)
    for a, b in zip(_found(chunk=5), jax.tree.leaves(sharded), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


def test_label_smoothing_keeps_the_vocabulary_sharded(data):
    compiled, sharded = _on_mesh(data, (2, 1, 4), label_smoothing=0.1)
    assert _largest(compiled) <= max(B * T * D // 2, B * 5 * V // 8, D * V // 4)
    for a, b in zip(_found(chunk=5, label_smoothing=0.1), jax.tree.leaves(sharded), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


def test_a_sharded_table_is_gathered_and_its_gradient_reduced_outside_of_the_loop(data):
    def moved(compiled):
        """Sizes of the arrays that loop bodies send over the mesh."""
        bodies = re.split(r"\n(?=ENTRY)", compiled.as_text())[0]
        found = re.findall(r"f32\[([\d,]+)\]\S* (?:all-gather|all-reduce|reduce-scatter)\(", bodies)
        return [np.prod([int(n) for n in shape.split(",")]) for shape in found]

    assert max(moved(_on_mesh(data, (2, 2, 1), rules=())[0])) >= V, "the compiler has learnt it: drop our own"
    assert max(moved(_on_mesh(data, (2, 2, 1))[0]), default=0) < V


def test_constraints_inside_the_projection_hold_in_a_shard(data):
    """A table of embeddings as kernel, in half precision, scaled and capped, with columns of padding."""
    options = {"tied": True, "scale": 0.5, "soft_cap": 3.0, "vocab_size": V - 5, "dtype": jnp.bfloat16}
    projection = Projection(data["params"]["kernel"].T, data["params"]["bias"], **options)
    targets = jnp.minimum(data["targets"], V - 6)

    def loss(hidden, projection):
        return losses.token_loss(hidden, projection, targets, data["weights"], chunk=7)[0]

    mesh = jax.make_mesh((2, 2, 2), ("data", "context", "tensor"), axis_types=(AxisType.Auto,) * 3)
    rules = (("batch", ("data",)), *RULES[1:])
    run = jax.value_and_grad(loss, (0, 1))
    with jax.set_mesh(mesh), nn.logical_axis_rules(rules):
        sharded = jax.jit(run)(data["hidden"], projection)
    whole = jax.jit(lambda hidden, projection: (run(hidden, projection), projection(hidden, padded=False)))
    single, logits = whole(data["hidden"], projection)
    for a, b in zip(jax.tree.leaves(sharded), jax.tree.leaves(single), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-2, atol=1e-2)
    assert logits.shape[-1] == V - 5 and np.abs(logits).max() <= 3
    np.testing.assert_allclose(sharded[0], (_entropy(logits, targets) * data["weights"]).sum(), rtol=1e-5)


def test_a_batch_that_the_mesh_does_not_divide_is_fine(data):
    few = {k: v if k == "params" else v[:3] for k, v in data.items()}
    mesh = jax.make_mesh((2,), ("data",), axis_types=(AxisType.Auto,))
    with jax.set_mesh(mesh), nn.logical_axis_rules(_rules(mesh)):
        total = jax.jit(lambda h: _loss(few["params"], h, few, chunk=7)[0])(few["hidden"])
    logits = np.asarray(few["hidden"]) @ np.asarray(data["params"]["kernel"]) + np.asarray(data["params"]["bias"])
    np.testing.assert_allclose(total, (_entropy(logits, few["targets"]) * few["weights"]).sum(), rtol=1e-5)


def test_the_mesh_makes_the_chunk_longer(data, monkeypatch):
    monkeypatch.setattr(logits, "CHUNK_TOKENS", 3 * B)
    monkeypatch.setattr(logits, "CHUNK_BYTES", 1)
    mesh, projection = jax.make_mesh((4,), ("data",), axis_types=(AxisType.Auto,)), Projection(**data["params"])
    with jax.set_mesh(mesh), nn.logical_axis_rules(_rules(mesh)):
        assert logits.chunk_length(B, projection) == 12
        assert logits.chunk_length(B - 1, projection) == 4, "rows that the mesh does not divide are on every device"


@pytest.mark.parity
@pytest.mark.slow
def test_a_teacher_is_followed_as_torch_does(data):
    """Value and gradient of KLDivLoss(batchmean) · τ² and CosineEmbeddingLoss, over the positions of weight 1."""
    torch = pytest.importorskip("torch")
    taught, weights = jax.random.normal(jax.random.key(7), (B, T, D)), np.array(data["weights"])
    kernel, count = data["params"]["kernel"], weights.sum()

    def loss(hidden, chunk):
        total, _ = losses.distillation_kl(
            hidden, Projection(kernel), taught, Projection(-kernel), weights, temperature=3.0, chunk=chunk
        )
        return total / count + (losses.cosine_distance(hidden, taught) * weights).sum() / count

    student, teacher = (torch.tensor(np.array(x)) for x in (data["hidden"], taught))
    student.requires_grad_(True)
    chosen = torch.tensor(weights) > 0
    scores, kept = torch.tensor(np.array(kernel)), (student[chosen], teacher[chosen])
    expected = 9 * torch.nn.KLDivLoss(reduction="batchmean")(
        torch.log_softmax(kept[0] @ scores / 3, -1), torch.softmax(kept[1] @ -scores / 3, -1)
    ) + torch.nn.CosineEmbeddingLoss()(*kept, torch.ones(len(kept[0])))
    expected.backward()
    for chunk in (T, 7):
        value, gradient = jax.jit(jax.value_and_grad(lambda h, c=chunk: loss(h, c)))(data["hidden"])
        np.testing.assert_allclose(value, expected.item(), rtol=1e-5)
        np.testing.assert_allclose(gradient, student.grad.numpy(), rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_examples_in_the_docstrings():
    assert doctest.testmod(losses).failed == doctest.testmod(logits).failed == 0


@pytest.mark.slow
def test_samples_follow_the_distribution_whatever_chunk_and_mesh(data):
    key = jax.random.key(0)
    whole, parts = (losses.sample(data["hidden"], Projection(**data["params"]), key, chunk=chunk) for chunk in (T, 7))
    np.testing.assert_array_equal(whole, parts)
    mesh = jax.make_mesh((4, 2), ("data", "tensor"), axis_types=(AxisType.Auto,) * 2)
    kernel = jax.device_put(data["params"]["kernel"], NamedSharding(mesh, PartitionSpec(None, "tensor")))
    rows = jax.device_put(data["hidden"], NamedSharding(mesh, PartitionSpec("data")))
    with jax.set_mesh(mesh):
        sharded = Projection(kernel, data["params"]["bias"])
        np.testing.assert_array_equal(whole, jax.jit(lambda h: losses.sample(h, sharded, key, chunk=7))(rows))
    hidden = jnp.log(jnp.broadcast_to(jnp.array([0.5, 0.3, 0.15, 0.05]), (4, 2500, 4)))
    counts = np.bincount(np.ravel(losses.sample(hidden, Projection(jnp.eye(4)), key)), minlength=4)
    expected = 10_000 * np.array([0.5, 0.3, 0.15, 0.05])
    assert ((counts - expected) ** 2 / expected).sum() < 16.3  # 3 degrees of freedom, 1 in 1,000
    projection = Projection(**data["params"])
    grad = jax.grad(lambda h: losses.sample(h, projection, key).astype(jnp.float32).sum())(data["hidden"])
    assert (grad == 0).all()


@pytest.mark.gpu
def test_log_probs_of_tokens_whatever_the_chunk(data):
    """Beside the softmax in float64; 8 does not divide the length. Of a tie the first token is the most likely one."""
    kernel, bias = (np.array(data["params"][name]) for name in ("kernel", "bias"))
    kernel[:, 3], bias[[3, 5]] = kernel[:, 5], 3.0
    logits = np.asarray(data["hidden"], np.float64) @ kernel + bias
    logits[..., 5] = logits[..., 3]  # whatever the order of the sum
    targets = np.where(np.arange(T) % 2, logits.argmax(-1), data["targets"])
    forms = {"own": Projection(kernel, bias), "tied": Projection(kernel.T, bias, tied=True)}

    @jax.jit
    def found(hidden, forms):
        probs = functools.partial(losses.token_log_probs, hidden, targets_BxT=targets)
        return [probs(projection=form, chunk=chunk) for chunk in (T, 1, 7, 8) for form in forms.values()]

    for log_probs, is_best in found(data["hidden"], forms):
        np.testing.assert_allclose(log_probs, -_entropy(logits, targets), atol=1e-5)
        np.testing.assert_array_equal(is_best, logits.argmax(-1) == targets)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("chunk", "tied"), grids.cases([(T, False), (T, True), (7, False), (7, True)], (T, False), (7, True))
)
def test_the_gradient_of_the_forward_pass_is_that_of_the_plain_formula(data, chunk, tied):
    """All options at once, in float32; the metrics have none, and a loss that is used twice has twice the gradient."""
    size, targets = V - 5, jnp.minimum(data["targets"], V - 6)
    kernel = data["params"]["kernel"].T if tied else data["params"]["kernel"]
    projection = Projection(kernel, data["params"]["bias"], size, tied, scale=0.5, soft_cap=9.0)

    def ours(hidden, projection):
        options = {"z_loss": 1e-2, "label_smoothing": 0.1, "eval_mask": data["probe"], "chunk": chunk}
        total, metrics = losses.token_loss(hidden, projection, targets, data["weights"], **options)
        return 2.0 * total + metrics["target_loss"][0]

    def plain(hidden, projection):
        z = projection(hidden, padded=False)
        wanted = 0.9 * jax.nn.one_hot(targets, size) + 0.1 / size
        loss = -(wanted * jax.nn.log_softmax(z)).sum(-1) + 1e-2 * jax.nn.logsumexp(z, -1) ** 2
        return 2.0 * (loss * data["weights"]).sum()

    both = jax.jit(lambda *arguments: [jax.grad(f, (0, 1))(*arguments) for f in (ours, plain)])
    found, wanted = both(data["hidden"], projection)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        assert a.dtype == b.dtype and np.linalg.norm(a - b) <= 1e-6 * np.linalg.norm(b)


@pytest.mark.gpu
@pytest.mark.parametrize("platform", [pytest.param("", id="here"), "gpu"])
def test_half_precision_is_as_exact_as_differentiating_the_product(data, platform, monkeypatch):
    """Gradients of bf16 products beside those in float32: no further off than automatic differentiation of the sum.

    On accelerators the slope to the logits is rounded to bf16 too: relative 8e-4, beside 1.75e-3 of the gradient's own
    rounding, together 1.93e-3.
    """
    if platform:
        monkeypatch.setattr(compiler, "platform", lambda: platform)
    hidden = data["hidden"].astype(jnp.bfloat16)
    exact = Projection(data["params"]["kernel"].astype(jnp.bfloat16).astype(jnp.float32))
    half = exact.replace(dtype=jnp.bfloat16)

    def ours(hidden, projection):
        return losses.token_loss(hidden, projection, data["targets"], data["weights"], chunk=7)[0] / 77.0

    def plain(hidden, projection):
        return (losses.cross_entropy(projection(hidden), data["targets"]) * data["weights"]).sum() / 77.0

    def error(function):
        def both(hidden, half, exact):
            wanted = jax.grad(plain, (0, 1))(hidden.astype(jnp.float32), exact)
            return jax.grad(function, (0, 1))(hidden, half), wanted

        found, wanted = jax.jit(both)(hidden, half, exact)
        assert found[0].dtype == jnp.bfloat16 and found[1].kernel.dtype == jnp.float32
        pairs = zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True)
        return np.array([np.linalg.norm(np.asarray(a, np.float32) - b) / np.linalg.norm(b) for a, b in pairs])

    found, wanted = error(ours), error(plain)
    assert (found <= (1.01 if compiler.platform() == "cpu" else 1.15) * wanted).all()
    assert found[1] < 0.6 * wanted[1], "the table's gradient is summed up in float32"
