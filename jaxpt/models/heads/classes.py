"""The heads of fine-tuning: dropout(pooler(x)) · W + b, with the hidden states x of texts or tokens.

    "classes"  a whole text's logits            "tags"    each token's logits
    "span"     each token's as start and end    "choice"  one logit per text, of several that are compared

`ModelConfig.task_head` says which x an architecture takes and what its pooler is. The layers and the names of their
parameters' tensors are those of the architecture's classes in transformers (`jaxpt.hf`).

Shapes: D width of the hidden states
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxpt.config import HEAD_NAMES, HeadName, ModelConfig
from jaxpt.errors import UserError
from jaxpt.models.base import Bound
from jaxpt.models.heads import INIT, pooler
from jaxpt.models.layers import Dense, Dropout
from jaxpt.models.network import Head

ALL = "*"
"""Instead of a task of a mixture: the heads of all of its tasks, side by side."""
OUTPUTS: dict[str, int] = {"span": 2, "choice": 1}
"""Number of logits of the heads that have no labels: start and end; one."""


class Classes(nn.Module):
    """dropout(x) · W + b, in float32."""

    outputs: int
    dropout: float = 0.0
    use_bias: bool = True

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """[..., D] → float32 [..., outputs]."""
        x = Dropout(self.dropout)(x)
        return Dense(self.outputs, ("embed", "classes"), INIT, jnp.float32, self.use_bias, name="dense")(x)


def declare(
    model: ModelConfig,
    name: HeadName,
    outputs: int | None = None,
    dropout: float | None = None,
    part: str | None = None,
    width: int | None = None,
) -> dict[str, Head]:
    """The head `name` of a backbone, and the pooler before it if the backbone has one.

    Args:
      model: configuration of the backbone.
      name: of the head.
      outputs: number of labels; by default 2 for "span" and 1 for "choice".
      dropout: rate before W, and before the pooler where it has dropout. By default the model's, where the class in
        transformers has dropout.
      part: the task of a mixture that the head is for: its own name is then `called(name, part)`.
      width: of the states that the head reads; the model's by default.

    Returns:
      {"pooler": head, name: head}, or {name: head}.

    Example:
      >>> network = Network(model.build(), classes.declare(model, "classes", 3))
      >>> x_BxD = bound.encode(tokens_BxL).hidden[:, 0]  # model.task_head("classes").position is "first"
      >>> logits_Bx3 = classes.apply(bound, "classes", x_BxD)
    """
    options = model.task_head(name)
    rate = getattr(model, "dropout", 0.0) if dropout is None else dropout
    before = rate if options.drops_out or dropout is not None else 0.0
    classes = Classes(OUTPUTS[name] if outputs is None else outputs, before, options.use_bias)
    heads = pooler.declare(model, options.pooler, rate) | {called(name, part): Head(classes)}
    inputs = None if width is None else (jax.ShapeDtypeStruct((1, 1, width), jnp.float32),)
    return {name: dataclasses.replace(head, inputs=inputs) for name, head in heads.items()}


def called(name: HeadName, part: str | None) -> str:
    """Name of a task's own head among those of a mixture, such as `classes_sst2`; `name` itself without one."""
    return name if part is None else f"{name}_{part}"


def apply(bound: Bound, name: HeadName, x: jax.Array, part: str | None = None) -> jax.Array:
    """Applies the pooler, if the architecture has one for this head, and the head.

    Args:
      bound: a network with the heads of `declare`.
      name: of the head.
      x: hidden states at the positions that `task_head(name).position` names, [..., D]; of `late` what the pooler has
        made of them.
      part: as in `declare`; `ALL`: the outputs of all tasks with such a head, one after the other (`parts`).

    Returns:
      float32 [..., outputs].
    """
    options = bound.config.task_head(name)
    x = x if options.pooler is None or options.position == "late" else bound.heads["pooler"](x)
    if part == ALL:
        return jnp.concatenate([bound.heads[called(name, task)](x) for task in parts(bound.heads, name)], axis=-1)
    return bound.heads[called(name, part)](x)


def parts(heads: Mapping[str, Any], name: HeadName) -> list[str]:
    """The tasks of a mixture that have a head of some name, in the order of their outputs with `ALL`."""
    prefix = called(name, "")
    return [head.removeprefix(prefix) for head in heads if head.startswith(prefix)]


def name_of(heads: Iterable[str]) -> str | None:
    """The head of fine-tuning among names of heads; None without one.

    Raises:
      UserError: there are several.
    """
    names = [name for name in HEAD_NAMES if name in set(heads)]
    if len(names) > 1:
        raise UserError(f"heads: one head of {', '.join(HEAD_NAMES)} is supported here, not {' and '.join(names)}")
    return names[0] if names else None


def outputs_of(heads: Mapping[str, Head]) -> int:
    """Number of logits of the head of fine-tuning; 0 without one."""
    name = name_of(heads)
    return 0 if name is None else heads[name].module.outputs
