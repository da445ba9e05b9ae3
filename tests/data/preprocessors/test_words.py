"""Words and sentences in scripts without spaces, and that nothing changes in those with spaces."""

import functools
from typing import get_args

import numpy as np
import pytest
import tensorflow as tf

from jaxpt.config import TokenizerConfig
from jaxpt.data import fingerprint, tokenizers
from jaxpt.data.calls import Vocabulary
from jaxpt.data.preprocessors import bart, units, words
from jaxpt.data.tokenizers.rust_tokenizers import openai_gpt
from jaxpt.data.vocabularies import to_seqio
from jaxpt.errors import UserError
from jaxpt.objectives.masked_lm import MaskedLM, Unit
from jaxpt.objectives.mbart import MBart
from jaxpt.objectives.permutation_lm import PermutationLM
from tests.data.preprocessors import corpus

JAPANESE = (
    "昨日の朝、駅の前で古い友人に会った。", "彼は新しい仕事を始めたばかりだと言った。", "その本はもう読みましたか？",
    "雨が降りそうなので、傘を持って行きなさい。", "なんて美しい庭だろう！",
    "私たちは夏休みに山の小さな村を訪れた。", "母は台所で夕食の準備をしている。",
    "電車が遅れたので会議に間に合わなかった。",
    "この道をまっすぐ行くと海に出ます。",
    "子供たちは公園で遊んでいる。", "明日は何時に出発しますか？", "彼女の声はとても静かだった。",
)  # fmt: skip
CHINESE = (
    "昨天早上我在車站遇到了一位老朋友。", "他說他剛剛開始了新的工作。", "這本書你已經看完了嗎？",
    "看起來要下雨了，請帶上雨傘。", "多麼美麗的花園啊！", "我們暑假去了山裡的一個小村子。",
)  # fmt: skip
THAI = (
    "เมื่อวานนี้ฉันพบเพื่อนเก่าที่สถานีรถไฟ", "เขาบอกว่าเพิ่งเริ่มทำงานใหม่", "ฝนกำลังจะตกอย่าลืมเอาร่มไปด้วย",
    "เด็กๆกำลังเล่นอยู่ในสวนสาธารณะ",
)  # fmt: skip
SPACED = (
    "Yesterday I met an old friend at the station.", "Il a dit qu'il avait déjà commencé.",
    "Did you read it? Yes!",
    "어제 아침 역 앞에서 오랜 친구를 만났다.", "Вчера утром я встретил старого друга.", "कल सुबह मैं एक पुराने दोस्त से मिला।",
)  # fmt: skip
MADE = {MBart: "bart.noise", PermutationLM: "permutation_lm.permute", MaskedLM: "masked_lm.mask"}
UNSPACED = (*JAPANESE, *CHINESE, *THAI)


@functools.cache
def trained(kind, size=500):
    config = TokenizerConfig(kind=kind, extra_ids=2 if kind == "sentencepiece" else None)
    return tokenizers.train((*UNSPACED, *SPACED), config, size)


@pytest.mark.parametrize("kind", ["sentencepiece", "wordpiece", "bpe"])
def test_each_piece_of_a_script_without_spaces_starts_a_word(kind):
    tokenizer = trained(kind)
    starts, pieces = tokenizer.word_starts(), np.array(tokenizer.tokens(range(tokenizer.vocabulary.size)))
    for text in UNSPACED:
        ids = tokenizer.encode(text)
        # But those that go on with a character, and ASCII marks, which are SentencePiece's for the wide ones.
        whole = [not tokenizer.decode(ids[:n]).endswith("\ufffd") for n in range(len(ids))]
        np.testing.assert_array_equal(starts[ids], np.array(whole) & ~np.isin(pieces[ids], [*"!?,"]), text)
    for text in SPACED:
        ids = tokenizer.encode(text)
        begins = [not p.startswith("##") if kind == "wordpiece" else p[0] in " ▁" for p in pieces[ids]]
        named = np.isin(ids, [i for i in (tokenizer.vocabulary.unk, tokenizer.vocabulary.pad) if i is not None])
        np.testing.assert_array_equal(starts[ids], begins | named)


def test_bert_splits_han_by_itself_and_leaves_kana_together():
    tokenizer = trained("wordpiece")
    assert tokenizer.tokens(tokenizer.encode("古い友人")) == ["古", "い", "友", "人"]
    kana = tokenizer.tokens(tokenizer.encode("すばかりだ"))
    assert any(piece.startswith("##") for piece in kana)


def test_parts_of_characters_start_a_word_where_the_character_begins():
    """The byte E9 begins 駅; the piece "é", which is spelled alike, goes on with a French word."""
    tokenizer = trained("bpe", 258)  # bytes alone, but for one
    starts = tokenizer.word_starts()
    for text in ("駅の前", "สถานี"):
        ids = np.array(tokenizer.encode(text))
        assert len(ids) > 2 * len(text)
        first = np.cumsum([0, *(len(tokenizer.encode(character)) for character in text[:-1])])
        expected = first if text not in "สถานี" else []  # Hindi's begin with the byte E0 as well
        assert np.flatnonzero(starts[ids]).tolist() == list(expected)
    whole = trained("bpe")
    letter, byte = whole.encode("xé")[1], whole.encode("鿿")[0]  # of a character that is in no text
    assert whole.tokens([letter, byte]) == ["é", "é"] and whole.word_starts()[[letter, byte]].tolist() == [False, True]


def test_a_sentence_ends_at_wide_marks_and_at_what_sentencepiece_makes_of_them():
    tokenizer = trained("sentencepiece")
    sentences = ["明日は何時に出発しますか？", "なんて美しい庭だろう！", "彼女の声はとても静かだった。"]
    ids = tokenizer.encode("".join(sentences))
    assert "?" in tokenizer.decode(ids)
    rows = [np.array(ids, np.int32)] * 50
    off = {"mask_rate": 0.0, "mask_length": "span", "poisson_lambda": 3.5, "replace": "span", "random_probability": 0.0}
    off |= {"insert_rate": 0.0, "rotate": 0.0, "mask": 9, "vocab_size": 500, "bos": None, "eos": 1}
    made = corpus.run(bart.noise, rows, vocabulary=to_seqio(tokenizer), permute_sentences=1.0, **off)["inputs"]
    texts = {tokenizer.decode(row).replace("?", "？").replace("!", "！").replace(" ", "") for row in made}
    a, b, c = sentences
    assert texts == {x + y + z for x, y, z in ((a, b, c), (a, c, b), (b, a, c), (b, c, a), (c, a, b), (c, b, a))}


def test_latin_sentences_end_at_full_stops_alone():
    """BART's rule."""
    tokenizer = trained("sentencepiece")
    vocabulary, pieces = to_seqio(tokenizer), np.array(tokenizer.tokens(range(tokenizer.vocabulary.size)))
    ends, marks, unspaced = words.sentence_ends(vocabulary)
    ids = tokenizer.encode("Did you read it? Yes! I met an old friend.")
    assert pieces[ids][ends[ids]].tolist() == ["."] and not unspaced[ids].any()
    assert set(pieces[marks]) == {"?", "!"} and {"。", "।"} <= set(pieces[ends])


def windows(texts, length=32):
    """Running text without spaces, cut."""
    ids = np.array(trained("sentencepiece").encode("".join(texts * 40)), np.int32)
    return np.split(ids[: len(ids) // length * length], len(ids) // length)


@pytest.mark.parametrize("texts", [JAPANESE, CHINESE, THAI])
def test_mbart_corrupts_every_window(texts):
    tokenizer, rows = trained("sentencepiece"), windows(texts)
    v = Vocabulary(size=tokenizer.vocabulary.size, eos=1, unk=2, sentinels=2, languages=(5,))
    noise = MBart(permute_sentences=0.0).data_spec(66).transforms(v, 0).online[0]
    made = corpus.run(bart.noise, rows, vocabulary=to_seqio(tokenizer), **noise.kwargs)
    kept = [np.isin(row, text).sum() / len(text) for row, text in zip(made["inputs"], rows)]
    assert not any(np.array_equal(x, y) for x, y in zip(made["inputs"], made["targets"]))
    gone = [1 - np.sum(row[:-1] != v.size - 1) / len(text) for row, text in zip(made["inputs"], rows)]
    assert 0.25 < np.mean(gone) < 0.45 and min(kept) > 0.3


@pytest.mark.parametrize("unit", ["word", "ngram", "span"])
@pytest.mark.parametrize("texts", [JAPANESE, CHINESE, THAI])
def test_masking_units_fill_their_count(texts, unit):
    tokenizer, rows = trained("sentencepiece"), np.array(windows(texts))
    bounds = np.arange(len(rows) + 1) * rows.shape[1]
    found = units.words(rows.ravel(), np.arange(rows.size), bounds, tokenizer.word_starts())
    counts, shares = np.full(len(rows), 5), MaskedLM(unit=unit).word_shares()
    places = units.choose(np.arange(len(rows), dtype=np.uint64), found, counts, unit, shares)
    assert ((places < tf.int32.max).sum(1) >= 4).mean() > 0.98


def test_word_starts_of_alberts_code(monkeypatch):
    """As _is_start_piece_sp of google-research/albert; a vocabulary without "▁" keeps its own rule."""
    starts = ["▁the", "▁", ".", "(", "'", "19", "3d", "é", "naïve", "日本", "<unk>", "€", "İ"]
    parts = ["ing", "S", "'s", "--", "e.g"]
    monkeypatch.setattr(words, "pieces", lambda vocabulary, raw=False: [*starts, *parts])
    found = words.word_starts(None, "albert")
    assert found.tolist() == [True] * len(starts) + [False] * len(parts)
    of_spaces = [name.startswith("▁") or name == "日本" for name in (*starts, *parts)]
    assert words.word_starts(None).tolist() == of_spaces
    monkeypatch.setattr(words, "pieces", lambda vocabulary, raw=False: [" the", "ing", "19"])
    assert words.word_starts(None, "albert").tolist() == [True, False, False]


def test_a_tokenizer_json_has_the_words_of_its_model(tmp_path):
    """Its decoder leaves out the space before a word, which the vocabulary has."""
    trained("sentencepiece").save(tmp_path)
    model, rust = tokenizers.load(tmp_path), tokenizers.load(tmp_path / "tokenizer.json")
    for rule in ("spaces", "albert"):
        of_model, of_rust = (words.word_starts(to_seqio(tokenizer), rule) for tokenizer in (model, rust))
        np.testing.assert_array_equal(of_rust, of_model)
    for objective, is_of_words in [
        (MBart(), True), (MBart(mask_length="subword"), False), (MBart(mask_rate=0.0), False), (PermutationLM(), True),
        *((MaskedLM(unit=unit), unit in ("word", "ngram", "span")) for unit in get_args(Unit)),
    ]:  # fmt: skip
        was, now = (
            fingerprint.describe(objective.data_spec(64).transforms(tokenizer.vocabulary, 0))
            for tokenizer in (model, rust)
        )
        changes = {"online.0 " + MADE[type(objective)] + ".version": (None, 2)} if is_of_words else {}
        assert fingerprint.changes(was, now) == changes  # runs that took other words are not resumed
    letters = {letter: n for n, letter in enumerate(["<unk>", "a", "b", "a</w>"])}
    with pytest.raises(UserError, match=r"say where a word ends .</w>., not where it starts"):
        openai_gpt(letters, []).word_starts()
