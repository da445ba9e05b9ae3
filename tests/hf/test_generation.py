"""Which file says what stops and steers generation, and what is refused or passed over."""

import json

import pytest

from jaxpt import errors
from jaxpt.errors import UserError
from jaxpt.hf import generation, origin


@pytest.fixture
def read(tmp_path):
    def read(config=None, settings=None):
        for name, keys in ((origin.CONFIG, config), (origin.GENERATION, settings)):
            (tmp_path / name).unlink(missing_ok=True)
            if keys is not None:
                (tmp_path / name).write_text(json.dumps(keys))
        return generation.read(tmp_path, 50)

    return read


def test_an_end_or_a_start_is_of_the_first_file_that_names_one(read):
    assert read() == generation.Generation()
    config = {"eos_token_id": 2, "decoder_start_token_id": 3, "bos_token_id": 0}
    found = read(config)
    assert (found.eos, found.decoder_start, found.bos) == ((2,), 3, 0)
    assert read(config, {"eos_token_id": [31, 7, 31]}).eos == (31, 7)
    for silent in ({}, {"eos_token_id": None}, {"eos_token_id": []}):
        found = read(config, silent)
        assert (found.eos, found.decoder_start, found.bos) == ((2,), 3, 0)
    assert read(config, {"decoder_start_token_id": 9}).decoder_start == 9


def test_what_is_forced_and_suppressed_is_of_one_file(read):
    """As in transformers, which reads config.json only where there is no generation_config.json."""
    forced = {
        "forced_bos_token_id": 0, "forced_eos_token_id": [2, 3], "suppress_tokens": [4, 5],
        "begin_suppress_tokens": 6, "bad_words_ids": [[7], [8, 8]],
    }  # fmt: skip
    options = {
        "forced_first": 0, "forced_last": (2, 3), "suppress": (4, 5), "suppress_first": (6,),
        "bad_words": ((7,), (8, 8)),
    }  # fmt: skip
    assert read(forced).options == read({}, forced).options == options
    assert read(forced, {}).options == {}
    assert read({}, {"forced_bos_token_id": None, "suppress_tokens": [], "bad_words_ids": None}).options == {}


def test_settings_of_search_are_told(read):
    given = {"num_beams": 4, "min_length": 0, "do_sample": False, "early_stopping": True, "repetition_penalty": 1.3}
    assert read({}, given).search == ("num_beams: 4", "repetition_penalty: 1.3", "early_stopping: true")
    beams = {"num_beams": 4, "length_penalty": 2.0, "early_stopping": True, "max_length": 142, "min_length": 56}
    assert set(read(beams).search) == {f"{key}: {json.dumps(value)}" for key, value in beams.items()}
    sampling = {"do_sample": True, "temperature": 0.6, "top_p": 0.9, "max_new_tokens": 512}
    assert set(read({}, sampling).search) == {f"{key}: {json.dumps(value)}" for key, value in sampling.items()}


def test_settings_that_change_nothing_are_not_told(read):
    """Settings of beams without beams, settings of sampling without sampling, and Transformers' defaults."""
    given = {"length_penalty": 2.0, "early_stopping": True, "temperature": 0.6, "top_p": 0.9, "num_beams": 1}
    assert read({}, given | {"max_length": 20, "do_sample": False}).search == ()
    assert read({}, {"do_sample": True, "temperature": 1.0, "top_k": 50, "top_p": None}).search == ("do_sample: true",)


@pytest.mark.parametrize(("key", "value", "said"), [
    ("eos_token_id", "</s>", "wants an id, or a list of ids, got '</s>'"),
    ("eos_token_id", [2, True], "wants an id, or a list of ids, got"),
    ("suppress_tokens", {"a": 1}, "wants an id, or a list of ids, got"),
    ("forced_bos_token_id", [1, 2], "wants one id, got"),
    ("decoder_start_token_id", 2.0, "wants an id, or a list of ids, got 2.0"),
    ("bad_words_ids", [7], "wants a list of lists of ids, got"),
    ("bad_words_ids", [[]], "wants a list of lists of ids, got"),
])  # fmt: skip
def test_values_that_are_no_ids(read, key, value, said):
    with pytest.raises(UserError, match=rf"generation_config\.json: {key}: {said}"):
        read({}, {key: value})
    with pytest.raises(UserError, match=rf"/config\.json: {key}: {said}"):
        read({key: value})


def test_ids_that_the_model_has_not(read, monkeypatch):
    notes = []
    monkeypatch.setattr(errors, "note", notes.append)
    found = read({}, {"eos_token_id": [49, 50, -1], "bad_words_ids": [[3, 99], [3]]})
    assert found.eos == (49,) and found.options == {"bad_words": ((3,),)}
    said = "\n".join(notes)
    assert "eos_token_id: 50 is passed over: the model has the ids 0 to 49" in said and "bad_words_ids: 99" in said


def test_a_file_that_is_no_object(tmp_path):
    (tmp_path / origin.GENERATION).write_text("[1]")
    with pytest.raises(UserError, match=r"generation_config\.json: expected a JSON object"):
        generation.read(tmp_path, 50)
