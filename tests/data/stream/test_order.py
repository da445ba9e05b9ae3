"""Permutations and mixtures: every place is taken once, quotas are exact in every block, far indices cost nothing."""

import numpy as np
import pytest

from jaxpt.data.stream.order import Mixture, continued, permuted, proportional


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 1000])
def test_every_epoch_is_another_permutation(size):
    epochs = [permuted(np.arange(size), size, 5, np.full(size, epoch)) for epoch in range(3)]
    assert all(sorted(epoch.tolist()) == list(range(size)) for epoch in epochs)
    assert size < 7 or len({tuple(epoch.tolist()) for epoch in epochs}) == 3
    assert size < 64 or (permuted(np.arange(size), size, 6, np.zeros(size, np.int64)) != epochs[0]).any()


@pytest.mark.parametrize("rates", [[1, 1], [3, 2, 1], [0.7, 0.2, 0.1], [1000, 1, 1], [1e6, 1.0], [1.0] * 100])
def test_quotas_are_exact_in_every_block(rates):
    mixture = Mixture(rates, key=3)
    shares = np.array(rates) / np.sum(rates)
    assert sum(mixture.quotas) == mixture.block and min(mixture.quotas) >= 1
    assert mixture.block == 65536 or (np.abs(np.array(mixture.quotas) / mixture.block / shares - 1) <= 0.01).all()
    for block in (0, 1, 10**6):
        index = block * mixture.block + np.arange(mixture.block)
        task, own = mixture.at(index)
        assert tuple(np.bincount(task)) == mixture.quotas
        for number, quota in enumerate(mixture.quotas):
            assert sorted(own[task == number].tolist()) == list(range(block * quota, (block + 1) * quota))


def test_blocks_are_in_different_orders():
    mixture = Mixture([1, 1], key=0)
    task, _ = mixture.at(np.arange(8 * mixture.block))
    blocks = {tuple(block.tolist()) for block in task.reshape(8, -1)}
    assert len(blocks) == 8
    assert (Mixture([1, 1], key=1).at(np.arange(64))[0] != task[:64]).any()


def test_one_example_is_what_it_is_among_many():
    mixture = Mixture([3, 2, 1], key=0)
    task, own = mixture.at(np.arange(1000))
    for index in (0, 17, 999):
        one = mixture.at(np.array([index]))
        assert (one[0][0], one[1][0]) == (task[index], own[index])


def test_shares_by_size():
    assert proportional([1, 3]) == [0.25, 0.75]
    assert proportional([10**6, 10**9], cap=10**5) == [0.5, 0.5]
    english, swahili = 3_067_000_000, 988_000  # pages of mC4
    quotas = Mixture(proportional([english, swahili], temperature=1 / 0.3), key=0).quotas
    share = english**0.3 / (english**0.3 + swahili**0.3)  # p(L) ∝ |L|^0.3
    np.testing.assert_allclose(quotas[0] / sum(quotas), share, rtol=0.01)
    mt5 = proportional([100, 10_000], temperature=1 / 0.3)
    np.testing.assert_allclose(mt5[1] / mt5[0], 100**0.3)


@pytest.mark.parametrize(("size", "batch_size"), [(23, 8), (24, 8), (8, 8), (1000, 3)])
def test_rows_go_on(size, batch_size):
    steps = size // batch_size
    index = np.arange(4 * steps * batch_size)
    epoch, record = (x.reshape(4, steps, batch_size) for x in continued(index, size, batch_size, key=5))
    assert (epoch == np.arange(4)[:, None, None]).all()
    assert (np.diff(record, axis=1) % size == 1 % size).all(), "row b of a step comes after row b of the step before"
    for of_epoch in record.reshape(4, -1):
        assert len(set(of_epoch)) == steps * batch_size, "no record twice in an epoch"
    assert size == 8 or len(set(record[:, 0, 0])) > 1, "epochs begin elsewhere"
    far = index + 10**12 * steps * batch_size
    assert (continued(far[:batch_size], size, batch_size, key=5)[0] == 10**12).all()
