"""The KV cache of a decoder: a ring of slots that all rows of a batch write in step.

Shapes: N layers · B batch · L new tokens · S slots · W slots of a layer · M encoder length · G key heads · K head width

The newest token of every row is at the same slot, and token i before it is i slots earlier, modulo S. So a step writes
one slice in place, and the distance between query and key does not depend on the row. Rows of different length end at
the same slot and begin at different ones: segment ids say which slots a row uses, positions count from its first token.
A layer with a window has a ring of its own, only as large as the window: column i of the row is in its slot i mod W.

    output = model.decode(prompt, segment_ids=…, cache=NewCache(slots=256))      # right-aligned prompts, padding first
    output = model.decode(next_tokens_Bx1, cache=output.cache)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import flax
import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxpt.models.layers import mesh_axes
from jaxpt.models.mask import Mask
from jaxpt.models.output import CROSS, Output, Past
from jaxpt.parallel import compiler

LANES = 128
"""A TPU pads the last axis of an array to this width."""


FAST_BYTES = 2**26
"""A layer's keys and values up to this size stay in a TPU's VMEM between their two uses."""


@flax.struct.dataclass
class NewCache:
    """A request for a cache: `decode` attends within the given tokens, as in training, and returns a `Cache`."""

    slots: int = flax.struct.field(pytree_node=False)
    """S: at least the number of tokens that a row will have, or the largest window if all layers have one."""
    chunk: int = flax.struct.field(pytree_node=False, default=1)
    """Largest number of tokens in one later call: layers with a window keep so many slots more."""

    def slots_of(self, window: int | None) -> int:
        """W: slots of a layer.

        Example:
          >>> NewCache(slots=4096, chunk=64).slots_of(1024), NewCache(slots=4096).slots_of(None)
          (1087, 4096)
        """
        return self.slots if window is None else min(self.slots, window + self.chunk - 1)


@flax.struct.dataclass
class KeyValues:
    """Keys and values of one attention, of all layers of a segment."""

    keys: jax.Array
    """[N, B, G, W, K]; without the layers axis in the output of a block that made it."""
    values: jax.Array | None
    """Of the same shape. None: keys have values to their right, [N, B, G, W, 2 · K] (narrow heads on a TPU)."""

    @property
    def slots(self) -> int:
        """W."""
        return self.keys.shape[-2]

    @classmethod
    def of(cls, k_BxLxGxK: jax.Array, v_BxLxGxK: jax.Array, slots: int) -> KeyValues:
        """Stores the keys and values of a prompt in slots 0 … L − 1; the last W if there are more."""
        L, G, K = k_BxLxGxK.shape[1:]
        heads = None if G % math.prod(mesh_axes("act_heads").values()) else "act_heads"

        def stored(x_BxLxGxK: jax.Array) -> jax.Array:
            x_BxGxLxK = x_BxLxGxK.transpose(0, 2, 1, 3)
            if slots < L:  # a ring: token i is in slot i mod W
                x_BxGxLxK = jnp.roll(x_BxGxLxK[:, :, L - slots :], L % slots, axis=2)
            x_BxGxWxK = jnp.pad(x_BxGxLxK, ((0, 0), (0, 0), (0, max(slots - L, 0)), (0, 0)))
            return nn.with_logical_constraint(x_BxGxWxK, ("batch", heads, None, None))

        if compiler.platform() == "tpu" and 2 * K <= LANES:
            return cls(stored(jnp.concatenate([k_BxLxGxK, v_BxLxGxK], axis=-1)), None)
        return cls(stored(k_BxLxGxK), stored(v_BxLxGxK))

    def write(self, k_BxLxGxK: jax.Array, v_BxLxGxK: jax.Array, layer: jax.Array, column: jax.Array) -> KeyValues:
        """Writes the keys and values of one layer's new tokens, in place if donated.

        Args:
          k_BxLxGxK: keys.
          v_BxLxGxK: values.
          layer: index of the layer.
          column: of the first token; it goes to slot `column` mod W.

        Returns:
          The updated arrays.
        """
        slot = column % self.slots

        def put(stored: jax.Array, x_BxLxGxK: jax.Array) -> jax.Array:
            x_BxLxGxK = x_BxLxGxK.astype(stored.dtype)
            if x_BxLxGxK.shape[1] == 1:
                return jax.lax.dynamic_update_slice(
                    stored, x_BxLxGxK.transpose(0, 2, 1, 3)[None], (layer, 0, 0, slot, 0)
                )
            at_L = (slot + jnp.arange(x_BxLxGxK.shape[1])) % stored.shape[3]
            return stored.at[layer, :, :, at_L].set(x_BxLxGxK.transpose(1, 0, 2, 3))

        if self.values is None:
            return KeyValues(put(self.keys, jnp.concatenate([k_BxLxGxK, v_BxLxGxK], axis=-1)), None)
        return KeyValues(put(self.keys, k_BxLxGxK), put(self.values, v_BxLxGxK))

    def read(self, layer: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Keys and values of one layer, [B, W, G, K]; both of width 2 · K if they are stored in one array."""

        def take(stored: jax.Array) -> jax.Array:
            return jax.lax.dynamic_index_in_dim(stored, layer, axis=0, keepdims=False).transpose(0, 2, 1, 3)

        if self.values is None:
            both = take(self.keys)
            ways = math.prod((mesh_axes("batch") | mesh_axes("act_heads")).values())
            # The barrier makes the compiler read them once, for both products.
            if both.size * both.dtype.itemsize // ways <= FAST_BYTES:
                both = jax.lax.optimization_barrier(both)
            return both, both
        return take(self.keys), take(self.values)


@flax.struct.dataclass
class Cache:
    """The cache of a decoder between two calls of `decode`."""

    layers: Any
    """`Output.cache` of the stack: a tuple over segments of tuples over blocks of {attention: KeyValues}."""
    segments_BxS: jax.Array
    """Segment id of the token in each slot, 0: empty or padding. Layers with fewer slots have the newest of them."""
    length_B: jax.Array
    """Position of the next token: the number of tokens so far, where the first one is at position 0."""
    written: jax.Array
    """int32 []: number of columns so far; the next one goes to slot `written` mod S."""
    memory_segments_BxM: jax.Array | None = None
    """The encoder's segment ids; its keys and values are in `layers`."""

    @property
    def slots(self) -> int:
        """S."""
        return self.segments_BxS.shape[1]

    def take_rows(self, index_R: jax.Array) -> Cache:
        """The cache of some rows, such as beams of the same prompt, or their parents.

        With as many rows as before, each must have the prompt of the one that it replaces: the encoder's keys and
        values are not reordered.
        """

        def take(x: jax.Array, axis: int = 0) -> jax.Array:
            return jnp.take(x, index_R, axis=axis, mode="clip")

        def of_layer(path: Any, x: jax.Array) -> jax.Array:
            return x if same and _is_cross(path) else take(x, 1)

        same, memory = len(index_R) == len(self.length_B), self.memory_segments_BxM
        return self.replace(
            layers=jax.tree_util.tree_map_with_path(of_layer, self.layers), segments_BxS=take(self.segments_BxS),
            length_B=take(self.length_B), memory_segments_BxM=memory if same or memory is None else take(memory),
        )  # fmt: skip

    def put_rows(self, index_R: jax.Array, new: Cache) -> Cache:
        """Replaces rows by those of a cache with at most as many slots, so that both end at the same slot.

        Args:
          index_R: the rows to replace; numbers outside of the batch are ignored.
          new: a cache of R rows, with all tokens of each in its slots, or as many slots as this one.

        Returns:
          The cache with these rows; `written` does not change.
        """

        def at(count: int, slots: int) -> jax.Array:
            """Where the new cache's first `count` slots are in a ring."""
            return (self.written - new.written + jnp.arange(count)) % slots

        def put(path: Any, stored: jax.Array, x: jax.Array) -> jax.Array:
            if _is_cross(path):
                return stored.at[:, index_R].set(x, mode="drop")
            x_RxWxNxGxK = x.transpose(1, 3, 0, 2, 4)  # indices of rows and slots come first
            at_W = at(x.shape[3], stored.shape[3])
            return stored.at[:, index_R[:, None], :, at_W].set(x_RxWxNxGxK, mode="drop")

        at_S = at(new.slots, self.slots)
        segments = jnp.zeros((len(index_R), self.slots), jnp.int32).at[:, at_S].set(new.segments_BxS)
        memory = self.memory_segments_BxM
        if memory is not None:
            memory = memory.at[index_R].set(new.memory_segments_BxM, mode="drop")
        return self.replace(
            layers=jax.tree_util.tree_map_with_path(put, self.layers, new.layers),
            segments_BxS=self.segments_BxS.at[index_R].set(segments, mode="drop"),
            length_B=self.length_B.at[index_R].set(new.length_B, mode="drop"),
            memory_segments_BxM=memory,
        )  # fmt: skip


def attended(
    past: Past, mask: Mask, project: Callable[[], tuple[jax.Array, jax.Array]]
) -> tuple[jax.Array, jax.Array, Mask, KeyValues | None]:
    """The keys and values that one attention reads, and what it stores.

    Args:
      past: from `Past.of`, of one attention.
      mask: from `Step`, with the layer's window.
      project: computes keys and values [B, L, G, K] of the given tokens; not called if all are in the cache.

    Returns:
      (keys [B, L or W, G, K], values, the mask of these keys, what to return in `Output.cache`). Keys and values are
      the same array, of width 2 · K, if one array stores both.
    """
    if past.cache is None:
        return *project(), mask, None
    if isinstance(past.cache, NewCache):
        k_BxLxGxK, v_BxLxGxK = project()
        slots = k_BxLxGxK.shape[1] if past.is_fixed else past.cache.slots_of(mask.window)
        return k_BxLxGxK, v_BxLxGxK, mask, KeyValues.of(k_BxLxGxK, v_BxLxGxK, slots)
    if past.is_fixed:
        return *past.cache.read(past.layer), mask, past.cache
    stored = past.cache.write(*project(), past.layer, past.column)
    return *stored.read(past.layer), _of_newest(mask, stored.slots, past.column), stored


def _of_newest(mask: Mask, slots: int, column: jax.Array) -> Mask:
    """The mask of a smaller ring of W slots, from that of all S."""
    length, all_slots = mask.query_segments_BxL.shape[1], mask.key_segments_BxS.shape[1]
    if slots == all_slots:
        return mask
    if slots < mask.window + length - 1:
        raise ValueError(f"{length} tokens at once, but the cache was made for fewer; ask for NewCache(chunk={length})")
    newest = column + length - 1
    age_W = (newest - jnp.arange(slots)) % slots
    segments_BxW = jnp.take(mask.key_segments_BxS, (newest - age_W) % all_slots, axis=1)
    return mask.replace(key_segments_BxS=segments_BxW, key_index_S=all_slots - 1 - age_W)


class Step:
    """One call of `decode`: positions and masks of the given tokens, with or without a cache.

    Attributes:
      length: L.
      positions: [B, L], or None: 0 … L − 1.
      past: for the stack.
    """

    def __init__(
        self,
        cache: Cache | NewCache | None,
        tokens_BxL: jax.Array,
        segment_ids: jax.Array | None,
        positions: jax.Array | None,
        memory_segments: jax.Array | None = None,
        branches: jax.Array | None = None,
    ) -> None:
        """Takes the arguments of `decode`; `memory_segments` are the encoder's segment ids."""
        self._cache, self._shape, self._branches = cache, tokens_BxL.shape, branches
        self.length = tokens_BxL.shape[1]
        self.segment_ids, self.positions = segment_ids, positions
        self.memory_segments = memory_segments
        self.past = Past()
        if cache is None:
            return
        counted = jnp.ones(self._shape, jnp.int32) if segment_ids is None else (segment_ids != 0).astype(jnp.int32)
        self._added_B = counted.sum(1)
        first_Bx1 = 0
        if isinstance(cache, Cache):
            first_Bx1, self.memory_segments = cache.length_B[:, None], cache.memory_segments_BxM
            self.segment_ids = counted if segment_ids is None else segment_ids
            self.past = Past(cache.layers, column=cache.written)
            at_L = (cache.written + jnp.arange(self._shape[1])) % cache.slots
            self._segments_BxS = cache.segments_BxS.at[:, at_L].set(self.segment_ids)
        else:
            self.past = Past(cache)
        if positions is None and (isinstance(cache, Cache) or segment_ids is not None):
            self.positions = first_Bx1 + jnp.maximum(counted.cumsum(1) - 1, 0)

    def mask(self, prefix: jax.Array | None = None, window: int | None = None) -> Mask:
        """The causal mask of self-attention, over the slots of the cache if there are any."""
        if not isinstance(self._cache, Cache):
            return Mask(
                self.segment_ids, self.segment_ids, prefix_BxS=prefix, query_branches_BxL=self._branches,
                key_branches_BxS=self._branches, causal=True, window=window,
            )  # fmt: skip
        slots, length = self._cache.slots, self._shape[1]
        order_S = (jnp.arange(slots) - self._cache.written - length) % slots  # the newest token is the last one
        return Mask(
            self.segment_ids, self._segments_BxS, offset=jnp.int32(slots - length), key_index_S=order_S, causal=True,
            window=window,
        )  # fmt: skip

    def memory_mask(self) -> Mask:
        """The mask of cross-attention."""
        return Mask(self.segment_ids, self.memory_segments)

    def finish(self, output: Output) -> Output:
        """The output of `decode`, with the updated cache."""
        if self._cache is None:
            return output
        if isinstance(self._cache, NewCache):
            ids = jnp.ones(self._shape, jnp.int32) if self.segment_ids is None else self.segment_ids
            length, slots = self._shape[1], self._cache.slots
            slot_ids = jnp.roll(ids[:, -slots:], length % slots, axis=1) if length > slots else ids
            segments_BxS = jnp.pad(slot_ids, ((0, 0), (0, max(slots - length, 0))))
            written = jnp.int32(length)
            cache = Cache(output.cache, segments_BxS, self._added_B, written, self.memory_segments)
        else:
            before = self._cache
            cache = before.replace(
                layers=output.cache, segments_BxS=self._segments_BxS, length_B=before.length_B + self._added_B,
                written=before.written + self._shape[1],
            )  # fmt: skip
        return output.replace(cache=cache)


def stored(**attentions: KeyValues | None) -> dict[str, KeyValues] | None:
    """`Output.cache` of a block: what its attentions store, None without a cache."""
    key_values = {name: kv for name, kv in attentions.items() if kv is not None}
    return key_values or None


def _is_cross(path: Any) -> bool:
    """True for a leaf of cross-attention."""
    return any(getattr(key, "key", None) == CROSS for key in path)
