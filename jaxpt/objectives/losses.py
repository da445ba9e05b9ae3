"""Cross-entropy over a vocabulary, without materialising the logits of a whole batch.

B batch, T target positions, C positions of a chunk, D width of the model, V vocabulary.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

from jaxpt.models.logits import map_logits, sum_logits, vocab_axis

if TYPE_CHECKING:
    from jaxpt.models.output import Projection

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
    logits = logits.astype(jnp.float32)
    # Not `_softmax`: its derivative at a logit of −∞ is none.
    log_z, gold = jax.nn.logsumexp(logits, axis=-1), _gold(logits, targets, -1)
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

    Chunks split the length, so batch and vocabulary keep their sharding; the value does not depend on `chunk`. Neither
    pass materialises [B, T, V], and none computes logits twice (see `jaxpt.models.logits.sum_logits`). No gradient
    flows to the weights.

    Args:
      hidden_BxTxD: hidden states, the input of the projection.
      projection: from hidden states to logits.
      targets_BxT: int ids below V.
      weights_BxT: float weights; 0 excludes a position.
      eval_mask: [B, T] weights of the metric `target_loss`; None omits it.
      metric_weights: {name: [B, T] weights} of additional cross-entropy metrics.
      z_loss: see `cross_entropy`.
      label_smoothing: ε.
      chunk: positions per chunk; 0: see `jaxpt.models.logits.chunk_length`.

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
    size, axis = projection.vocab_size or projection.columns, vocab_axis(projection)
    options = {"axis": axis, "vocab_size": size, "z_loss": z_loss, "label_smoothing": label_smoothing}
    score = functools.partial(_token_score, **options)
    loss, correct, entropy, *of_parts = sum_logits(
        score, hidden_BxTxD, projection, targets_BxT, weights_BxTxP, chunk=chunk
    )
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
      chunk: positions per chunk; 0: see `jaxpt.models.logits.chunk_length`.

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

    score = functools.partial(_kl_score, axis=vocab_axis(student), temperature=temperature)
    total, agreement = sum_logits(
        score, student_BxTxD, student, teacher_BxTxE, weights_BxT, constants=teacher, chunk=chunk
    )
    return total, {"agreement": (jax.lax.stop_gradient(agreement), weights_BxT.sum(dtype=jnp.float32))}


def cosine_distance(x: jax.Array, y: jax.Array) -> jax.Array:
    """1 − cos of vectors along the last axis, in float32.

        1 − x·y / √((|x|² + ε)(|y|² + ε)),   ε = 1e-12

    Args:
      x: [..., D].
      y: [..., D].

    Returns:
      float32 [...], between 0 and 2.

    Example:
      >>> print(cosine_distance(jnp.array([[1.0, 0.0], [3.0, 4.0]]), jnp.array([[0.0, 1.0], [-3.0, -4.0]])))
      [1. 2.]
    """
    x, y = x.astype(jnp.float32), y.astype(jnp.float32)
    norms = (jnp.square(x).sum(-1) + 1e-12) * (jnp.square(y).sum(-1) + 1e-12)
    return 1 - (x * y).sum(-1) * jax.lax.rsqrt(norms)


def sample(hidden_BxTxD: jax.Array, projection: Projection, key: jax.Array, *, chunk: int = 0) -> jax.Array:
    """Samples a token for each hidden state from softmax(projection(hidden)), with the Gumbel-max trick.

    A draw depends only on key, row and position, not on `chunk` or the mesh. No gradient flows through it.

    Args:
      hidden_BxTxD: hidden states.
      projection: as in `token_loss`.
      key: random key.
      chunk: positions per chunk; 0: see `jaxpt.models.logits.chunk_length`.

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
      chunk: positions per chunk; 0: see `jaxpt.models.logits.chunk_length`.

    Returns:
      (float32 [B, T] in nats, bool [B, T]); the most likely token is what argmax gives, the first one of a tie.

    Example:
      >>> from jaxpt.models.output import Projection
      >>> log_probs, is_best = token_log_probs(jnp.zeros((1, 2, 4)), Projection(jnp.eye(4)), jnp.array([[0, 3]]))
      >>> print(log_probs, is_best)
      [[-1.3862944 -1.3862944]] [[ True False]]
    """
    axis = vocab_axis(projection)

    def scores(logits: jax.Array, targets_BxC: jax.Array) -> tuple[jax.Array, jax.Array]:
        highest_BxC, _, sum_BxC = _softmax(logits, axis)
        gold_BxC = _gold(logits, targets_BxC, axis)
        is_highest, targets = logits == jnp.expand_dims(highest_BxC, axis), jnp.expand_dims(targets_BxC, axis)
        is_later_BxC = (is_highest & (_index(logits, axis) < targets)).any(axis)  # faster than argmax
        return gold_BxC - (highest_BxC + jnp.log(sum_BxC)), (gold_BxC == highest_BxC) & ~is_later_BxC

    return map_logits(scores, hidden_BxTxD, projection, targets_BxT, chunk=chunk, vocab_axis=axis)


def _token_score(
    logits: jax.Array,
    constants: None,
    targets_BxC: jax.Array,
    weights_BxCxP: jax.Array,
    *,
    axis: int,
    vocab_size: int,
    z_loss: float,
    label_smoothing: float,
) -> tuple[jax.Array, jax.Array]:
    """[Σ loss, Σ correct, Σ cross-entropy] of a chunk with the first weights, Σ cross-entropy with the others; and the
    gradient of the first one."""
    highest_BxC, exps, sum_BxC = _softmax(logits, axis)
    log_z_BxC, gold_BxC = highest_BxC + jnp.log(sum_BxC), _gold(logits, targets_BxC, axis)
    entropy_BxC = log_z_BxC - gold_BxC
    # A sum over the vocabulary instead of argmax: it can be fused and sharded, and counts ties as wrong.
    correct_BxC = (logits >= jnp.expand_dims(gold_BxC, axis)).sum(axis) == 1
    loss_BxC = entropy_BxC + z_loss * jnp.square(log_z_BxC)
    weights_BxC = weights_BxCxP[..., 0].astype(jnp.float32)
    # (1 + 2 · z_loss · log Z) · softmax − the target's distribution, each times the weight
    slope = exps * jnp.expand_dims((1 + 2 * z_loss * log_z_BxC) / sum_BxC * weights_BxC, axis)
    is_target = _index(logits, axis) == jnp.expand_dims(targets_BxC, axis)
    slope -= jnp.where(is_target, jnp.expand_dims((1 - label_smoothing) * weights_BxC, axis), 0.0)
    if label_smoothing:
        # The cross-entropy with uniform targets is log Z − the mean logit: one more sum over the logits at hand.
        is_real = _index(logits, axis) < vocab_size
        mean_BxC = jnp.where(is_real, logits, 0.0).sum(axis) / vocab_size
        loss_BxC += label_smoothing * (gold_BxC - mean_BxC)
        slope -= jnp.where(is_real, jnp.expand_dims(label_smoothing / vocab_size * weights_BxC, axis), 0.0)
    weighted = [x * weights_BxC for x in (loss_BxC, correct_BxC, entropy_BxC)]
    weighted += [entropy_BxC * weights_BxCxP[..., p] for p in range(1, weights_BxCxP.shape[-1])]
    return jnp.stack([x.sum(dtype=jnp.float32) for x in weighted]), slope


def _kl_score(
    student: jax.Array,
    projection: Projection,
    teacher_BxCxE: jax.Array,
    weights_BxC: jax.Array,
    *,
    axis: int,
    temperature: float,
) -> tuple[jax.Array, jax.Array]:
    """[Σ divergence, Σ agreement] of a chunk, and the gradient of the first one."""
    teacher = projection(teacher_BxCxE, vocab_axis=axis)
    log_s, log_t = (jax.nn.log_softmax(x / temperature, axis) for x in (student, teacher))
    kl_BxC = temperature**2 * (jnp.exp(log_t) * (log_t - log_s)).sum(axis)
    likeliest = [x >= x.max(axis, keepdims=True) for x in (student, teacher)]
    agree_BxC = (likeliest[0] & likeliest[1]).any(axis)
    sums = jnp.stack([(x * weights_BxC).sum(dtype=jnp.float32) for x in (kl_BxC, agree_BxC)])
    return sums, temperature * (jnp.exp(log_s) - jnp.exp(log_t)) * jnp.expand_dims(weights_BxC, axis)


def _softmax(logits: jax.Array, axis: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """(highest logit, exp(logits − highest), its sum): softmax = exp / sum, log Z = highest + log sum."""
    highest_BxC = logits.max(axis)
    exps = jnp.exp(logits - jnp.expand_dims(highest_BxC, axis))
    return highest_BxC, exps, exps.sum(axis)


def _gold(logits: jax.Array, targets: jax.Array, axis: int) -> jax.Array:
    """The target's logit; by comparison instead of a gather, as the vocabulary may be sharded."""
    return jnp.where(_index(logits, axis) == jnp.expand_dims(targets, axis), logits, 0.0).sum(axis)


def _index(logits: jax.Array, axis: int) -> jax.Array:
    """0 … V − 1 along the vocabulary's axis."""
    return jax.lax.broadcasted_iota(jnp.int32, logits.shape, axis % logits.ndim)
