import importlib.resources
import importlib.resources.abc
import sys

import numpy as np
import pytest

from jaxpt.config import DataConfig
from jaxpt.data._tf import seqio, tf
from jaxpt.data.fingerprint import changes
from jaxpt.data.sources.opening import open_source
from jaxpt.errors import UserError

TEXTS = [f"{i} apples and pears" for i in range(60)]


class Numbers(seqio.PassThroughVocabulary):
    pass


def source(splits=("train",)):
    def documents(split, shuffle_files):
        return tf.data.Dataset.from_tensor_slices({"text": TEXTS if split == "train" else ["held out"]})

    return seqio.FunctionDataSource(documents, splits)


def numbers(ds):
    return ds.map(lambda x: {"targets": tf.strings.bytes_split(x["text"])}).map(
        lambda x: {
            "targets": tf.cast(tf.strings.unicode_decode(tf.strings.reduce_join(x["targets"]), "UTF-8"), tf.int32)
        }
    )


def shout(ds):
    return ds.map(lambda x: {"text": tf.strings.upper(x["text"])})


@pytest.fixture(scope="module", autouse=True)
def tasks():
    feature = {"targets": seqio.Feature(Numbers(200), add_eos=False)}
    add, cache = seqio.TaskRegistry.add, seqio.CacheDatasetPlaceholder()
    add("fruit_text", source(), output_features=feature, preprocessors=[shout, cache, numbers])
    add("fruit_numbers", source(("train", "validation")), output_features=feature, preprocessors=[numbers])
    add(
        "fruit_other",
        source(),
        output_features=feature,
        preprocessors=[lambda ds: ds.map(lambda x: {"inputs": x["text"]})],
    )
    add(
        "fruit_broken",
        source(),
        output_features=feature,
        preprocessors=[lambda ds, sequence_length: ds.take(sequence_length["x"])],
    )
    yield
    for name in ("fruit_broken", "fruit_text", "fruit_numbers", "fruit_other"):
        seqio.TaskRegistry.remove(name)


def config(task=None, **settings):
    return DataConfig(tokenizer={"kind": "bpe"}, **({"source": "task", "task": task} | settings))


def test_text_before_the_cache_placeholder_makes_documents():
    corpus = open_source(config("fruit_text", validation_fraction=0.2))
    both = [d for split in ("train", "validation") for d in corpus.documents(split)]
    assert sorted(both) == sorted((0, i, text.upper()) for i, text in enumerate(TEXTS))
    assert not corpus.tokenized


def test_token_ids_and_the_tasks_own_validation_split():
    corpus = open_source(config("fruit_numbers"))
    assert corpus.tokenized
    train = list(corpus.documents("train"))
    assert len(train) == len(TEXTS)
    assert [bytes(t.astype(np.uint8).tolist()).decode() for _, _, t in train] == TEXTS
    held = list(corpus.dataset("validation").as_numpy_iterator())
    assert bytes(held[0]["tokens"].astype(np.uint8).tolist()) == b"held out"
    assert held[0]["origin"].tolist() == [0, 0]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"task": "fruit_txt"}, "did you mean fruit_text"),
        ({"task": "fruit_broken"}, "its preprocessors fail"),
        ({"task": None}, "data.task is missing"),
        ({"task": "fruit_other"}, "gives inputs; wants text or targets"),
        ({"task": "fruit_text", "modules": ("no_such_module_here",)}, "data.modules: no_such_module_here"),
        ({"source": "tfds", "path": "no_such_dataset_here"}, "no_such_dataset_here"),
    ],
)
def test_mistakes_are_named_in_one_line(settings, words):
    with pytest.raises(UserError, match=words) as error:
        open_source(config(**settings))
    assert "\n" not in str(error.value)


@pytest.fixture(scope="module")
def tfds_directory(tmp_path_factory):
    import tensorflow_datasets as tfds

    # tfds 4.9.10 imports this package to write a data set, and does not require it; the standard library's is the same.
    sys.modules.setdefault("importlib_resources", importlib.resources)
    features = tfds.features.FeaturesDict({"body": tfds.features.Text(), "stars": tf.int64})
    ds = tf.data.Dataset.from_tensor_slices({"body": TEXTS, "stars": tf.range(len(TEXTS), dtype=tf.int64)})
    root = tmp_path_factory.mktemp("tfds")
    splits = {"train": ds.take(60), "test": ds.take(3)}
    builder = tfds.dataset_builders.store_as_tfds_dataset(
        "fruit", "1.0.0", features=features, split_datasets=splits, data_dir=root, disable_shuffling=True
    )
    return builder.data_dir


def test_tfds_reads_a_prepared_directory(tfds_directory):
    settings = {"source": "tfds", "path": str(tfds_directory), "field": "body", "validation_fraction": 0.2}
    corpus = open_source(config(**settings))
    both = [d for split in ("train", "validation") for d in corpus.documents(split)]
    assert sorted(text for _, _, text in both) == sorted(TEXTS)
    corpus = open_source(config(**settings, validation_path="test"))
    assert len(list(corpus.documents("train"))) == len(TEXTS)
    assert len(list(corpus.documents("validation"))) == 3
    for wrong, words in (
        ({"field": "stars"}, "'stars' is no text field"),
        ({"validation_path": "dev"}, "has no split 'dev'"),
    ):
        with pytest.raises(UserError, match=words):
            open_source(config(**{**settings, **wrong}))


def as_text(ds):
    return ds.map(lambda line: {"text": line})


def test_files_of_a_task(tmp_path):
    """A Task over files has all their lines. Another content is other data, another place is not."""
    feature = {"targets": seqio.Feature(Numbers(200), add_eos=False)}

    def corpus_in(folder, texts):
        folder.mkdir(exist_ok=True)
        for n in range(3):
            (folder / f"{n}.txt").write_text("".join(f"{text}\n" for text in texts[n::3]))
        lines = seqio.TextLineDataSource({"train": f"{folder}/*.txt"})
        steps = [as_text, seqio.CacheDatasetPlaceholder(), numbers]
        seqio.TaskRegistry.add("fruit_files", lines, output_features=feature, preprocessors=steps)
        try:
            corpus = open_source(config("fruit_files"))
            texts = [text for split in ("train", "validation") for *_, text in corpus.documents(split)]
            return sorted(texts), corpus.fingerprint()
        finally:
            seqio.TaskRegistry.remove("fruit_files")

    texts, before = corpus_in(tmp_path / "here", TEXTS)
    assert texts == sorted(TEXTS)
    assert corpus_in(tmp_path / "there", TEXTS)[1] == before
    after = corpus_in(tmp_path / "here", ["plums", *TEXTS[1:]])[1]
    assert [*changes({"source": before}, {"source": after})] == ["source.contents.train"]
    older = {key: value for key, value in before.items() if key != "contents"}
    assert not changes({"source": older}, {"source": after})  # as before files were looked at
