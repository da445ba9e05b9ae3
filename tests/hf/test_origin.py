"""What a run takes over of the directory that it came from."""

import json

import pytest

from jaxpt.hf import files, origin

CONFIG = {"model_type": "bart", "eos_token_id": 2, "pad_token_id": 1, "attention_dropout": 0.0}
SETTINGS = {"eos_token_id": [2, 7], "decoder_start_token_id": 2, "forced_bos_token_id": 0, "num_beams": 4}


@pytest.fixture
def source(tmp_path):
    (tmp_path / "theirs").mkdir()
    for name, keys in ((origin.CONFIG, CONFIG), (origin.GENERATION, SETTINGS)):
        (tmp_path / "theirs" / name).write_text(json.dumps(keys))
    return tmp_path / "theirs"


def carried(source, to, **more):
    """(config.json, generation_config.json) of a run that starts from the source."""
    given = {"eos": 2, "start": [2, 0], "same_tokenizer": True} | more
    origin.carry(source, to, **given)
    return origin.read(to / origin.FOLDER, origin.CONFIG), origin.read(to / origin.FOLDER, origin.GENERATION)


def test_where_the_files_are(source, tmp_path):
    run = tmp_path / "run"
    origin.keep(source, run)
    (run / "checkpoints" / "5").mkdir(parents=True)
    assert origin.folder_of(source) == source
    assert origin.folder_of(run) == origin.folder_of(run / "checkpoints" / "5") == run / origin.FOLDER
    assert origin.read(run / origin.FOLDER, origin.GENERATION) == SETTINGS
    assert files.damage(run / origin.FOLDER) is None
    (run / origin.FOLDER / origin.CONFIG).write_text("{}")
    assert "config.json: is missing or was changed" in files.damage(run / origin.FOLDER)


@pytest.mark.parametrize("name", ["xlm-roberta-base", "1000"])
def test_a_folder_of_models_may_be_called_checkpoints(name, source, tmp_path):
    model = tmp_path / "checkpoints" / name
    model.parent.mkdir()
    source.rename(model)
    assert origin.run_dir_of(model) is None and origin.folder_of(model) == model
    assert carried(model, tmp_path / "a") == (CONFIG, SETTINGS)
    assert origin.folder_of(model.parent / "t5x") == model.parent / "t5x"
    assert origin.run_dir_of(model.parent / "7") == tmp_path


def test_training_takes_the_files_over(source, tmp_path):
    assert carried(source, tmp_path / "a") == (CONFIG, SETTINGS)
    # From a run that started so, too; what a run has is not written again.
    (tmp_path / "a" / "checkpoints").mkdir()
    assert carried(tmp_path / "a", tmp_path / "b") == (CONFIG, SETTINGS)
    assert carried(source, tmp_path / "b", eos=9) == (CONFIG, SETTINGS)
    assert carried(tmp_path / "none", tmp_path / "c") == (None, None)


def test_what_training_writes_itself_is_added(source, tmp_path):
    config, settings = carried(source, tmp_path / "a", eos=9, start=[5])
    assert config["eos_token_id"] == [9, 2]
    assert settings == SETTINGS | {
        "eos_token_id": [9, 2, 7], "decoder_start_token_id": 5, "forced_bos_token_id": None,
    }  # fmt: skip
    _, settings = carried(source, tmp_path / "b", start=[])
    assert settings == SETTINGS, "a decoder"


def test_another_vocabulary_has_other_ids(source, tmp_path):
    assert carried(source, tmp_path / "a", same_tokenizer=False) == (
        {"model_type": "bart", "attention_dropout": 0.0}, None,
    )  # fmt: skip
