"""Offsets of tokens point into the text as it was given, whatever a tokenizer makes of it; words are encoded apart."""

import unicodedata

import numpy as np
import pytest

from jaxpt.config import TokenizerConfig
from jaxpt.data import tokenizers
from jaxpt.data.labelled.question_answering import token_span
from jaxpt.data.tokenizers import rust_tokenizers
from jaxpt.data.tokenizers import sentencepiece as sp
from jaxpt.data.tokenizers.base import Tokenizer
from jaxpt.errors import UserError
from tests.data.tokenizers.test_tokenizers import by_spm

CORPUS = ["The quick brown fox jumps over the lazy dog.", "A café in Zürich, ½ price: naïve ﬁne 日本 text"] * 20
TEXTS = [
    "The quick  brown\tfox",
    "  Café ½ ﬁne\u00a0price…\n日本 dog ",
    "``quoted'' İstanbul 🦊 \u0301x",
    "",
    " ",
    "\u200b\ufeff",
]


@pytest.fixture(scope="module")
def known(tmp_path_factory):
    def made(kind, size, **more):
        return tokenizers.train(CORPUS, TokenizerConfig(kind=kind, **more), size)

    plain = made("sentencepiece", 90, extra_ids=0)
    found = {
        "wordpiece": made("wordpiece", 200, lowercase=True),
        "wordpiece, cased": made("wordpiece", 200),
        "bpe": made("bpe", 350),
        "sentencepiece": plain,
        "sentinels": made("sentencepiece", 100, extra_ids=4),
    }
    directory = tmp_path_factory.mktemp("rust")
    plain.save(directory)
    for name in ("albert", "xlnet"):  # they clean before the model does
        model = (directory / "spiece.model").read_bytes()
        found[name] = sp.SentencePieceTokenizer(model, 0, style=sp.STYLES[name])
    found["sentencepiece in Rust"] = rust_tokenizers.read(directory / "tokenizer.json")
    return found


NAMES = (
    "wordpiece",
    "wordpiece, cased",
    "bpe",
    "sentencepiece",
    "sentinels",
    "albert",
    "xlnet",
    "sentencepiece in Rust",
)


@pytest.mark.parametrize("name", NAMES)
def test_ids_are_those_without_offsets_and_offsets_ascend_inside_the_text(known, name):
    tokenizer = known[name]
    found = tokenizer.encode_with_offsets(TEXTS)
    assert [one.ids for one in found] == tokenizer.encode_batch(TEXTS)
    for text, (ids, offsets) in zip(TEXTS, found):
        assert offsets.shape == (len(ids), 2)
        assert (offsets[:, 0] <= offsets[:, 1]).all() and (offsets >= 0).all() and (offsets <= len(text)).all()
        assert (np.diff(offsets, axis=0) >= 0).all()
        for start, end in offsets:
            assert text[start:end] == text[start:end].strip()


@pytest.mark.parametrize("name", NAMES)
def test_tokens_cover_all_that_is_no_white_space(known, name):
    text = "The quick  brown fox: Café ½ ﬁne, 日本!"
    ((_, offsets),) = known[name].encode_with_offsets([text])
    covered = {at for start, end in offsets for at in range(start, end)}
    assert covered == {at for at, c in enumerate(text) if not c.isspace()}


@pytest.mark.parametrize("name", NAMES)
def test_a_token_stands_where_its_piece_is_written(known, name):
    text = "the quick brown fox"
    ((ids, offsets),) = known[name].encode_with_offsets([text])
    pieces = [piece.removeprefix("##").strip("▁ ") for piece in known[name].tokens(ids)]
    assert [text[start:end] for start, end in offsets] == pieces


def test_cleaning_is_undone(known):
    """ALBERT reads ``…'' as plain quotes and folds accents and case: offsets point to what was written."""
    text = "``Café''  Fine"
    ((_, offsets),) = known["albert"].encode_with_offsets([text])
    assert "Café" in "".join(text[s:e] for s, e in offsets) and offsets[-1, 1] == len(text)
    assert text[offsets[-1, 0] : offsets[-1, 1]] in "Fine"


@pytest.mark.parametrize(("text", "at"), [("½ cup", 0), ("a 日本 b", 3), ("№ 5", 0), ("x 🦊🦊", 3), ("``½''", 2)])
def test_all_parts_of_a_character_stand_for_it(text, at):
    """Its bytes, and letters that it is spelled with: an answer that begins with it begins with the first of these."""
    model = by_spm(["\n".join(CORPUS)], byte_fallback=True, vocab_size=330)
    for style in (sp.PLAIN, sp.STYLES["albert"]):
        ours = sp.SentencePieceTokenizer(model, 0, style=style)
        ((ids, offsets),) = ours.encode_with_offsets([text])
        first, last = token_span(offsets, at, at + 1, "row 1")
        answer = ours.decode(ids[first : last + 1]).strip()
        assert answer.lower() == unicodedata.normalize("NFKC", text[at]).lower()


def test_a_tokenizer_without_offsets_says_so():
    class Own(Tokenizer):
        kind = "my_lab.own"
        encode_batch = decode = tokens = None

    with pytest.raises(UserError, match=r"my_lab.own does not say which characters"):
        Own().encode_with_offsets(["a"])


@pytest.mark.parametrize("name", NAMES)
def test_words_have_the_ids_of_running_text(known, name):
    words = ["the", "quick", "brown", "fox"]
    (ids,) = known[name].encode_words([words])
    assert [i for of_word in ids for i in of_word] == known[name].encode(" ".join(words))


def test_words_of_a_model_without_a_space_before_a_text(tmp_path):
    """Gemma's is one."""
    options = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False, "add_dummy_prefix": False}
    model = by_spm(["\n".join(CORPUS)], vocab_size=90, **options)
    ours = sp.SentencePieceTokenizer(model, 0)
    ours.save(tmp_path)
    for tokenizer in (ours, rust_tokenizers.read(tmp_path / "tokenizer.json")):
        words = tokenizer.encode_words([["fox", "the", "a"]])[0]
        assert [i for of_word in words for i in of_word] == tokenizer.encode("fox the a")
        assert words[0] == tokenizer.encode("fox") and tokenizer.label_version == 2


def test_a_word_may_have_no_token(known):
    assert known["wordpiece"].encode_words([["fox", "\u200b", "dog"], []])[0][1] == []
