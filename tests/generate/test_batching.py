"""Batches have few static shapes, and their rows keep their order."""

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxpt.generate import batching, likelihood
from jaxpt.generate.formats import text_format
from jaxpt.generate.likelihood import loglikelihood
from jaxpt.parallel import compiler
from tests.generate.helpers import network, texts


def test_buckets_are_powers_of_two_up_to_the_limit():
    assert [batching.bucket(n) for n in (0, 1, 16, 17, 32, 33)] == [16, 16, 16, 32, 32, 64]
    assert [batching.bucket(n, least=1) for n in (0, 1, 2, 3, 5)] == [1, 1, 2, 4, 8]
    assert batching.bucket(20, limit=24) == 24


@pytest.mark.parametrize("max_tokens, rows", [(64, 4), (63, 2), (16, 1), (1, 1), (10_000, 8)])
def test_a_bucket_has_one_number_of_rows_within_the_budget(max_tokens, rows):
    made = list(batching.batches([(16,)] * 7, sum, 100, max_tokens))
    assert {batch for _, _, batch in made} == {rows}
    assert [item for _, items, _ in made for item in items] == list(range(7))


def test_rows_are_few_where_the_vocabulary_is_large():
    made = list(batching.batches([(16,)] * 7, sum, batching.CHUNK_BYTES // 8, 10_000))
    assert {batch for _, _, batch in made} == {2}


def test_a_bucket_is_compiled_once():
    given = network("gpt2", layers=1)
    batching._compiled.cache_clear()
    for contexts, continuations in [(texts(3, 9, 5, 7), texts(2, 1, 2, 1)), (texts(8, 6, 4), texts(2, 2, 2))]:
        loglikelihood(*given, contexts, continuations, max_tokens=72)
    assert batching._compiled.cache_info().misses == 1
    layout = text_format(given[2], given[0].config, given[3], mode="S2S")
    function = batching._compiled(likelihood._score, (given[0], given[2], layout, None), compiler.platform())
    assert batching._compiled.cache_info().misses == 1 and function._cache_size() == 1


def test_sharded_parameters_give_the_same():
    made, params, *rest = network("gpt2")
    mesh = Mesh(np.array(jax.devices()[:4]), ("fsdp",))

    def place(x):
        axes = [None] * x.ndim
        if x.shape[-1] % 4 == 0:
            axes[-1] = "fsdp"
        return jax.device_put(x, NamedSharding(mesh, PartitionSpec(*axes)))

    pairs = texts(3, 9, 5, seed=1), texts(2, 1, 2, seed=2)
    found = loglikelihood(made, jax.tree.map(place, params), *rest, *pairs).items
    for one, other in zip(found, loglikelihood(made, params, *rest, *pairs).items, strict=True):
        np.testing.assert_allclose(one.log_probs, other.log_probs, atol=1e-5)
