"""Plans of packed rows: no row overflows, every record is in one row, and few places stay empty."""

import itertools

import numpy as np
import pytest

from jaxpt.data.stream.packing import fill, plan, planned


def draw(rng, records, room):
    return {name: rng.integers(1, most + 1, records) for name, most in room.items()}


@pytest.mark.parametrize("room", [{"a": 64}, {"a": 64, "b": 16}, {"a": 10, "b": 100, "c": 7}])
@pytest.mark.parametrize("records", [1, 2, 50, 1000])
def test_no_row_overflows_and_every_record_is_in_one(room, records):
    sizes = draw(np.random.default_rng(records), records, room)
    packs = plan(sizes, room)
    assert sorted(packs.records.tolist()) == list(range(records))
    assert packs.offsets[0] == 0 and packs.offsets[-1] == records and (np.diff(packs.offsets) > 0).all()
    for name, most in room.items():
        assert np.add.reduceat(sizes[name][packs.records], packs.offsets[:-1]).max() <= most


def best_fit(sizes, room):
    """The rule in its plain form: largest first, into the fullest row that holds it."""
    left = []
    for size in sorted(sizes, reverse=True):
        fits = [room_left for room_left in left if room_left >= size]
        if fits:
            left[left.index(min(fits))] -= size
        else:
            left.append(room - size)
    return sorted(left)


@pytest.mark.parametrize("seed", range(5))
def test_one_sided_rows_are_those_of_best_fit(seed):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 40, 300)
    packs = plan({"a": sizes}, {"a": 64})
    left = 64 - np.add.reduceat(sizes[packs.records], packs.offsets[:-1])
    assert sorted(left.tolist()) == best_fit(sizes.tolist(), 64)


def test_short_records_fill_their_rows():
    rng = np.random.default_rng(0)
    sizes = {"a": np.minimum(rng.geometric(1 / 40, 5000), 512), "b": np.minimum(rng.geometric(1 / 10, 5000), 114)}
    room = {"a": 512, "b": 114}
    assert max(fill(len(plan(sizes, room)), sizes, room).values()) > 0.97
    assert fill(5000, sizes, room)["a"] < 0.1


def test_a_record_that_fits_no_row_is_named():
    with pytest.raises(ValueError, match=r"record 1 takes \{'a': 11\}, a row has \{'a': 10\}"):
        plan({"a": np.array([3, 11])}, {"a": 10})


def test_records_without_a_place_on_one_side():
    packs = plan({"a": np.array([5, 5]), "b": np.array([0, 3])}, {"a": 10, "b": 3})
    assert len(packs) == 1
    assert len(plan({"a": np.array([0, 0, 0])}, {"a": 10})) == 1


def test_the_records_of_some_rows():
    packs = plan({"a": np.array([3, 6, 4, 2, 5])}, {"a": 10})
    records, splits = packs.of(np.array([1, 0, 1]))
    assert [records[a:b].tolist() for a, b in itertools.pairwise(splits)] == [[0, 3, 4], [1, 2], [0, 3, 4]]


def test_a_plan_is_kept_and_depends_on_everything(tmp_path):
    sizes, room = draw(np.random.default_rng(0), 200, {"a": 50}), {"a": 50}
    first = planned(tmp_path, sizes, room)
    [path] = tmp_path.iterdir()
    assert all((x == y).all() for x, y in zip(planned(tmp_path, sizes, room), first))
    whole = path.read_bytes()
    flipped = (whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :] for at in range(0, len(whole), 19))
    # Zeros in the directory at a zip file's end: a member of 0 bytes with the checksum 0.
    zeroed = (whole[:at] + bytes(64) + whole[at + 64 :] for at in range(len(whole) - 200, len(whole) - 60, 4))
    for damaged in (b"", whole[:100], *flipped, *zeroed):
        path.write_bytes(damaged)
        assert all((x == y).all() for x, y in zip(planned(tmp_path, sizes, room), first))
    planned(tmp_path, sizes, {"a": 51})
    planned(tmp_path, {"a": sizes["a"][::-1]}, room)
    assert len(list(tmp_path.iterdir())) == 3
