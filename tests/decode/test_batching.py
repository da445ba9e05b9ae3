"""Batches have few static shapes, and their rows keep their order."""

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxpt.config import MeshConfig
from jaxpt.decode import batching
from jaxpt.decode.likelihood import loglikelihood
from jaxpt.parallel import mesh as meshes
from tests.decode.helpers import network, texts


def test_buckets_waste_less_than_a_quarter_and_are_few():
    assert [batching.bucket(n) for n in (0, 1, 16, 17, 33, 65, 129)] == [16, 16, 16, 24, 40, 80, 160]
    assert [batching.bucket(n, least=1) for n in (0, 1, 2, 3, 5)] == [1, 1, 2, 4, 8]
    assert batching.bucket(20, limit=22) == 22 and batching.bucket(3, limit=2) == 2
    assert [batching.bucket(n, least=1, step=4) for n in (5, 8, 9, 13, 17, 65)] == [8, 8, 12, 16, 20, 80]
    assert all(n <= batching.bucket(n) < 1.25 * n for n in range(33, 5000))
    assert len({batching.bucket(n) for n in range(1, 1025)}) == 23


def test_numbers_of_rows_are_powers_of_two():
    assert [batching.power_of_two(n) for n in (0, 1, 2, 3, 17)] == [1, 1, 2, 4, 32]
    assert batching.power_of_two(17, limit=24) == 24 and batching.power_of_two(3, least=16) == 16


@pytest.mark.parametrize(
    "max_tokens, rows", [(64, [4, 4]), (63, [2, 2, 2, 1]), (16, [1] * 7), (1, [1] * 7), (10_000, [8])]
)
def test_batches_are_full_within_the_budget(max_tokens, rows):
    """All but the last, which is padded to a power of two."""
    made = list(batching.batches([(16,)] * 7, sum, 100, max_tokens))
    assert [batch for _, _, batch in made] == rows
    assert [item for _, items, _ in made for item in items] == list(range(7))


def test_batches_are_few_and_their_rows_similar():
    """A batch takes shorter items where those of its size do not fill it; its size covers all of them."""
    sizes = [(batching.bucket(n), 1 + n % 3) for n in np.random.default_rng(0).integers(1, 300, 1000).tolist()]
    made = list(batching.batches(sizes, lambda size: size[0], 100, 2048))
    assert sorted(item for _, items, _ in made for item in items) == list(range(1000))
    for size, items, places in made[:-1]:
        assert len(items) == places == 1 << (2048 // size[0]).bit_length() - 1
        assert all(a <= b for item in items for a, b in zip(sizes[item], size))
    assert [size[0] for size, _, _ in made] == sorted((size[0] for size, _, _ in made), reverse=True)
    padded = sum(size[0] * places for size, _, places in made)
    assert padded < 1.1 * sum(size[0] for size in sizes)


def test_a_batch_may_have_one_size_alone():
    sizes = [(16, 8), (32, 8), (16, 8), (16, 16), (16, 8)]
    made = list(batching.batches(sizes, lambda size: size[0], 100, 64, joins_sizes=False))
    assert made == [((32, 8), [1], 1), ((16, 16), [3], 1), ((16, 8), [0, 2, 4], 4)]


def test_rows_are_few_where_the_vocabulary_is_large():
    made = list(batching.batches([(16,)] * 8, sum, batching.CHUNK_BYTES // 16, 10_000))
    assert {batch for _, _, batch in made} == {4}


def test_a_function_is_compiled_once_for_each_static_value_and_shape():
    traced = []

    def scaled(scale, params, x):
        traced.append((scale, x.shape))
        return scale * params * x

    for scale, rows in ((2, 1), (3, 1), (2, 4), (2, 1), (3, 1), (2, 4)):
        found = batching.run(scaled, (scale,), np.float32(5), np.ones((rows, 3), np.float32))
        assert isinstance(found, np.ndarray) and (found == 5 * scale).all()
    assert traced == [(2, (1, 3)), (3, (1, 3)), (2, (4, 3))]


def test_items_of_a_bucket_share_a_program(monkeypatch):
    given, asked, run = network("gpt2", layers=1), [], batching.run

    def asking(function, static, params, *arrays):
        asked.append((function, static, *(x.shape for x in arrays)))
        return run(function, static, params, *arrays)

    monkeypatch.setattr(batching, "run", asking)
    monkeypatch.setitem(batching.MAX_TOKENS, "cpu", 72)
    for contexts, continuations in [(texts(3, 9, 5, 7), texts(2, 1, 2, 1)), (texts(10, 8, 6), texts(2, 2, 2))]:
        loglikelihood(*given, contexts, continuations)
    assert len(asked) > 1 and len(set(asked)) == 1


def test_items_fill_rows():
    """Each item once, no row too long, little padding; the same with two lengths."""
    rng = np.random.default_rng(0)
    for width in (1, 2):
        sizes = [tuple(row) for row in rng.geometric(1 / 40, (2000, width)).tolist()]
        rows = batching.pack(sizes)
        assert sorted(item for row in rows for item in row) == list(range(2000))
        longest = [max(max(sizes[item]) for item in row) for row in rows]
        used = np.array([np.sum([sizes[item] for item in row], 0) for row in rows])
        assert all(
            most <= max(batching.bucket(batching.ROW), batching.bucket(n)) for most, n in zip(used.max(1), longest)
        )
        padded = sum(batching.bucket(most) for most in used.max(1).tolist())
        assert used[:, 0].sum() > (0.95 if width == 1 else 0.75) * padded  # two lengths differ in a row


def shared_and_alone():
    """Contexts with continuations, three of one context."""
    contexts, continuations = texts(9, 5, *[12] * 3, seed=1), texts(2, 1, 2, 3, 1, seed=2)
    contexts[4] = contexts[3] = contexts[2]
    return contexts, continuations


@pytest.mark.slow
def test_sharded_parameters_give_the_same():
    made, params, *rest = network("gpt2", layers=1)
    mesh = Mesh(np.array(jax.devices()[:4]), ("fsdp",))

    def place(x):
        axes = [None] * x.ndim
        if x.shape[-1] % 4 == 0:
            axes[-1] = "fsdp"
        return jax.device_put(x, NamedSharding(mesh, PartitionSpec(*axes)))

    pairs = shared_and_alone()
    found = loglikelihood(made, jax.tree.map(place, params), *rest, *pairs).items
    for one, other in zip(found, loglikelihood(made, params, *rest, *pairs).items, strict=True):
        np.testing.assert_allclose(one.log_probs, other.log_probs, atol=1e-5)


@pytest.mark.parametrize("name, sizes", [("gpt2", {"data": 4, "fsdp": 2}), ("bert", {"data": 8})])
def test_rows_are_sharded_over_the_mesh(name, sizes, monkeypatch):
    """Each device has its rows, of contexts alone, of shared ones and of masked texts; the scores are the same."""
    given, pairs = network(name, layers=1), shared_and_alone()
    wanted = loglikelihood(*given, *pairs).items
    seen, put = [], batching.sharded
    monkeypatch.setattr(batching, "sharded", lambda x: seen.append(put(x)) or seen[-1])
    mesh = meshes.make(MeshConfig(**sizes), jax.devices()[:8])
    with meshes.use(mesh):
        found = loglikelihood(*given, *pairs).items
    assert seen and all(len(x.sharding.device_set) == 8 and not x.is_fully_replicated for x in seen)
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one.log_probs, other.log_probs, atol=1e-5)
