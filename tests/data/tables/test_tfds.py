import importlib.resources
import importlib.resources.abc
import shutil
import sys

import pytest

from jaxpt.data.tables import read
from jaxpt.data.tables.tfds import revision, splits_of
from jaxpt.errors import UserError

pytestmark = pytest.mark.slow  # TensorFlow Datasets takes seconds to import


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    # tfds 4.9.10 imports this package to write a data set, and does not require it; the standard library's is the same.
    sys.modules.setdefault("importlib_resources", importlib.resources)
    sys.modules.setdefault("importlib_resources.abc", importlib.resources.abc)
    import tensorflow as tf
    import tensorflow_datasets as tfds

    features = tfds.features.FeaturesDict(
        {
            "sentence": tfds.features.Text(),
            "label": tfds.features.ClassLabel(names=["negative", "positive"]),
            "score": tf.float32,
            "tags": tfds.features.Sequence(tfds.features.ClassLabel(names=["O", "B-PER"])),
            "answers": tfds.features.Sequence({"text": tfds.features.Text(), "answer_start": tf.int32}),
            "translation": tfds.features.Translation(["de", "en"]),
        }
    )
    records = [
        {
            "sentence": "schön",
            "label": 1,
            "score": 0.5,
            "tags": [1, 0],
            "answers": {"text": ["a", "b"], "answer_start": [3, 4]},
            "translation": {"de": "ja", "en": "yes"},
        },
        {
            "sentence": "unlabelled",
            "label": -1,
            "score": 1.5,
            "tags": [],
            "answers": {"text": [], "answer_start": []},
            "translation": {"de": "", "en": ""},
        },
    ]
    data = tf.data.Dataset.from_generator(lambda: records, output_signature=features.get_tensor_spec())
    data_dir = tmp_path_factory.mktemp("tfds")
    builder = tfds.dataset_builders.store_as_tfds_dataset(
        "films", "1.0.0", features, {"train": data}, data_dir=data_dir, disable_shuffling=True
    )
    return str(builder.data_path)


def test_classes_come_as_their_names(directory):
    first, second = read(directory, "tfds")
    assert first == (
        1,
        {
            "sentence": "schön",
            "label": "positive",
            "score": 0.5,
            "tags": ["B-PER", "O"],
            "answers": {"text": ["a", "b"], "answer_start": [3, 4]},
            "translation": {"de": "ja", "en": "yes"},
        },
    )
    assert second.number == 2 and second.values["label"] is None and second.values["tags"] == []


def test_what_identifies_a_split(directory, tmp_path):
    moved = shutil.copytree(directory, tmp_path / "moved")
    known = revision(str(moved), "train")
    assert (known["name"], known["rows"]) == ("films/1.0.0", 2) and known["bytes"] > 0
    assert known == revision(directory, "train") and splits_of(directory) == ("train",)


def test_bad_names(directory):
    with pytest.raises(UserError, match=r"no split 'trian'; did you mean train"):
        next(read(directory, "tfds", split="trian"))
    with pytest.raises(UserError, match=r"^TFDS data set no_such_data_set_here: "):
        next(read("no_such_data_set_here", "tfds"))
