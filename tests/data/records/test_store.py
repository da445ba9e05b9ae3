import json
import shutil

import numpy as np
import pytest

from jaxpt.data._tf import tf
from jaxpt.data.records.shard import Batches, write_shard
from jaxpt.data.records.store import Ragged, Store, shard_name
from jaxpt.errors import UserError
from tests.processes import forked
from tests.stores import build

LENGTHS = [3, 0, 5, 1] * 200  # more than one batch of the writer


def rows():
    for i, length in enumerate(LENGTHS):
        yield {"tokens": np.arange(i, i + length), "origin": (i, 2 * i, 7), "label": i % 2}


def records():
    label = tf.TensorSpec([], tf.int32)
    signature = {"tokens": tf.TensorSpec([None], tf.int32), "origin": tf.TensorSpec([3], tf.int64), "label": label}
    return tf.data.Dataset.from_generator(rows, output_signature=signature)


def unwanted():
    raise AssertionError("a whole store must not be built again")


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    path = tmp_path_factory.mktemp("store") / "records"
    build(records, path, lambda: {"documents": 3})
    return path


def test_every_record_comes_back_in_any_order(directory):
    store = Store.open(directory)
    assert len(store) == len(LENGTHS)
    assert store.manifest["counts"] == {"documents": 3}
    at = np.random.default_rng(0).permutation(len(LENGTHS))
    got = store.fetch(at)
    assert isinstance(got["tokens"], Ragged) and got["tokens"].values.dtype == np.int32
    assert got["tokens"].lengths.tolist() == [LENGTHS[i] for i in at]
    assert got["tokens"].values.tolist() == [i + j for i in at for j in range(LENGTHS[i])]
    assert got["origin"].tolist() == [[i, 2 * i, 7] for i in at]
    assert got["label"].tolist() == [i % 2 for i in at]
    assert {k: (tuple(s.shape), s.dtype) for k, s in store.spec.items()} == {
        "tokens": ((None,), tf.int32), "origin": ((3,), tf.int64), "label": ((), tf.int32)
    }  # fmt: skip


def test_records_made_many_at_a_time_are_the_same_bytes(directory, tmp_path):
    """Those of labelled rows, whether they go to the disk at once or through a preprocessor that follows."""
    spec, every = records().element_spec, list(rows())

    def make():
        for start in range(0, len(every), 300):
            chunk = every[start : start + 300]
            lengths, ones = np.array([len(row["tokens"]) for row in chunk]), np.ones(len(chunk), np.int64)
            yield {
                "tokens": Ragged(np.concatenate([row["tokens"] for row in chunk]), lengths),
                "origin": Ragged(np.array([row["origin"] for row in chunk]), ones),
                "label": Ragged(np.array([row["label"] for row in chunk]), ones),
            }

    batches = Batches(spec, make)
    (whole,) = directory.glob("*.safetensors")
    for name, ds in (("at-once", batches), ("one-by-one", batches.dataset(pytest.fail))):
        assert write_shard(ds, tmp_path / name, lambda: {"documents": 3}) == len(LENGTHS)
        assert (tmp_path / name).read_bytes() == whole.read_bytes(), name


def test_a_feature_is_read_of_all_records(directory):
    store = Store.open(directory)
    assert store.values("label").tolist() == [i % 2 for i in range(len(LENGTHS))]
    assert store.values("origin").shape == (len(LENGTHS), 3) and store.values("tokens").dtype == np.int32
    assert len(store.values("tokens")) == sum(LENGTHS)


def test_a_whole_store_is_found_again(directory):
    assert build(unwanted, directory).checksum == Store.open(directory).checksum


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["cut", "flip", "head", "manifest", "gone", "format", "records"])
def test_a_torn_store_is_rebuilt(directory, tmp_path, damage):
    path = shutil.copytree(directory, tmp_path / "records")
    whole = Store.open(path).checksum
    tokens, manifest = path / shard_name(0, 1), path / "manifest.json"
    content = tokens.read_bytes()
    if damage == "cut":
        tokens.write_bytes(content[:-4])
    elif damage == "flip":
        tokens.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    elif damage == "head":
        tokens.write_bytes(content.replace(b"800", b"801", 1))
    elif damage == "records":
        manifest.write_text(manifest.read_text().replace("800", "801", 1))
    elif damage == "manifest":
        manifest.write_text(manifest.read_text()[:40])
    elif damage == "gone":
        tokens.unlink()
    else:
        manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"format": -1}))
    assert Store.open(path) is None
    assert build(records, path, lambda: {"documents": 3}).checksum == whole == Store.open(path).checksum


def test_an_interrupted_build_leaves_nothing(tmp_path):
    def interrupted():
        def generate():
            yield from rows()
            raise KeyboardInterrupt

        return tf.data.Dataset.from_generator(generate, output_signature=records().element_spec)

    with pytest.raises((KeyboardInterrupt, tf.errors.OpError)):
        build(interrupted, tmp_path / "records")
    assert not list(tmp_path.iterdir())


def test_no_record_is_a_mistake(tmp_path):
    with pytest.raises(UserError, match="give no record"):
        build(lambda: records().take(0), tmp_path / "records")


def test_progress_is_told(tmp_path):
    seen = []
    build(records, tmp_path / "records", report=seen.append)
    assert seen == sorted(seen) and seen[-1] == len(LENGTHS) and len(seen) > 1


def race(path, start):
    start.wait()
    print(build(records, path).checksum)


@pytest.mark.slow
def test_two_processes_may_build_the_same_store(tmp_path):
    context = forked()
    start = context.Barrier(2)
    both = [context.Process(target=race, args=(tmp_path / "records", start)) for _ in range(2)]
    for process in both:
        process.start()
    for process in both:
        process.join()
    assert [process.exitcode for process in both] == [0, 0]
    assert [p.name for p in tmp_path.iterdir()] == ["records"]
    assert Store.open(tmp_path / "records") is not None
