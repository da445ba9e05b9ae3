"""Flags of added tokens and names of special tokens in tokenizer_config.json, beside a tokenizer.json."""

import pytest

from jaxpt.data import tokenizers
from tests.data.tokenizers.test_declared import saved_settings, write

FLAGS = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
BESIDE = {  # of tokenizer_config.json, beside a tokenizer.json that has <mask>, which is special, and <x>, which is not
    "flags": {"added_tokens_decoder": {
        "1": {"content": "<mask>", **FLAGS, "lstrip": True}, "2": {"content": "<x>", **FLAGS, "rstrip": True},
    }},
    "a word": {"added_tokens_decoder": {"2": {"content": "<x>", "single_word": True}}},
    "a mask": {"mask_token": "<mask>", "added_tokens_decoder": {
        "1": {"content": "<mask>", **FLAGS, "special": False, "rstrip": True},
    }},
    "names": {"extra_special_tokens": {"image_token": "<img>", "sound_token": "<x>"}},
    "a list": {"extra_special_tokens": ["<img>", "<x>"]},
    "a key": {"image_token": "<x>"},
}  # fmt: skip


def beside(folder, settings):
    from tokenizers import AddedToken, Tokenizer, models

    rust = Tokenizer(models.BPE({word: i for i, word in enumerate(["<pad>", "<mask>", "<x>", "a", "b", " "])}, []))
    rust.add_special_tokens(["<pad>", "<mask>"])
    rust.add_tokens([AddedToken("<x>", normalized=False)])
    settings = {"tokenizer_class": "PreTrainedTokenizerFast"} | settings
    return write(folder, tokenizer__json=rust.to_str(), tokenizer_config__json=settings)


def test_flags_of_tokenizer_config_count_before_those_of_tokenizer_json(tmp_path):
    plain = tokenizers.load(beside(tmp_path / "plain", {}))
    assert plain.encode("a <mask> <x> b", special=True) == [3, 5, 1, 5, 2, 5, 4]
    flags = tokenizers.load(beside(tmp_path / "flags", BESIDE["flags"]))
    assert flags.encode("a <mask> <x> b", special=True) == [3, 1, 5, 2, 4]
    assert 2 not in flags.encode("<x>") and 2 in plain.encode("<x>")  # it is special now
    word = tokenizers.load(beside(tmp_path / "word", BESIDE["a word"]))
    assert (2 in word.encode("a<x>b"), 2 in word.encode("a <x> b")) == (False, True)
    legacy = beside(tmp_path / "legacy", {})
    write(legacy, added_tokens__json={"<x>": 2}, special_tokens_map__json={"additional_special_tokens": ["<x>"]})
    assert tokenizers.load(legacy).encode("a <x>b") == plain.encode("a <x>b") == [3, 5, 2, 4]


def test_names_of_special_tokens_are_kept(tmp_path):
    for name in ("names", "a list", "a key"):
        assert saved_settings(beside(tmp_path / name, BESIDE[name])).items() >= BESIDE[name].items()
    sentinels = [f"<extra_id_{i}>" for i in range(9)]  # `extra_ids` says these
    beside(tmp_path / "sentinels", {"additional_special_tokens": ["<x>", *sentinels]})
    assert saved_settings(tmp_path / "sentinels")["additional_special_tokens"] == ["<x>"]
    added = tokenizers.add(tokenizers.load(tmp_path / "names"), ["<y>"])
    assert added.carried["extra_special_tokens"] and (added.token_id("<img>"), added.token_id("<y>")) == (6, 7)


@pytest.mark.parity
@pytest.mark.parametrize("name", BESIDE)
def test_flags_and_names_are_those_of_transformers(name, tmp_path):
    transformers = pytest.importorskip("transformers")
    ours = tokenizers.load(beside(tmp_path, BESIDE[name]))
    ours.save(tmp_path / "saved")
    theirs, again = (transformers.AutoTokenizer.from_pretrained(x) for x in (tmp_path, tmp_path / "saved"))
    for text in ("a <mask> b", "a<x> b", "a <x>b", "a <x> b", "a<x>b", "<mask><x>", "a<img> b"):
        assert ours.encode(text, special=True) == theirs(text, add_special_tokens=False)["input_ids"], text
    assert again.added_tokens_decoder == theirs.added_tokens_decoder
    assert again.extra_special_tokens == theirs.extra_special_tokens
    assert again.special_tokens_map.items() >= theirs.special_tokens_map.items()
