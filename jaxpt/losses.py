"""Cross-entropy over a vocabulary, without materialising the logits of a whole batch.

B batch, T target positions, C positions of a chunk, N chunks, D width of the model, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

if TYPE_CHECKING:
    from jaxpt.models.output import Projection

CHUNK_BYTES = 64 * 2**20
"""Approximate size of a chunk's float32 logits per device."""

Metrics = dict[str, tuple[jax.Array, jax.Array]]


def cross_entropy(logits: jax.Array, targets: jax.Array, *, z_loss: float = 0.0) -> jax.Array:
    """Cross-entropy of each target, in float32.

        loss = log Z − logits[target] + z_loss · (log Z)²,   log Z = logsumexp(logits)

    Args:
      logits: [..., V], unnormalised.
      targets: [...], int ids below V.
      z_loss: coefficient of (log Z)², which keeps log Z near 0 (T5X: 1e-4).

    Returns:
      [...], float32, in nats.

    Example:
      >>> print(cross_entropy(jnp.zeros((2, 4)), jnp.array([3, 0])))
      [1.3862944 1.3862944]

    Paper (z-loss): https://arxiv.org/abs/2204.02311
    """
    log_z, gold = _log_z_and_gold(logits, targets)
    return log_z - gold + z_loss * jnp.square(log_z)


def token_loss(
    hidden_BxTxD: jax.Array,
    projection: Projection,
    targets_BxT: jax.Array,
    weights_BxT: jax.Array,
    *,
    eval_mask: jax.Array | None = None,
    metric_weights: Mapping[str, jax.Array] | None = None,
    z_loss: float = 0.0,
    label_smoothing: float = 0.0,
    chunk: int = 0,
) -> tuple[jax.Array, Metrics]:
    """Σ of the weighted cross-entropy of hidden states, projected to the vocabulary in chunks.

        Σ_bt weights_bt · cross_entropy(projection(hidden)_bt, targets_bt)

    With label smoothing ε the distribution of a target is (1 − ε) · one-hot + ε / V, as in torch; the padding columns
    of the stored vocabulary have no part in it.

    Chunks split the length, so batch and vocabulary keep their sharding. The backward pass recomputes the logits of
    each chunk, so neither pass materialises [B, T, V]; the value does not depend on `chunk`. On a mesh (with the
    logical axes "batch" and "length" mapped to it) a sharded kernel is gathered once, and its gradient is summed once,
    not per chunk.

    Args:
      hidden_BxTxD: hidden states, the input of the projection.
      projection: from hidden states to logits.
      targets_BxT: int ids below V.
      weights_BxT: float weights; 0 excludes a position.
      eval_mask: [B, T] weights of the metric `target_loss`; None omits it.
      metric_weights: {name: [B, T] weights} of additional cross-entropy metrics.
      z_loss: see `cross_entropy`.
      label_smoothing: ε.
      chunk: positions per chunk; 0 selects logits of about 64 MiB per device.

    Returns:
      (Σ weighted loss, {metric: (Σ weighted value, Σ weights)}), float32 scalars. Metrics: `accuracy` (a tie for the
      most likely token counts as wrong), `token_loss` (cross-entropy without z-loss and smoothing) and, with
      `eval_mask`, `target_loss` (the same with these weights).

    Example:
      >>> from jaxpt.models.output import Projection
      >>> hidden, targets = jnp.eye(4)[None, :3] * 9, jnp.array([[0, 1, 3]])
      >>> total, metrics = token_loss(hidden, Projection(jnp.eye(4)), targets, jnp.array([[1.0, 1.0, 1.0]]))
      >>> print(metrics["accuracy"], round(float(total), 2))
      (Array(2., dtype=float32), Array(3., dtype=float32)) 9.0
    """
    parts = dict(metric_weights or {}) | ({} if eval_mask is None else {"target_loss": eval_mask})
    weights_BxTxP = jnp.stack([weights_BxT, *parts.values()], -1)

    def sums(projection: Projection, hidden_BxCxD: jax.Array, *arrays: jax.Array) -> jax.Array:
        size = projection.vocab_size or projection.columns
        return _sums(projection(hidden_BxCxD), size, z_loss, label_smoothing, *arrays)

    chunk = chunk or _chunk(hidden_BxTxD, projection)
    totals = _in_chunks(sums, 3 + len(parts), projection, (hidden_BxTxD, targets_BxT, weights_BxTxP), chunk)
    loss, correct, entropy, *of_parts = totals
    total_weight = weights_BxT.sum(dtype=jnp.float32)
    metrics = {"accuracy": (correct, total_weight), "token_loss": (entropy, total_weight)}
    for (name, weights), of_part in zip(parts.items(), of_parts):
        metrics[name] = (of_part, weights.sum(dtype=jnp.float32))
    return loss, jax.lax.stop_gradient(metrics)


def distillation_kl(
    student_BxTxD: jax.Array,
    student: Projection,
    teacher_BxTxE: jax.Array,
    teacher: Projection,
    weights_BxT: jax.Array,
    *,
    temperature: float = 2.0,
    chunk: int = 0,
) -> tuple[jax.Array, Metrics]:
    """Σ of the weighted KL divergence of a student's from a teacher's distributions, both with temperature.

        Σ_bt weights_bt · τ² · KL(softmax(z_teacher / τ) ‖ softmax(z_student / τ)),   z = projection(hidden)_bt

    Computed in chunks, as `token_loss`: neither pass materialises [B, T, V]. No gradient flows to the teacher.

    Args:
      student_BxTxD: the student's hidden states.
      student: the student's projection.
      teacher_BxTxE: the teacher's hidden states; the width may differ.
      teacher: the teacher's projection.
      weights_BxT: float weights; 0 excludes a position.
      temperature: τ.
      chunk: positions per chunk; 0 selects logits of about 64 MiB per device.

    Returns:
      (Σ weighted divergence in nats, {"agreement": (Σ weighted, Σ weights)}): agreement on the most likely token.

    Example:
      >>> from jaxpt.models.output import Projection
      >>> sure, unsure, same = jnp.array([[[4.0, 0.0]]]), jnp.zeros((1, 1, 2)), Projection(jnp.eye(2))
      >>> total, metrics = distillation_kl(unsure, same, sure, same, jnp.ones((1, 1)))
      >>> round(float(total), 3)  # 4 · KL((0.88, 0.12) ‖ (0.5, 0.5))
      1.311

    Paper: https://arxiv.org/abs/1503.02531
    """

    def sums(both: tuple[Projection, Projection], student: jax.Array, teacher: jax.Array, weights: jax.Array) -> Any:
        student_BxCxV, teacher_BxCxV = both[0](student), jax.lax.stop_gradient(both[1](teacher))
        log_s, log_t = (jax.nn.log_softmax(x / temperature) for x in (student_BxCxV, teacher_BxCxV))
        kl_BxC = temperature**2 * (jnp.exp(log_t) * (log_t - log_s)).sum(-1)
        likeliest = [x >= x.max(-1, keepdims=True) for x in (student_BxCxV, teacher_BxCxV)]
        agree_BxC = (likeliest[0] & likeliest[1]).any(-1)
        return jnp.stack([(x * weights).sum(dtype=jnp.float32) for x in (kl_BxC, agree_BxC)])

    chunk = chunk or _chunk(student_BxTxD, student, teacher)
    total, agreement = _in_chunks(sums, 2, (student, teacher), (student_BxTxD, teacher_BxTxE, weights_BxT), chunk)
    return total, {"agreement": (jax.lax.stop_gradient(agreement), weights_BxT.sum(dtype=jnp.float32))}


def cosine_distance(one: jax.Array, other: jax.Array) -> jax.Array:
    """1 − cos of vectors along the last axis, in float32.

        1 − x·y / √((|x|² + ε)(|y|² + ε)),   ε = 1e-12

    Args:
      one: [..., D].
      other: [..., D].

    Returns:
      float32 [...], between 0 and 2.

    Example:
      >>> print(cosine_distance(jnp.array([[1.0, 0.0], [3.0, 4.0]]), jnp.array([[0.0, 1.0], [-3.0, -4.0]])))
      [1. 2.]
    """
    one, other = one.astype(jnp.float32), other.astype(jnp.float32)
    norms = (jnp.square(one).sum(-1) + 1e-12) * (jnp.square(other).sum(-1) + 1e-12)
    return 1 - (one * other).sum(-1) * jax.lax.rsqrt(norms)


def sample(hidden_BxTxD: jax.Array, projection: Projection, key: jax.Array, *, chunk: int = 0) -> jax.Array:
    """Samples a token for each hidden state from softmax(projection(hidden)), with the Gumbel-max trick.

    A draw depends only on key, row and position, not on `chunk` or the mesh. No gradient flows through it.

    Args:
      hidden_BxTxD: hidden states.
      projection: as in `token_loss`.
      key: random key.
      chunk: positions per chunk; 0 selects logits of about 64 MiB per device.

    Returns:
      int32 [B, T].

    Example:
      >>> from jaxpt.models.output import Projection
      >>> hidden = jnp.log(jnp.array([[[0.1, 0.9]] * 1000]))
      >>> round(float(sample(hidden, Projection(jnp.eye(2)), jax.random.key(0)).mean()), 1)
      0.9
    """
    batch, length, _ = hidden_BxTxD.shape
    keys_T = jax.vmap(lambda t: jax.random.fold_in(key, t))(jnp.arange(length))

    def draw(logits_BxCxV: jax.Array, places_1xC: jax.Array) -> jax.Array:
        shape = (batch, logits_BxCxV.shape[-1])
        noise = jax.vmap(lambda key: jax.random.gumbel(key, shape), out_axes=1)(keys_T[places_1xC[0]])
        return (logits_BxCxV + noise).argmax(-1).astype(jnp.int32)

    hidden_BxTxD = jax.lax.stop_gradient(hidden_BxTxD)
    return map_logits(draw, hidden_BxTxD, projection, jnp.arange(length)[None], chunk=chunk)


def token_log_probs(
    hidden_BxTxD: jax.Array, projection: Projection, targets_BxT: jax.Array, *, chunk: int = 0
) -> tuple[jax.Array, jax.Array]:
    """Log-probability of each target, and whether it is the most likely token.

    Args:
      hidden_BxTxD: hidden states.
      projection: as in `token_loss`.
      targets_BxT: int ids below V.
      chunk: positions per chunk; 0 selects logits of about 64 MiB per device.

    Returns:
      (float32 [B, T] in nats, bool [B, T]); the most likely token is what argmax gives, the first one of a tie.

    Example:
      >>> from jaxpt.models.output import Projection
      >>> log_probs, is_best = token_log_probs(jnp.zeros((1, 2, 4)), Projection(jnp.eye(4)), jnp.array([[0, 3]]))
      >>> print(log_probs, is_best)
      [[-1.3862944 -1.3862944]] [[ True False]]
    """
    axis = 0 if projection.tied else -1  # no table is transposed, which a CPU would do for each chunk

    def scores(logits: jax.Array, targets_BxC: jax.Array) -> tuple[jax.Array, jax.Array]:
        index = jnp.arange(logits.shape[axis])[(...,) + (None,) * (targets_BxC.ndim if axis == 0 else 0)]
        targets = jnp.expand_dims(targets_BxC, axis)
        highest_BxC = logits.max(axis)
        highest = jnp.expand_dims(highest_BxC, axis)
        log_z_BxC = highest_BxC + jnp.log(jnp.exp(logits - highest).sum(axis))
        gold_BxC = jnp.where(index == targets, logits, 0.0).sum(axis)
        is_later_BxC = ((logits == highest) & (index < targets)).any(axis)  # faster than argmax
        return gold_BxC - log_z_BxC, (gold_BxC == highest_BxC) & ~is_later_BxC

    return map_logits(scores, hidden_BxTxD, projection, targets_BxT, chunk=chunk, vocab_axis=axis)


def map_logits(
    function: Callable[..., Any],
    hidden_BxTxD: jax.Array,
    projection: Projection,
    *arrays_BxT: jax.Array,
    chunk: int = 0,
    vocab_axis: Literal[0, -1] = -1,
) -> Any:
    """`function` of the logits of each position, projected in chunks of the length.

    Args:
      function: (logits [B, C, Vp], chunks of the arrays) → a tree of arrays [B, C, ...], each position by itself.
      hidden_BxTxD: hidden states.
      projection: as in `token_loss`.
      *arrays_BxT: further arguments, [B or 1, T, ...].
      chunk: positions per chunk; 0 selects logits of about 64 MiB per device.
      vocab_axis: where the vocabulary stands in the logits.

    Returns:
      A tree of arrays [B, T, ...].

    Example:
      >>> from jaxpt.models.output import Projection
      >>> map_logits(lambda logits: logits.max(-1), jnp.array([[[1.0, 2.0]] * 3]), Projection(jnp.eye(2)), chunk=2)
      Array([[2., 2., 2.]], dtype=float32)
    """
    length = hidden_BxTxD.shape[1]
    chunks = math.ceil(length / (chunk or _chunk(hidden_BxTxD, projection)))
    if chunks <= 1:
        return function(projection(hidden_BxTxD, vocab_axis=vocab_axis), *arrays_BxT)
    arrays_NxBxC = tuple(_cut(x, chunks) for x in (hidden_BxTxD, *arrays_BxT))
    mapped_NxBxC = jax.lax.map(lambda xs: function(projection(xs[0], vocab_axis=vocab_axis), *xs[1:]), arrays_NxBxC)

    def joined(x_NxBxC: jax.Array) -> jax.Array:
        x_BxNxC = jnp.moveaxis(x_NxBxC, 0, 1)
        return x_BxNxC.reshape(x_BxNxC.shape[0], -1, *x_BxNxC.shape[3:])[:, :length]

    return jax.tree.map(joined, mapped_NxBxC)


def _in_chunks(
    sums: Callable[..., jax.Array], count: int, projections: Any, arrays_BxT: tuple[jax.Array, ...], chunk: int
) -> jax.Array:
    """Σ of `sums(projections, *arrays)`, float32 [count], over chunks of the length."""
    chunks = math.ceil(arrays_BxT[0].shape[1] / chunk)
    if chunks <= 1:
        return sums(projections, *arrays_BxT)

    def scan(projections: Any, *arrays_BxT: jax.Array) -> jax.Array:
        step = jax.checkpoint(lambda totals, xs: (totals + sums(projections, *xs), None))
        return jax.lax.scan(step, jnp.zeros(count, jnp.float32), tuple(_cut(x, chunks) for x in arrays_BxT))[0]

    return _over_shards(scan, projections, *arrays_BxT)


def _sums(
    logits_BxCxV: jax.Array,
    vocab_size: int,
    z_loss: float,
    label_smoothing: float,
    targets_BxC: jax.Array,
    weights_BxCxP: jax.Array,
) -> jax.Array:
    """[Σ loss, Σ correct, Σ cross-entropy] of a chunk with the first weights, Σ cross-entropy with the others."""
    log_z_BxC, gold_BxC = _log_z_and_gold(logits_BxCxV, targets_BxC)
    entropy_BxC = log_z_BxC - gold_BxC
    # A sum over the vocabulary instead of argmax: it can be fused and sharded, and counts ties as wrong.
    correct_BxC = (logits_BxCxV >= gold_BxC[..., None]).sum(-1) == 1
    loss_BxC = entropy_BxC + z_loss * jnp.square(log_z_BxC)
    if label_smoothing:
        # The cross-entropy with uniform targets is log Z − the mean logit: one more sum over the logits at hand.
        is_real = jnp.arange(logits_BxCxV.shape[-1]) < vocab_size
        mean_BxC = jnp.where(is_real, logits_BxCxV, 0.0).sum(-1, dtype=jnp.float32) / vocab_size
        loss_BxC += label_smoothing * (gold_BxC - mean_BxC)
    weights_BxC = weights_BxCxP[..., 0]
    weighted = [x * weights_BxC for x in (loss_BxC, correct_BxC, entropy_BxC)]
    weighted += [entropy_BxC * weights_BxCxP[..., p] for p in range(1, weights_BxCxP.shape[-1])]
    return jnp.stack([x.sum(dtype=jnp.float32) for x in weighted])


def _log_z_and_gold(logits: jax.Array, targets: jax.Array) -> tuple[jax.Array, jax.Array]:
    """log Z and the target's logit; the latter by comparison instead of a gather, as the vocabulary may be sharded."""
    logits = logits.astype(jnp.float32)
    at_target = jnp.arange(logits.shape[-1]) == targets[..., None]
    return jax.nn.logsumexp(logits, axis=-1), jnp.where(at_target, logits, 0.0).sum(-1)


def _chunk(hidden_BxTxD: jax.Array, *projections: Projection) -> int:
    """Positions whose float32 logits take `CHUNK_BYTES` on each device of the mesh."""
    logits = hidden_BxTxD.shape[0] * sum(projection.columns for projection in projections)
    return max(1, CHUNK_BYTES * max(1, jax.sharding.get_abstract_mesh().size) // (4 * logits))


def _cut(x_BxT: jax.Array, chunks: int) -> jax.Array:
    """[B, T, ...] → [N, B, C, ...], padded with zeros (zero weight) at the end."""
    size = math.ceil(x_BxT.shape[1] / chunks)
    padding = [(0, 0), (0, chunks * size - x_BxT.shape[1])] + [(0, 0)] * (x_BxT.ndim - 2)
    x_BxT = jnp.pad(x_BxT, padding)
    return jnp.moveaxis(x_BxT.reshape(x_BxT.shape[0], chunks, size, *x_BxT.shape[2:]), 1, 0)


def _over_shards(function: Callable[..., jax.Array], projections: Any, *arrays_BxT: jax.Array) -> jax.Array:
    """Σ of `function(projections, *arrays)` over the shards of the batch and of the length.

    Kernels enter the manual region replicated, so they are gathered, and their gradients summed, once at its boundary.
    Otherwise the compiler does this in every iteration of the inner loop.
    """
    mesh, rules = jax.sharding.get_abstract_mesh(), dict(nn.get_logical_axis_rules())

    def dividing(name: str, size: int) -> tuple[str, ...]:
        axes = tuple(axis for axis in _names(rules.get(name)) if mesh.shape.get(axis, 1) > 1)
        return () if size % math.prod(mesh.shape[a] for a in axes) else axes

    rows, places = (dividing(name, size) for name, size in zip(("batch", "length"), arrays_BxT[0].shape))
    if not (axes := rows + places):
        return function(projections, *arrays_BxT)

    inside = tuple((name, None if set(axes) & set(_names(to)) else to) for name, to in rules.items())

    def shard(projections: Any, *arrays_BxT: jax.Array) -> jax.Array:
        with nn.logical_axis_rules(inside):  # constraints must not use the mesh axes of the batch
            return function(projections, *arrays_BxT)[None]

    specs = (PartitionSpec(), *[PartitionSpec(rows or None, places or None)] * len(arrays_BxT))
    mapped = jax.shard_map(shard, in_specs=specs, out_specs=PartitionSpec(axes), axis_names=set(axes), check_vma=False)
    return mapped(projections, *arrays_BxT).sum(0)


def _names(mesh_axes: str | tuple[str, ...] | None) -> tuple[str, ...]:
    return (mesh_axes,) if isinstance(mesh_axes, str) else tuple(mesh_axes or ())
