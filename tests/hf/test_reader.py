"""What runs that start from a directory in Hugging Face's form read of it."""

import json

import numpy as np
import pytest

from jaxpt.data.calls import Vocabulary
from jaxpt.hf import reader
from jaxpt.train import initial
from tests import families
from tests.hf.formats import layouts


@pytest.mark.parametrize(
    ("named", "wanted"),
    [
        ({str(i): f"L{i}" for i in (10, 2, 0, 1, 9, 8, 7, 6, 5, 4, 3)}, tuple(f"L{i}" for i in range(11))),
        ({"0": "no", "1": "yes"}, ("no", "yes")),
        ({"no": 0, "yes": 1}, None),
        ({}, None),
        (None, None),
    ],
)
def test_labels_stand_in_the_order_of_their_numbers(named, wanted, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert", "id2label": named}))
    assert reader.labels(tmp_path) == wanted
    assert initial.labels_of(tmp_path) == {"classes": wanted, "tags": wanted}


def test_a_checkpoint_of_another_program_has_no_labels(tmp_path):
    layouts.write_t5x(tmp_path / "checkpoint_7", {"token_embedder/embedding": np.ones((4, 4), np.float32)})
    assert reader.reads(tmp_path / "checkpoint_7")
    assert initial.labels_of(tmp_path / "checkpoint_7") == {"classes": None, "tags": None}


@pytest.mark.parametrize(("languages", "wanted"), [((7,), (7,)), ((7, 9), ())])
def test_the_language_of_a_text_is_the_start_where_all_texts_have_one(languages, wanted):
    vocabulary = Vocabulary(200, bos=3, eos=1, mask=4, languages=languages)
    config = families.config("bert", model={"kind": "bart"}, objective={"kind": "mbart"})
    assert reader.decoder_start(config, vocabulary) == wanted
