import functools
import itertools
import subprocess
import sys

import numpy as np
import pytest

from jaxpt.data._tf import tf
from jaxpt.data.calls import Call
from jaxpt.data.preprocessors.batched import makes_rows, one_record
from jaxpt.data.stream.loader import Stream, Task
from jaxpt.data.stream.online import compile_online
from jaxpt.data.stream.order import Mixture
from jaxpt.data.stream.packing import plan
from jaxpt.errors import UserError
from tests.stores import build

N, BATCH = 23, 8  # epochs end in the middle of a batch
FEATURES = {"x": ((4,), "int32"), "noise": ((), "float32"), "pair": ((2,), "float32")}
CALLS = (Call(f"{__name__}.pad", {"length": 4}), Call(f"{__name__}.noise"))


@one_record()
def pad(example, length):
    tokens = example["tokens"]
    return example | {"x": tf.ensure_shape(tf.pad(tokens, [[0, length - tf.size(tokens)]]), [length])}


@one_record(seeds=1)
def noise(example, seed):
    return example | {
        "noise": tf.random.stateless_uniform([], seed),
        "pair": tf.random.stateless_uniform([2], seed) + 1,
    }


@one_record(seeds=2)
def two_seeds(example, seeds):
    draws = [tf.random.stateless_uniform([], seed) for seed in seeds]
    return example | {"noise": draws[0], "pair": tf.stack(draws)}


@one_record(seeds=1)
def scaled(example, seed, by):
    return example | {"noise": by * tf.random.stateless_uniform([], seed)}


@one_record()
def unseeded(example):
    return example | {"noise": tf.random.uniform([])}


def plain(ds):
    return ds


def records():
    numbers = tf.data.Dataset.range(1, N + 1, output_type=tf.int32)
    return numbers.map(lambda i: {"tokens": tf.fill([1 + i % 4], i), "origin": tf.stack([0, tf.cast(i, tf.int64)])})


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return build(records, tmp_path_factory.mktemp("store") / "records")


def make(store, seed=0, calls=CALLS, features=FEATURES, readers=0):
    is_usual = calls is CALLS and features is FEATURES
    made = usual(store) if is_usual else compile_online(calls, None, store.spec, features)
    return Stream([Task("one", store, made, seed)], features, BATCH, readers)


@functools.cache
def usual(store):
    """The graph of most streams of these tests."""
    return compile_online(CALLS, None, store.spec, FEATURES)


@pytest.fixture(scope="module")
def going_on(store):
    """A stream of the records' numbers whose rows go on."""
    features = {"origin": ((2,), "int64"), "noise": ((), "float32")}
    made = compile_online(CALLS[1:], None, store.spec, features)
    return Stream([Task("one", store, made, 0)], features, BATCH, continues=True)


def first(iterator, n):
    return list(itertools.islice(iterator, n))


def joined(batches, name):
    return np.concatenate([b[name] for b in batches])


def equal(a, b):
    return len(a) == len(b) and all(x.keys() == y.keys() and all((x[k] == y[k]).all() for k in x) for x, y in zip(a, b))


def test_batches_are_what_the_objective_declares(store):
    batch = next(make(store).batches())
    assert {k: (v.shape, v.dtype.name) for k, v in batch.items()} == {
        k: ((BATCH, *shape), dtype) for k, (shape, dtype) in FEATURES.items()
    }


@pytest.mark.parametrize("start", [1, 2, 3, 7])
def test_starting_late_equals_going_there(store, start):
    stream = make(store)
    assert equal(first(stream.batches(), start + 4)[start:], first(stream.batches(start), 4))


def test_a_far_step_is_reached_at_once(store):
    assert equal(first(make(store).batches(10**12), 2), first(make(store).batches(10**12), 2))


def test_hosts_rows_put_together_are_the_whole(store):
    stream = make(store)
    parts = [first(stream.batches(1, slice(a, a + 2)), 5) for a in range(0, BATCH, 2)]
    whole = first(stream.batches(1), 5)
    assert equal(whole, [{k: np.concatenate([p[i][k] for p in parts]) for k in whole[i]} for i in range(5)])


def test_the_number_of_threads_changes_nothing(store):
    assert equal(first(make(store, readers=1).batches(), 12), first(make(store, readers=5).batches(), 12))


def test_each_epoch_is_another_permutation_with_other_noise(store):
    batches = first(make(store).batches(), 3 * N)
    x, noise = joined(batches, "x")[:, 0], joined(batches, "noise")
    epochs = [x[e * N : (e + 1) * N] for e in range(8)]
    assert all(sorted(epoch) == list(range(1, N + 1)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 8
    assert len(np.unique(noise)) == len(noise)


def test_the_seed_changes_order_and_noise(store):
    a, b = (first(make(store, seed).batches(), 3) for seed in (0, 1))
    assert not (joined(a, "x") == joined(b, "x")).all()
    assert not np.intersect1d(joined(a, "noise"), joined(b, "noise")).size


@pytest.mark.slow
def test_noise_is_uniform_and_independent_of_its_neighbours(store):
    noise = joined(first(make(store).batches(), 250), "noise")
    assert abs(noise.mean() - 0.5) < 0.03
    assert abs(np.corrcoef(noise[1:], noise[:-1])[0, 1]) < 0.07


def test_validation_sees_every_record_once_and_fills_up_with_zeros(store):
    stream = make(store)
    batches = list(stream.epoch(BATCH))
    assert len(batches) == 3
    x = joined(batches, "x")[:, 0]
    assert x[:N].tolist() == list(range(1, N + 1))
    assert all(not batches[-1][name][N % BATCH :].any() for name in FEATURES)
    assert (joined(batches, "pair")[:N] >= 1).all()
    assert equal(batches, list(stream.epoch(BATCH)))
    # The batch size changes which rows stand together, not what they are.
    assert (joined(list(stream.epoch(5)), "noise")[:N] == joined(batches, "noise")[:N]).all()


def test_validation_limit_and_rows(store):
    stream = make(store)
    assert joined(list(stream.epoch(4, limit=6)), "x")[:, 0].tolist() == [1, 2, 3, 4, 5, 6, 0, 0]
    assert joined(list(stream.epoch(BATCH, limit=1000)), "x")[:, 0].astype(bool).sum() == N
    halves = [list(stream.epoch(BATCH, rows=rows)) for rows in (slice(0, 4), slice(4, 8))]
    both = [{k: np.concatenate([a[k], b[k]]) for k in a} for a, b in zip(*halves, strict=True)]
    assert equal(both, list(stream.epoch(BATCH)))


def test_an_example_is_the_streams_and_knows_its_record(store):
    stream = make(store)
    batches = first(stream.batches(), 4)
    for index in (0, 9, 30):
        example = stream.example(index)
        assert (example["x"] == joined(batches, "x")[index]).all()
        assert example["noise"] == joined(batches, "noise")[index]
        assert example["origin"][1] == example["tokens"][0] == example["x"][0]


def lines(store, packs=None, **task):
    """A stream whose rows say which records they are made of, and under which noise."""
    made, features = graph_of_lines(store, packs is not None)
    return Task(task.pop("name", "one"), store, made, task.pop("seed", 0), packs, **task), features


@functools.cache
def graph_of_lines(store, packed):
    features = {"x": ((12,), "int32"), "noise": ((4,), "float32")}
    calls = (Call(f"{__name__}.noise"), Call(f"{__name__}.row"))
    return compile_online(calls, None, store.spec, features, packed), features


@makes_rows
def row(records, packs=None):
    packs = np.arange(len(records["noise"]) + 1) if packs is None else packs
    splits = np.concatenate([[0], np.cumsum(records["tokens"].lengths)])[packs]
    x, noise = np.zeros((len(packs) - 1, 12), np.int32), np.zeros((len(packs) - 1, 4), np.float32)
    x[np.arange(12) < np.diff(splits)[:, None]] = records["tokens"].values
    noise[np.arange(4) < np.diff(packs)[:, None]] = records["noise"]
    return {"x": x, "noise": noise}


def test_packed_rows_have_every_record_once_an_epoch_and_noise_of_their_own(store):
    packs = plan({"x": store.lengths("tokens"), "noise": np.ones(N)}, {"x": 12, "noise": 4})
    task, features = lines(store, packs)
    stream = Stream([task], features, 1)
    batches = first(stream.batches(), 3 * len(packs))
    epochs = [batches[e * len(packs) : (e + 1) * len(packs)] for e in range(3)]
    for epoch in epochs:
        found = joined(epoch, "x")
        assert sorted(set(found[found > 0].tolist())) == list(range(1, N + 1))
        assert (found > 0).sum() == store.lengths("tokens").sum()
    assert len({tuple(joined(epoch, "x").ravel().tolist()) for epoch in epochs}) == 3
    draws = joined(batches, "noise")
    assert len(set(draws[draws > 0].tolist())) == 3 * N
    # The noise of a record is its own, whatever it shares a row with.
    alone, _ = lines(store)
    by_record = dict(zip(range(N), joined(list(Stream([alone], features, 8).epoch(8)), "noise")[:N, 0]))
    at_rest = next(stream.epoch(len(packs)))["noise"]
    assert at_rest[at_rest > 0].tolist() == [by_record[r] for r in packs.records.tolist()]
    example = stream.example(5)
    assert example["origin"].shape[1] == 2 and (example["x"] == batches[5]["x"][0]).all()


def test_copies_are_static_masks_that_epochs_take_in_turn(store):
    task, features = lines(store, copies=2)
    draws = []
    batches = Stream([task], features, 1).batches()
    for _ in range(4):
        epoch = first(batches, N)
        draws.append(dict(zip(joined(epoch, "x")[:, 0].tolist(), joined(epoch, "noise")[:, 0].tolist())))
    assert equal([epoch[0]], first(Stream([task], features, 1).batches(3 * N), 1))
    assert draws[0] == draws[2] and draws[1] == draws[3]
    assert not set(draws[0].values()) & set(draws[1].values())


@pytest.mark.slow
def test_a_mixture_keeps_its_shares_and_each_task_its_epochs(store):
    tasks = [lines(store, name=name, seed=seed)[0] for name, seed in (("a", 1), ("b", 2), ("c", 3))]
    features = lines(store)[1]
    mixture = Mixture([5, 2, 1], key=0)
    stream = Stream(tasks, features, 16, mixture=mixture)
    blocks = first(stream.batches(), 5 * mixture.block // 16)
    task, own = mixture.at(np.arange(5 * mixture.block))
    for number, one in enumerate(tasks):
        mine = joined(blocks, "x")[task == number, 0]
        by_itself = joined(first(Stream([one], features, 1).batches(), len(mine)), "x")[:, 0]
        assert sorted(mine.tolist()) == sorted(by_itself.tolist())
        assert (mine == by_itself[own[task == number]]).all()
    assert equal(first(stream.batches(7), 3), blocks[7:10])
    assert {stream.example(i)["task"] for i in range(60)} == {"a", "b", "c"}
    assert len(stream) == 3 * N and set(stream.each()) == {"a", "b", "c"}
    whole = list(stream.epoch(8))
    assert (joined(whole, "x")[:, 0] > 0).sum() == 3 * N
    assert joined(whole, "x")[:N, 0].tolist() == list(range(1, N + 1))


def test_an_example_in_order_is_that_row_of_an_epoch(store):
    stream = make(store)
    epoch = list(stream.epoch(BATCH))
    for index in (0, 9, N - 1):
        example = stream.example(index, shuffled=False)
        assert example["tokens"][0] == index + 1
        assert (example["x"] == joined(epoch, "x")[index]).all()
        assert example["noise"] == joined(epoch, "noise")[index]


@pytest.mark.slow
def test_each_call_draws_for_itself(store):
    stream = make(store, calls=(CALLS[0], Call(f"{__name__}.two_seeds")))
    batch = next(stream.batches())
    assert (batch["noise"] == batch["pair"][:, 0]).all()
    assert not (batch["pair"][:, 0] == batch["pair"][:, 1]).any()
    again = Call(f"{__name__}.scaled", {"by": 1.0})
    stream = make(store, calls=(*CALLS, again))
    assert not (next(stream.batches())["noise"] == next(make(store).batches())["noise"]).any()


def test_an_undeclared_shape_is_named(store):
    for features, words in (
        ({"y": ((4,), "int32")}, "declares y, its preprocessors give"),
        ({"x": ((5,), "int32")}, r"declares x as int32\[5\], its preprocessors give int32\[4\]"),
        ({"x": ((4,), "float32")}, r"declares x as float32\[4\], its preprocessors give int32\[4\]"),
        (["x"], r"features of objective.data_spec must be {name: \(shape, dtype\)}, they are \['x'\]"),
        ({"x": (4, "int32")}, r"must declare x as \(shape, .*; it is \(4, 'int32'\)"),
    ):
        with pytest.raises(UserError, match=words):
            make(store, calls=CALLS[:1], features=features)


def test_only_one_to_one_functions_present(store):
    with pytest.raises(UserError, match=r"decorate it with @one_record\(\), or with @one_record\(seeds=1\)"):
        make(store, calls=(Call(f"{__name__}.plain"),))


def test_a_draw_that_does_not_come_from_the_seed_is_refused(store):
    with pytest.raises(UserError, match=r"unseeded: RandomUniform draws other numbers in every run; take a `seed`"):
        make(store, calls=(*CALLS, Call(f"{__name__}.unseeded")))


@pytest.mark.slow
def test_a_program_ends_while_its_stream_runs(store):
    code = (
        "import sys; sys.path.insert(0, sys.argv[2])\n"
        "import test_loader as t; from jaxpt.data.records.store import Store\n"
        "batches = t.make(Store.open(sys.argv[1])).batches(); next(batches)\n"
        "print('done')"
    )
    arguments = [sys.executable, "-c", code, store.directory, __file__.rpartition("/")[0]]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.stderr, done.returncode) == ("done\n", "", 0)


def test_rows_go_on_with_their_text(going_on):
    batches = first(going_on.batches(), 6)  # epochs of 2 steps
    number = np.stack([batch["origin"][:, 1] for batch in batches])
    assert ((number[1::2] - number[::2]) % N == 1).all()
    assert len(np.unique(joined(batches, "noise"))) == 6 * BATCH, "noise of its own in every epoch"
    assert equal(first(going_on.batches(3), 3), batches[3:])
    parts = [first(going_on.batches(0, slice(a, a + 2)), 6) for a in range(0, BATCH, 2)]
    assert equal(batches, [{k: np.concatenate([p[i][k] for p in parts]) for k in batches[i]} for i in range(6)])


@pytest.mark.parametrize(("size", "limit"), [(5, None), (8, None), (40, None), (5, 12)])
def test_rows_of_validation_go_on_and_every_record_is_there_once(going_on, size, limit):
    batches = list(going_on.each()["one"].epoch(size, limit))
    number = np.stack([batch["origin"][:, 1] for batch in batches])  # 1 … N, 0 on rows of zeros
    assert sorted(number[number > 0]) == list(range(1, (limit or N) + 1))
    before, after = number[:-1], number[1:]
    assert ((after == before + 1) | (after == 0)).all()
    held = [list(going_on.epoch(size, limit, rows=slice(a, a + 1))) for a in range(size)]
    assert all((np.concatenate([h[i]["origin"] for h in held]) == b["origin"]).all() for i, b in enumerate(batches))
