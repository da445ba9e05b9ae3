"""Words: the rule that cuts them, their order, what is unknown, and the files."""

import doctest

import pytest

from jaxpt.config import TokenizerConfig
from jaxpt.data import tokenizers
from jaxpt.data.tokenizers import words as words_module
from jaxpt.errors import UserError

TEXTS = ["The cat sat on the mat, didn't it?", "The dog sat (on) the cat. Überall."]


def train(vocab_size=100, min_count=1, **settings):
    settings["min_count"] = min_count
    return tokenizers.train(TEXTS, TokenizerConfig(kind="words", **settings), vocab_size)


def test_words_are_sorted_by_how_often_they_occur():
    words = train()
    assert words.words[:3] == ["</S>", "<S>", "<UNK>"]
    assert words.words[3:9] == [".", "The", "cat", "on", "sat", "the"], "of equal counts in alphabetical order"
    assert sorted(words.words[9:]) == sorted(["(", ")", ",", "?", "'", "didn", "t", "dog", "it", "mat", "Überall"])
    assert words.vocabulary.unk == 2 and words.word_starts().all()


def test_rare_words_and_those_without_room_are_unknown():
    words = train(min_count=2)
    assert words.words[3:] == [".", "The", "cat", "on", "sat", "the"]
    assert words.decode(words.encode("The dog sat")) == "The <UNK> sat"
    assert train(vocab_size=5).words[3:] == [".", "The"]
    with pytest.raises(UserError, match=r"data\.tokenizer\.min_count: 9: no word of the text occurs so often"):
        train(min_count=9)
    with pytest.raises(UserError, match=r"data\.tokenizer\.min_count: 5: no word"):  # by default
        train(min_count=None)


def test_special_tokens_that_a_text_spells_are_text():
    words = train()
    assert not {0, 1} & set(words.encode("a </S> <S>")) and words.encode_words([["</S>"]]) == [[words.encode("</S>")]]


def test_offsets_and_given_words():
    words = train(lowercase=True)
    ((ids, offsets),) = words.encode_with_offsets(["  The  überall!"])
    assert offsets.tolist() == [[2, 5], [7, 14], [14, 15]] and ids == words.encode("the uberall !")
    ((the, cut, unknown),) = words.encode_words([["the", "cat.", "n't"]])
    assert (the, cut) == (words.encode("the"), words.encode("cat .")) and unknown[0] == 2


def test_words_of_a_file_keep_their_accents_and_chinese_characters(tmp_path):
    known = ["café", "cafe", "für", "the", "中国", "人"]
    words = words_module.of_words(known, lowercase=True)
    words.save(tmp_path / "own")
    again = tokenizers.load(tmp_path / "own")
    assert (again.strip_accents, again.chinese_chars, again.digest()) == (False, False, words.digest())
    for tokenizer in (words, again):
        assert tokenizer.encode("Café FÜR the cafe 中国 人") == [3, 5, 6, 4, 7, 8]
        assert tokenizer.encode_words([["中国", "CAFÉ", "für"]]) == [[[7], [3], [5]]]
    by_character = words_module.of_words(["国", "中"], lowercase=True)
    assert by_character.tokens(by_character.encode("中国")) == ["中", "国"]
    # Of a text: accents are left out where case is folded, and what was saved is as before there was a setting.
    trained = train(lowercase=True)
    trained.save(tmp_path / "trained")
    assert trained.strip_accents and trained.chinese_chars and "strip_accents" not in (
        (tmp_path / "trained" / "tokenizer_config.json").read_text()
    )  # fmt: skip
    assert trained.folded("ÜBERALL") == "uberall" and trained.folded("中国") == "中国"


def test_files(tmp_path):
    words = train(lowercase=True)
    words.save(tmp_path)
    again = tokenizers.load(tmp_path)
    assert (again.words, again.lowercase, again.digest()) == (words.words, True, words.digest())
    assert again.encode("The dog") == words.encode("the DOG")
    odd = ["a\x85b", "a\u2028b", "a\x0cb", "a\rb", "cat"]  # only LF and CR LF end a line
    words_module.of_words(odd, lowercase=False).save(tmp_path / "odd")
    assert tokenizers.load(tmp_path / "odd").words[3:] == odd
    (tmp_path / "dos.txt").write_bytes(b"</S>\r\n<S>\r\n<UNK>\r\nthe\r\n")
    assert tokenizers.load(tmp_path / "dos.txt", "words").words == ["</S>", "<S>", "<UNK>", "the"]
    published = tmp_path / "vocab-elmo.txt"
    published.write_text("</S>\n<S>\n<UNK>\nthe\n")
    assert tokenizers.load(published, "words").encode("the cat") == [3, 2]
    published.write_text("</S>\n<S>\nthe\n")
    with pytest.raises(UserError, match=r"vocab-elmo\.txt: has no line <UNK>"):
        tokenizers.load(published, "words")


def test_examples_in_docstrings():
    assert doctest.testmod(words_module).failed == 0


def test_words_that_are_not_known_are_spelled(tmp_path):
    words = tokenizers.train(TEXTS, TokenizerConfig(kind="spelled_words", min_count=2), 900)
    v, text = words.vocabulary, "The dog: Überall é"
    assert v.spelled_from == len(words.words) == v.size - 512 and (v.cls, v.sep) == (1, 0)
    ((ids, offsets),) = words.encode_with_offsets([text])
    assert words.encode(text) == ids and words.decode(ids) == "The dog : Überall é"
    spelled = [v.spelled_from + byte + 256 * (n > 0) for n, byte in enumerate(b"dog")]
    assert ids[1:4] == spelled and offsets[:4].tolist() == [[0, 3], [4, 7], [4, 7], [4, 7]]
    assert words.tokens(ids[1:4]) == ["d", "##o", "##g"] and words.word_starts()[ids[:4]].tolist() == [1, 1, 0, 0]
    ((given, the),) = words.encode_words([["n't", "The"]])
    assert words.decode(given) == "n't" and the == words.encode("The")
    words.save(tmp_path)
    assert tokenizers.load(tmp_path).encode(text) == ids
