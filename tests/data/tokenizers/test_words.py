"""Words: the rule that cuts them, their order, what is unknown, and the files."""

import doctest
import types

import pytest

from jaxpt.config import TokenizerConfig, build
from jaxpt.data import run_tokenizer, tokenizers
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


PARTED = "He did n't see the U.S. @-@ <unk> 中国 ."


@pytest.mark.parametrize("kind", ["words", "spelled_words"])
def test_words_that_are_parted_are_cut_at_white_space_alone(tmp_path, kind):
    """As the published code of ELMo does: sentence.split()."""
    settings = TokenizerConfig(kind=kind, min_count=1, pre_tokenizer="whitespace")
    words = tokenizers.train([PARTED], settings, 900, tmp_path / "own")
    assert sorted(words.words[3:]) == sorted(PARTED.split())
    again = tokenizers.load(tmp_path / "own")
    for tokenizer in (words, again):
        assert tokenizer.tokens(tokenizer.encode(PARTED)) == PARTED.split() == tokenizer.cut(PARTED)
    by_bert = tokenizers.load(tmp_path / "own", pre_tokenizer="bert")
    assert by_bert.cut("n't 中国.") == ["n", "'", "t", "中", "国", "."]
    assert again.digest() == words.digest() != by_bert.digest()
    published = tmp_path / "vocab-elmo.txt"
    published.write_text("</S>\n<S>\n<UNK>\nn't\n")
    assert tokenizers.load(published, kind, pre_tokenizer="whitespace").encode("n't") == [3] != (
        tokenizers.load(published, kind).encode("n't")
    )  # fmt: skip


def test_the_rule_is_of_whole_words_and_older_vocabularies_stay_as_they_are(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match=r"pre_tokenizer: is of the kinds words and spelled_words, not of bpe"):
        TokenizerConfig(kind="bpe", pre_tokenizer="whitespace")
    named = train(pre_tokenizer="bert")
    named.save(tmp_path / "run" / "tokenizer")
    written = (tmp_path / "run" / "tokenizer" / "tokenizer_config.json").read_text()
    assert named.digest() == train().digest() and "pre_tokenizer" not in written
    model, sources = {"kind": "word_vectors", "vocab_size": 100, "embed_dim": 4}, [types.SimpleNamespace(language=None)]
    identities, path = [], str(tmp_path / "run" / "tokenizer")
    monkeypatch.setattr(run_tokenizer, "digest", lambda identity: identities.append(identity) or "x")
    for rule in (None, "whitespace"):
        data = {"tokenizer": {"kind": "words", "pre_tokenizer": rule, "path": path}, "length": 8}
        config = build({"run_dir": "", "model": model, "objective": {"kind": "glove"}, "data": data})
        run_tokenizer._trained_at(config, [], [], [])
        found = run_tokenizer.tokenizer_of(config, [], sources, [], None, save=False)
        assert found.pre_tokenizer == (rule or "bert"), "of a vocabulary that is named the recipe's rule counts"
    assert "pre_tokenizer" not in identities[0] and identities[1]["pre_tokenizer"] == "whitespace"
    config = config.model_copy(update={"run_dir": str(tmp_path / "run")})
    with pytest.raises(UserError, match=r"cuts text by the rule bert, data\.tokenizer\.pre_tokenizer is whitespace; a"):
        run_tokenizer.tokenizer_of(config, [], sources, [], None, save=False)


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
