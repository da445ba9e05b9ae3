import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from jaxpt.config import DataConfig
from jaxpt.data import seqio_tasks
from jaxpt.data._tf import from_generator, seqio, tf
from jaxpt.data.calls import Call, Transforms, Vocabulary
from jaxpt.data.preprocessors.batched import one_record
from jaxpt.data.records.cache import make_shard
from jaxpt.data.seqio_tasks import Offline, bind, key, resolve
from jaxpt.data.sources.opening import open_source
from jaxpt.errors import UserError
from tests.data.seqio_task import make_task

LINES = [f"{i} words" for i in range(100)]


def upper(ds, vocabulary, mark="!"):
    return ds.map(lambda x: x | {"text": tf.strings.upper(x["text"]) + mark})


@one_record(seeds=1)
def length(example, seed):
    draw = tf.random.stateless_uniform([], seed, 0, 9, tf.int32)
    return {"encoder_positions": tf.expand_dims(tf.strings.length(example["text"]), 0), "draw": draw}


class Traced:
    """How many threads trace at the same time."""

    now = most = 0


def noted(ds, vocabulary):
    def convert(record):
        Traced.now += 1
        Traced.most = max(Traced.most, Traced.now)
        time.sleep(0.02)
        Traced.now -= 1
        return record

    return ds.map(convert)


def test_one_thread_at_a_time_traces(tmp_path):
    """Python 3.11 counts the depth of its parser, which AutoGraph calls, for all threads together."""
    (tmp_path / "text.txt").write_text("\n".join(LINES))
    data = DataConfig(path=str(tmp_path / "text.txt"), tokenizer={"kind": "wordpiece"})
    transforms = Transforms((Call(f"{__name__}.noted"),), ())
    tokenizer = SimpleNamespace(seqio=None, vocabulary=Vocabulary(10))
    opened = [Offline(data, transforms, None, "train", tokenizer).open() for _ in range(4)]
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda documents: documents.dataset(1, documents.shards()[0]), opened))
    assert Traced.most == 1


def test_names_are_ours_or_anyones():
    from jaxpt.data.preprocessors import windows

    assert resolve("windows.cut") is windows.cut
    assert resolve(f"{__name__}.upper").__name__ == "upper"


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (Call("window.cut"), "no module 'window'; did you mean windows"),
        (Call("windows.cutt"), "did you mean cut"),
        (Call("no.such.place"), "No module named 'no'"),
        (Call(f"{__name__}.upper", {"marks": "?"}), "no argument 'marks'"),
    ],
)
def test_wrong_names_are_answered_with_the_nearest(call, words):
    with pytest.raises(UserError, match=words) as error:
        bind(call, None)
    assert "\n" not in str(error.value)


def shuffled(ds):
    return ds.shuffle(100)


def drawn(ds):
    return ds.map(lambda x: x | {"text": tf.strings.join([x["text"], tf.strings.as_string(tf.random.uniform([]))])})


@seqio.map_over_dataset(num_seeds=1)
def frozen(x, seed):
    return x | {"text": tf.strings.join([x["text"], tf.strings.as_string(tf.random.stateless_uniform([], seed))])}


def nothing(ds):
    return None


def bare(ds):
    return ds.map(lambda x: x["text"])


def records_of(tmp_path, function, **options):
    """The records of a text's first shard, by an offline preprocessor of one's own."""
    path = tmp_path / "a.txt"
    path.write_text("\n".join(LINES))
    data = DataConfig(tokenizer={"kind": "bpe"}, path=str(path))
    tokenizer = SimpleNamespace(vocabulary=Vocabulary(size=10), encode=None, decode=None)
    transforms = Transforms((Call(f"{__name__}.{function}", options),), ())
    work = Offline(data, transforms, None, "train", tokenizer).open()
    return [row["text"] for row in work.dataset(0, work.shards()[0]).as_numpy_iterator()]


@pytest.mark.parametrize("function", ["shuffled", "drawn"])
def test_records_that_differ_each_time_are_refused(tmp_path, monkeypatch, function):
    """They are made once: nothing else would show it."""
    monkeypatch.setattr(seqio_tasks, "to_seqio", lambda tokenizer: None)
    with pytest.raises(UserError, match=rf"{function}' makes other records of the same documents each time; offline"):
        records_of(tmp_path, function)


def test_draws_that_are_frozen_in_a_seed_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(seqio_tasks, "to_seqio", lambda tokenizer: None)
    one, other = (records_of(tmp_path, "frozen") for _ in range(2))
    assert one == other and len(one) > 80


@pytest.mark.parametrize(("function", "form"), [("nothing", "NoneType"), ("bare", "one of TensorSpec")])
def test_what_a_preprocessor_returns_is_looked_at(tmp_path, monkeypatch, function, form):
    monkeypatch.setattr(seqio_tasks, "to_seqio", lambda tokenizer: None)
    with pytest.raises(UserError, match=rf"{function}' must return a tf.data.Dataset of .*, not {form}"):
        records_of(tmp_path, function)


def test_the_task_runs_in_seqio(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("\n".join(LINES))
    data = DataConfig(tokenizer={"kind": "bpe"}, path=str(path))
    transforms = Transforms((Call(f"{__name__}.upper", {"mark": "?"}),), (Call(f"{__name__}.length"),))
    features = {"encoder_positions": ((1,), "int32")}
    task = make_task("lengths", open_source(data), transforms, features, seqio.PassThroughVocabulary(10))
    records = task.preprocess_precache(task.source.get_dataset("train", shuffle=False))
    texts = [r["text"].decode() for r in records.as_numpy_iterator()]
    assert set(texts) <= {f"{line.upper()}?" for line in LINES} and len(texts) > 80
    ds = task.get_dataset(None, "validation", shuffle=False, num_epochs=1)
    assert 0 < sum(1 for _ in ds) == 100 - len(texts)


def test_a_transform_keeps_its_own_argument_called_split():
    """documents.tokenize_sentences has one; the split's name is offered under another."""
    ds = tf.data.Dataset.from_tensors({"text": "a. Bc", "origin": [0, 0]})
    (record,) = bind(Call("documents.tokenize_sentences"), seqio.ByteVocabulary(), split="train")(ds)
    assert record["sentence_lengths"].numpy().tolist() == [2, 2]


def test_keys_depend_on_every_part():
    parts = [(s, p, e) for s in range(5) for p in ("order", "noise") for e in range(5)]
    keys = [key(*part) for part in parts]
    assert len(set(keys)) == len(keys)
    assert all(0 <= k < 2**63 for k in keys)
    assert key(3, "order", 1) == key(3, "order", 1)


def test_tensorflow_prints_no_traceback(tmp_path, monkeypatch, capfd):
    """What a generator raises inside tf.data ends the shard in its own words; no shard is left."""
    monkeypatch.setattr(seqio_tasks, "to_seqio", lambda tokenizer: None)
    path = tmp_path / "a.txt"
    path.write_bytes(b"a line\n" * 300 + b"\xe9t\xe9\n")
    data = DataConfig(tokenizer={"kind": "bpe"}, path=str(path))
    tokenizer = SimpleNamespace(vocabulary=Vocabulary(size=10), encode=None, decode=None)
    work = Offline(data, Transforms((Call(f"{__name__}.frozen", {}),), ()), None, "train", tokenizer).open()
    monkeypatch.setattr(work, "_check_repeats", lambda *given: None)
    with pytest.raises(UserError, match=r"a\.txt: line 301: not UTF-8"):
        make_shard(work, 0, work.shards()[0], tmp_path / "shard")
    assert capfd.readouterr().err == "" and [*tmp_path.iterdir()] == [path]


def test_a_generator_that_fails_ends_its_dataset(capfd):
    found = []

    def elements():
        yield 1
        raise RuntimeError("broken")

    ds = from_generator(elements, tf.TensorSpec([], tf.int32), found.append)
    assert [*ds.as_numpy_iterator()] == [1] and [str(error) for error in found] == ["broken"]
    assert capfd.readouterr().err == ""
