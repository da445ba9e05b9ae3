"""The random batch of `--verify`, and that both programs agree on it whatever ids the files name."""

import json

import numpy as np
import pytest

from jaxpt import hf
from jaxpt.errors import UserError
from jaxpt.hf import verify
from tests import grids
from tests.hf.parity import randomise
from tests.hf.test_directory import AS_READ, fresh
from tests.hf.test_parity import SIZES
from tests.models.helpers import EVERY


@pytest.mark.parametrize("padding", [0, 1, 3, 7, 9, 10])
def test_no_token_of_a_text_is_the_padding(padding):
    """RoBERTa's classes count positions by it; ids that no class reads are drawn as before."""
    config = EVERY["roberta"](vocab_size=11, padding_id=padding)
    for batch in (verify.batch(config, seed=5), verify.task_batch(config, seed=5)):
        tokens = batch["tokens"][batch["segments"] > 0]
        assert set(tokens) == set(range(3, 11)) - {padding}
    shape, rng = (5, 40), np.random.default_rng
    drawn = verify.random_tokens(rng(1), EVERY["bert"](vocab_size=11), shape)
    np.testing.assert_array_equal(drawn, rng(1).integers(3, 11, shape))


def test_a_vocabulary_of_a_few_ids():
    for size in (1, 2, 3, 4, 5):
        tokens = verify.batch(EVERY["roberta"](vocab_size=size, padding_id=min(3, size - 1)))["tokens"]
        assert tokens.min() >= 0 and tokens.max() < size


@pytest.mark.parity
def test_a_directory_that_transformers_refuses(tmp_path):
    hf.save(tmp_path, *fresh(EVERY["llama"](**AS_READ)))
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"initializer_range": "wide"}))
    with pytest.raises(UserError, match=r"transformers 5\S+ does not load it as LlamaForCausalLM: .*initializer_range"):
        verify.verify(tmp_path)


CASES = [(prefix, task, padding) for prefix in ("Roberta", "XLMRoberta") for padding in (3, 50, 100)
         for task in ("MaskedLM", "SequenceClassification", "TokenClassification", "MultipleChoice")]  # fmt: skip


@pytest.mark.parity
@pytest.mark.slow
@pytest.mark.parametrize(("prefix", "task", "padding"), grids.cases(
    CASES, ("Roberta", "MaskedLM", 3), ("XLMRoberta", "SequenceClassification", 50),
))  # fmt: skip
def test_files_with_any_padding_id(prefix, task, padding, tmp_path):
    transformers = pytest.importorskip("transformers")
    config = getattr(transformers, f"{prefix}Config")(**SIZES | {"type_vocab_size": 1}, pad_token_id=padding)
    config.max_position_embeddings = 32 + padding
    randomise(getattr(transformers, f"{prefix}For{task}")(config), 0).save_pretrained(tmp_path / "hf")
    found = verify.verify(tmp_path / "hf")
    assert all(difference.equal for difference in found.values()), found
