"""A stack of layers: a short list of segments, each a pattern of blocks that is scanned and rematerialised.

Shapes: B batch · L length · S memory length · D embedding width · H heads

A block is an `nn.Module` called as `block(x_BxLxD, inputs, shared) -> (x_BxLxD, outputs)`. `inputs` and `outputs` are
the layer's own (None, or a cache), `shared` is alike for all layers.

What each layer saw is there for the asking: `model.apply(…, mutable=["layers"])`, then `layer_inputs`. Who does not ask
pays nothing.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import flax
import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.core.scope import LazyRng
from jax.extend.core.primitives import dot_general_p

from jaxpt.models import pipeline
from jaxpt.models.mask import Mask

# Memory first: the projections around attention are kept, scores and the wide feed-forward are computed again.
SAVED_NAMES = ("query", "key", "value", "context")


@flax.struct.dataclass
class Shared:
    """What all layers of a stack are given alike."""

    mask: Mask
    bias_HxLxS: jax.Array | None = None
    memory_BxSxD: jax.Array | None = None
    """What cross-attention looks at."""
    memory_mask: Mask | None = None
    positional: Any = None
    """What the architecture's positions give every layer: rotations, relative embeddings."""
    deterministic: bool = flax.struct.field(pytree_node=False, default=True)


@dataclasses.dataclass(frozen=True)
class Segment:
    """A pattern of blocks, repeated: `Segment((local, local, global_), 8)` is 24 layers."""

    blocks: tuple[Callable[..., nn.Module], ...]
    """Makers of blocks, called as `make(name=…)`."""
    repeats: int
    shared: bool = False
    """All repetitions have the same parameters, which then have no layers axis (ALBERT)."""


class _Pattern(nn.Module):
    """One repetition of a segment: its blocks one after the other."""

    blocks: tuple[Callable[..., nn.Module], ...]

    @nn.compact
    def __call__(self, x_BxLxD: jax.Array, inputs: Any, shared: Shared) -> tuple[jax.Array, Any]:
        inputs = (None,) * len(self.blocks) if inputs is None else inputs
        outputs = []
        for index, (make, given) in enumerate(zip(self.blocks, inputs, strict=True)):
            self.sow("layers", f"input_{index}", x_BxLxD, init_fn=lambda: None, reduce_fn=lambda _, x: x)
            x_BxLxD, output = make(name=f"block_{index}")(x_BxLxD, given, shared)
            outputs.append(output)
        return x_BxLxD, tuple(outputs)


class Stack(nn.Module):
    """Runs segments of layers; parameters of a segment have a leading "layers" axis.

    Attributes:
      segments: the layers, in order.
      remat: what the backward pass computes again: "none", "full", "dots" (all but matmuls without a batch) or
        "names" (all but `SAVED_NAMES`).
      unroll: repetitions of a segment's pattern that one turn of the compiled loop does.
    """

    segments: tuple[Segment, ...]
    remat: str = "none"
    unroll: int = 1

    @nn.compact
    def __call__(
        self, x_BxLxD: jax.Array, shared: Shared, inputs: tuple[Any, ...] | None = None
    ) -> tuple[jax.Array, tuple[Any, ...]]:
        """Runs all layers.

        Args:
          x_BxLxD: what the first layer sees.
          shared: what all layers see.
          inputs: for each segment a tuple with each block's own inputs, leaves with a leading layers axis.

        Returns:
          (x [B, L, D], each block's own outputs in the structure of `inputs`).
        """
        outputs = []
        for index, segment in enumerate(self.segments):
            run = self._init if self.is_initializing() else self._apply
            given = None if inputs is None else inputs[index]
            x_BxLxD, output = run(segment, f"segment_{index}", x_BxLxD, given, shared)
            outputs.append(output)
        return x_BxLxD, tuple(outputs)

    @nn.nowrap
    def _init(self, segment: Segment, name: str, x_BxLxD: jax.Array, inputs: Any, shared: Shared) -> tuple[Any, Any]:
        """Makes the segment's parameters on the way."""
        scanned = nn.scan(
            _Pattern,
            variable_axes={} if segment.shared else {"params": 0},
            variable_broadcast="params" if segment.shared else False,
            split_rngs={"params": not segment.shared},
            in_axes=(0, nn.broadcast),
            length=segment.repeats,
            metadata_params={nn.PARTITION_NAME: "layers"},
        )
        return scanned(segment.blocks, name=name)(x_BxLxD, inputs, shared)

    @nn.nowrap
    def _apply(self, segment: Segment, name: str, x_BxLxD: jax.Array, inputs: Any, shared: Shared) -> tuple[Any, Any]:
        """As a function of the parameters: `nn.scan` would trace a layer twice, and knows of no stages."""
        pattern, params = _Pattern(segment.blocks, parent=None, name=name), self.variables["params"][name]
        rngs = {} if shared.deterministic else self.scope.rngs
        keys = {purpose: jax.random.split(rng.rng, segment.repeats) for purpose, rng in rngs.items()}
        asked = ["layers"] if self.is_mutable_collection("layers") else []

        def layer(x_BxLxD: jax.Array, own: Any, shared: Shared) -> tuple[jax.Array, Any]:
            of_layer, keys, given = own
            variables = {"params": params if segment.shared else of_layer}
            lazy = {purpose: LazyRng(keys[purpose], (*rng.suffix, name)) for purpose, rng in rngs.items()}
            (x_BxLxD, output), sown = pattern.apply(variables, x_BxLxD, given, shared, rngs=lazy, mutable=asked)
            return x_BxLxD, (output, sown)

        if self.remat != "none":
            layer = jax.checkpoint(layer, policy=_kept(self.remat), prevent_cse=False)  # needed by no scan's body
        scan = functools.partial(jax.lax.scan, unroll=min(self.unroll, segment.repeats))
        if segment.shared or pipeline.stages() == 1:
            own = None if segment.shared else params, keys, inputs
            found = scan(lambda x, own: layer(x, own, shared), x_BxLxD, own, segment.repeats)
        else:
            found = pipeline.run(layer, params, (keys, inputs), x_BxLxD, shared, scan)
        x_BxLxD, (output, sown) = found
        for collection, found in sown.items():
            self.put_variable(collection, name, found)
        return x_BxLxD, output


def layer_inputs(sown: Mapping[str, Any]) -> Any:
    """What each layer of one stack saw: the embeddings, then every layer's output but the last one's.

    Args:
      sown: the stack's part of the "layers" collection, {"segment_0": {"input_0": [repeats, B, L, D], …}, …}.

    Returns:
      [layers, B, L, D], or a tree of such where a block's input is one.
    """

    def pattern(inputs: Mapping[str, Any]) -> Any:
        blocks = [inputs[f"input_{i}"] for i in range(len(inputs))]
        return jax.tree.map(lambda *x: jnp.stack(x, axis=1).reshape(-1, *x[0].shape[1:]), *blocks)

    return jax.tree.map(lambda *x: jnp.concatenate(x), *(pattern(sown[f"segment_{i}"]) for i in range(len(sown))))


def _kept(policy: str) -> Callable[..., Any] | None:
    """What of a layer is kept for the backward pass; None: nothing but what goes in."""
    return {
        "full": None,
        "dots": functools.partial(_is_plain_dot, 0 if pipeline.stages() == 1 else 1),
        "names": jax.checkpoint_policies.save_only_these_names(*SAVED_NAMES),
    }[policy]


def _is_plain_dot(batch_axes: int, primitive: Any, *_: Any, **params: Any) -> bool:
    """Whether it is a product with weights, of all stages at once where there are any; attention's have more axes."""
    return primitive is dot_general_p and len(params["dimension_numbers"][1][0]) == batch_axes
