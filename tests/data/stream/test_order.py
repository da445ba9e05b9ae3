"""Permutations and mixtures: every place is taken once, quotas are exact in every block, far indices cost nothing."""

import itertools

import numpy as np
import pytest

from jaxpt.data.stream.order import ByShards, Mixture, continued, groups, parts, permuted, proportional


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


class Lengths:
    """Shards of these lengths, of which some are made."""

    def __init__(self, sizes, made=None):
        self.sizes, self.made, self.asked = np.array(sizes), made, set()

    shards = property(lambda self: len(self.sizes))

    def records_of(self, shards):
        assert self.made is None or set(shards) <= set(self.made), "waits"
        self.asked |= set(shards)
        return self.sizes[list(shards)]

    def parts_of(self, records):
        assert self.made is None, "waits"
        starts = np.cumsum([0, *self.sizes])
        shard = np.searchsorted(starts, records, side="right") - 1
        return shard, records - starts[shard]


SIZES = [7, 0, 5, 31, 1, 12, 3, 9, 20, 4, 0, 8, 6, 2, 11, 10, 13, 5, 2, 3]


def test_shards_are_read_in_groups_that_grow():
    read = groups(20, key=4)
    assert [len(group) for group in read] == [1, 1, 2, 4, 8, 4]
    assert sorted(itertools.chain(*read)) == list(range(20)) and read != groups(20, key=5)


def test_every_epoch_by_shards_has_each_record_once():
    size = sum(SIZES)
    epoch, address = ByShards(Lengths(SIZES), key=4).at(np.arange(3 * size))
    assert (epoch == np.arange(3 * size) // size).all()
    every = {(n, i) for n, of_shard in enumerate(SIZES) for i in range(of_shard)}
    for of_epoch in address.reshape(3, size):
        assert set(zip(*(x.tolist() for x in parts(of_epoch)))) == every
    assert len({tuple(x) for x in address.reshape(3, size).tolist()}) == 3


def test_the_order_by_shards_is_the_same_however_many_are_made():
    """In one call, index by index, backwards, and with no more shards than the groups up to the index."""
    whole = ByShards(Lengths(SIZES), key=4).at(np.arange(2 * sum(SIZES)))[1]
    backwards = ByShards(Lengths(SIZES), key=4)
    assert [backwards.at(np.array([i]))[1][0] for i in reversed(range(len(whole)))] == whole[::-1].tolist()
    read = groups(len(SIZES), key=4)
    for count in range(1, len(read) + 1):
        made = list(itertools.chain(*read[:count]))
        rows = sum(SIZES[n] for n in made)
        lengths = Lengths(SIZES, made)
        np.testing.assert_array_equal(ByShards(lengths, key=4).at(np.arange(rows))[1], whole[:rows])
    first = Lengths(SIZES)
    assert ByShards(first, key=4).first_shards() == read[0] and first.asked == set(read[0])
