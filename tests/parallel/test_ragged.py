"""All-to-all of pieces of different lengths."""

import jax
import numpy as np
from jax.sharding import PartitionSpec

from jaxpt.parallel import ragged

DEVICES = 4


def test_pieces_arrive_where_they_were_sent():
    """Two pieces for each of two devices, as the documentation of `jax.lax.ragged_all_to_all` says it, in NumPy."""
    mesh = jax.make_mesh((DEVICES,), ("expert",), (jax.sharding.AxisType.Auto,), devices=jax.devices()[:DEVICES])
    rng = np.random.default_rng(0)
    sizes = rng.integers(0, 4, (DEVICES, 2 * DEVICES)).astype(np.int32)
    starts = np.cumsum(sizes, axis=1, dtype=np.int32) - sizes
    x = rng.normal(size=(DEVICES, 30, 3)).astype(np.float32)
    into, places, received = np.full((DEVICES, 40, 3), -1, np.float32), np.zeros_like(sizes), np.zeros_like(sizes)
    wanted, ends = into.copy(), np.ones(DEVICES, np.int32)
    for sender in range(DEVICES):
        for piece in range(2 * DEVICES):
            to, start, size = piece // 2, starts[sender, piece], sizes[sender, piece]
            places[sender, piece] = ends[to]
            received[to, 2 * sender + piece % 2] = size
            wanted[to, ends[to] : ends[to] + size] = x[sender, start : start + size]
            ends[to] += size

    def send(*arguments):
        return ragged.all_to_all(*(x[0] for x in arguments), "expert")[None]

    rows = PartitionSpec("expert")
    sent = jax.shard_map(send, mesh=mesh, in_specs=(rows,) * 6, out_specs=rows, check_vma=False)
    found = jax.jit(sent)(x, into, starts, sizes, places, received)
    np.testing.assert_array_equal(found, wanted)
