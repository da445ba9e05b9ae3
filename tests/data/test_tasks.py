import pytest

from jaxpt.config import DataConfig
from jaxpt.data._tf import seqio, tf
from jaxpt.data.calls import Call, Transforms
from jaxpt.data.preprocessors.batched import one_record
from jaxpt.data.sources.opening import open_source
from jaxpt.data.tasks import bind, key, resolve
from jaxpt.errors import UserError
from tests.data.seqio_task import make_task

LINES = [f"{i} words" for i in range(100)]


def upper(ds, vocabulary, mark="!"):
    return ds.map(lambda x: x | {"text": tf.strings.upper(x["text"]) + mark})


@one_record(seeds=1)
def length(example, seed):
    draw = tf.random.stateless_uniform([], seed, 0, 9, tf.int32)
    return {"encoder_positions": tf.expand_dims(tf.strings.length(example["text"]), 0), "draw": draw}


def test_names_are_ours_or_anyones():
    from jaxpt.data.preprocessors import windows

    assert resolve("windows.cut") is windows.cut
    assert resolve(f"{__name__}.upper").__name__ == "upper"


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (Call("window.cut"), "did you mean windows.cut"),
        (Call("windows.cutt"), "did you mean cut"),
        (Call("no.such.place"), "No module named 'no'"),
        (Call(f"{__name__}.upper", {"marks": "?"}), "takes no argument 'marks'"),
    ],
)
def test_wrong_names_are_answered_with_the_nearest(call, words):
    with pytest.raises(UserError, match=words) as error:
        bind(call, None)
    assert "\n" not in str(error.value)


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
