"""Updates of a fixed number of examples: every epoch is a permutation, no row overflows."""

import itertools

import numpy as np
import pytest

from jaxpt.data.stream.updates import Updates
from jaxpt.errors import UserError


def lengths(records, seed=0):
    """Like SST-2's: many short phrases, some long sentences."""
    return np.clip(np.random.default_rng(seed).geometric(1 / 12, records) + 2, 3, 60)


def updates(records=1003, rows=8, examples=32, key=5, length=64):
    size = lengths(records)
    return Updates(
        {"tokens": size, "labels": np.ones_like(size)}, {"tokens": length, "labels": 12}, rows, examples, key
    )


@pytest.mark.parametrize(("records", "rows", "examples"), [(1003, 8, 32), (1024, 8, 32), (20, 8, 32), (500, 3, 8)])
def test_an_epoch_is_a_permutation_in_updates_of_so_many_examples(records, rows, examples):
    made = updates(records, rows, examples)
    size = lengths(records)
    for epoch in range(3):
        packs = made.of_epoch(epoch)
        assert sorted(packs.records.tolist()) == list(range(records))
        assert len(packs) == len(made) == made.steps * rows
        of_update = np.diff(packs.offsets).reshape(-1, rows).sum(1)
        assert (of_update[:-1] == examples).all() and of_update[-1] == records - examples * (made.steps - 1)
        held = np.bincount(np.repeat(np.arange(len(packs)), np.diff(packs.offsets)), size[packs.records])
        assert held.max() <= 64 and np.diff(packs.offsets).max() <= 12


def test_epochs_differ_and_depend_on_the_key_alone():
    one, same, other = updates(), updates(), updates(key=6)
    assert not (one.of_epoch(0).records == one.of_epoch(1).records).all()
    assert not (one.of_epoch(0).records == other.of_epoch(0).records).all()
    for epoch in (3, 0, 1):  # in any order
        assert all((x == y).all() for x, y in zip(one.of_epoch(epoch), same.of_epoch(epoch)))


def test_most_examples_stay_in_the_group_that_their_place_gives():
    roomy, tight = updates(10_000, rows=40), updates(10_000, rows=8)
    group = [np.empty(10_000, int) for _ in range(2)]
    for of, made in zip(group, (roomy, tight)):
        packs = made.of_epoch(0)
        of[packs.records] = np.repeat(np.arange(len(packs)), np.diff(packs.offsets)) // made.rows
    assert 0.9 < (group[0] == group[1]).mean() < 1


def test_rows_across_epochs():
    made = updates()
    epoch, row = np.divmod(np.arange(len(made) - 3, len(made) + 3), len(made))
    records, splits = made.of(epoch, row)
    singly = [made.of_epoch(e).of(np.array([r]))[0].tolist() for e, r in zip(epoch, row)]
    assert [records[a:b].tolist() for a, b in itertools.pairwise(splits)] == singly


def test_too_few_rows_are_told_how_many_are_needed():
    with pytest.raises(
        UserError, match=r"data.batch_size: 5 rows of 12 labels, 64 tokens do not hold 32 examples .* 8 rows"
    ):
        updates(rows=5)
    with pytest.raises(ValueError, match="a record takes"):
        updates(length=10)


def test_an_epoch_without_a_plan_has_the_groups_of_the_first():
    """Of rows so few there is none for epoch 1, and one for epoch 3."""
    made = updates(120, rows=4, examples=16, key=0)
    first, second, planned = (made.of_epoch(epoch) for epoch in (0, 1, 3))
    assert sorted(second.records.tolist()) == list(range(120))

    def groups(packs):
        return [frozenset(packs.records[a:b].tolist()) for a, b in itertools.pairwise(packs.offsets[:: made.rows])]

    assert set(groups(first)) == set(groups(second)) and groups(first) != groups(second)
    assert groups(first)[-1] == groups(second)[-1]
    assert not set(groups(first)) & set(groups(planned))
