"""Losses over a few classes: smoothed labels, weights of classes, and R-Drop. Logits are small: nothing is in chunks.

Shapes: K classes
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from jaxpt.errors import UserError


def class_cross_entropy(
    logits: jax.Array,
    targets: jax.Array,
    *,
    label_smoothing: float = 0.0,
    class_weights: Sequence[float] | jax.Array | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Cross-entropy with the smoothed one-hot distribution, each class with a weight, in float32.

        loss = Σ_k q_k · w_k · −log softmax(logits)_k,   q = (1 − ε) · one-hot(target) + ε / K,   weight = w_target

    Σ loss / Σ weight is PyTorch's `CrossEntropyLoss(weight=w, label_smoothing=ε)`: the smoothed part has the weight of
    each class k, the denominator only those of the targets.

    Args:
      logits: [..., K], unnormalised.
      targets: [...], int ids below K.
      label_smoothing: ε.
      class_weights: w, [K]; all 1 by default.

    Returns:
      (loss [...], weight [...]), float32, in nats.

    Example:
      >>> loss, weight = class_cross_entropy(jnp.zeros((1, 2)), jnp.array([1]), class_weights=jnp.array([1.0, 3.0]))
      >>> print(loss / weight)
      [0.6931472]
    """
    log_p = jax.nn.log_softmax(logits.astype(jnp.float32))
    classes = logits.shape[-1]
    w = jnp.ones(classes) if class_weights is None else jnp.asarray(class_weights, jnp.float32)
    is_target = jnp.arange(classes) == targets[..., None]
    # A logit of -inf is a class that cannot be: 0 · inf would be NaN.
    q = (1 - label_smoothing) * is_target + label_smoothing / classes
    loss = -jnp.where(q > 0, q * w * log_p, 0.0).sum(-1)
    return loss, (is_target * w).sum(-1)


def balanced_class_weights(counts: Sequence[int], labels: Sequence[str] = ()) -> np.ndarray:
    """Weights of classes under which each class counts as much as the others: n / (K · n_k), as in scikit-learn.

    Args:
      counts: n_k, training examples of each class.
      labels: their names, for the message.

    Returns:
      float32 [K]; Σ n_k · w_k = n.

    Raises:
      UserError: a class has no example.

    Example:
      >>> print(balanced_class_weights([1, 3]))
      [2.        0.6666667]
    """
    n = _occurring(counts, labels)
    return (n.sum() / (len(n) * n)).astype(np.float32)


def balanced_label_weights(counts: Sequence[int], rows: int, labels: Sequence[str] = ()) -> np.ndarray:
    """Weights of the labels that a row has. With them, rows with a label count as much as rows without it.

    Args:
      counts: n_k, training rows that have each label.
      rows: n, all training rows.
      labels: their names, for the message.

    Returns:
      float32 [K]: (n − n_k) / n_k, with at least 1 row in place of n − n_k.

    Raises:
      UserError: no row has a label.

    Example:
      >>> print(balanced_label_weights([1, 2], 4))
      [3. 1.]
    """
    n = _occurring(counts, labels)
    return (np.maximum(rows - n, 1) / n).astype(np.float32)


def _occurring(counts: Sequence[int], labels: Sequence[str]) -> np.ndarray:
    """The counts as floats; raises UserError where one is 0."""
    n = np.asarray(counts, np.float64)
    if not n.all():
        missing = [str(labels[k]) if labels else f"number {k}" for k in np.flatnonzero(n == 0)]
        raise UserError(f"class_weights: balanced: no training example has the class {', '.join(missing)}")
    return n


def r_drop(logits_1: jax.Array, logits_2: jax.Array) -> jax.Array:
    """R-Drop's divergence of two predictions of one input that differ in their dropout, in float32.

        ½ · (KL(p ‖ q) + KL(q ‖ p)),   p = softmax(logits_1), q = softmax(logits_2)

    Both sides have a gradient. The released loss of an example is CE(p) + CE(q) + α · r_drop. In
    `jaxpt.objectives.classification` it is ½ · (CE(p) + CE(q)) + α · r_drop: half as large with half of that α.

    Args:
      logits_1: [..., K], unnormalised.
      logits_2: [..., K], from the other pass.

    Returns:
      float32 [...], in nats.

    Example:
      >>> round(float(r_drop(jnp.array([0.0, jnp.log(3.0)]), jnp.zeros(2))), 4)
      0.1373

    Paper: https://arxiv.org/abs/2106.14448
    """
    log_p, log_q = (jax.nn.log_softmax(logits.astype(jnp.float32)) for logits in (logits_1, logits_2))
    # Σ p·(log p − log q) + Σ q·(log q − log p); a class that is masked in both passes adds nothing.
    apart = jnp.where(jnp.isneginf(log_p) & jnp.isneginf(log_q), 0.0, log_p - log_q)
    return 0.5 * ((jnp.exp(log_p) - jnp.exp(log_q)) * apart).sum(-1)
