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
from tests.hf.test_parity import LLAMA_SIZES, SIZES, T5_SIZES
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


def test_a_text_has_none_of_the_ids_around_it():
    config = EVERY["bart"](vocab_size=11)
    batch = verify.task_batch(config, pad=5, eos=8, start=2)
    ends = batch["segments"].sum(1) - 1
    assert (batch["tokens"][np.arange(3), ends] == 8).all() and (batch["tokens"][batch["segments"] == 0] == 5).all()
    assert (batch["shifted"][:, 0] == 2).all()
    inner = batch["segments"] * (np.arange(24) != ends[:, None]) > 0
    assert set(batch["tokens"][inner]) == {3, 4, 6, 7, 9, 10}


@pytest.mark.parity
@pytest.mark.parametrize("padding", [7, None])
def test_a_decoder_finds_the_end_of_a_text_by_the_padding_of_its_files(padding, tmp_path):
    """Without one their class takes one text at a time, and the user is told."""
    transformers = pytest.importorskip("transformers")
    config = transformers.Qwen2Config(**LLAMA_SIZES | {"num_hidden_layers": 1}, num_labels=3, pad_token_id=padding)
    randomise(transformers.Qwen2ForSequenceClassification(config), 0).save_pretrained(tmp_path)
    assert verify.verify(tmp_path)["logits"].equal
    advice = verify.padding_advice(tmp_path, hf.load(tmp_path)[0])
    assert [line.startswith("config.json has no pad_token_id") for line in advice] == [True] * (padding is None)


@pytest.mark.parity
def test_a_class_that_does_not_run_on_the_ids_of_its_files(tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.T5Config(**T5_SIZES | {"num_layers": 1}, num_labels=3, decoder_start_token_id=0)
    randomise(transformers.T5ForSequenceClassification(config), 0).save_pretrained(tmp_path)
    assert verify.verify(tmp_path)["logits"].equal
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"eos_token_id": [1, 2]}))
    with pytest.raises(UserError, match=r"transformers 5\S+ does not run T5ForSequenceClassification on it: "):
        verify.verify(tmp_path)


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
