import math
import sys

import pytest
import sacrebleu
from rouge_score.rouge_scorer import RougeScorer

from jaxpt.errors import UserError
from jaxpt.metrics import find, score
from jaxpt.metrics.text import language_of

PREDICTIONS = ["the cat is on the mat .", "there is a cat here", ""]
TARGETS = ["the cat sat on the mat .", "there is a cat on the mat", "nothing"]


def test_bleu_by_hand():
    # 1-grams 3/4, 2-grams 1/3, 3-grams 0/2 → 1/(2·2), 4-grams 0/1 → 1/(4·1) by exponential smoothing; same length
    expected = 100 * math.exp(sum(map(math.log, (3 / 4, 1 / 3, 1 / 4, 1 / 4))) / 4)
    assert score("bleu", ["a b x d"], ["a b c d"])["bleu"] == pytest.approx(expected)


def test_equal_to_sacrebleu():
    assert score("bleu", PREDICTIONS, TARGETS)["bleu"] == sacrebleu.corpus_bleu(PREDICTIONS, [TARGETS]).score
    ours = score("bleu", PREDICTIONS, TARGETS, tokenize="intl", lowercase=True)["bleu"]
    assert ours == sacrebleu.corpus_bleu(PREDICTIONS, [TARGETS], tokenize="intl", lowercase=True).score
    assert score("chrf", PREDICTIONS, TARGETS)["chrf"] == sacrebleu.corpus_chrf(PREDICTIONS, [TARGETS]).score
    ours = score("chrf", PREDICTIONS, TARGETS, word_order=2)["chrf"]
    assert ours == sacrebleu.corpus_chrf(PREDICTIONS, [TARGETS], word_order=2).score


@pytest.mark.parametrize("metric", ["bleu", "chrf", "rouge"])
def test_several_references_of_unequal_number(metric):
    exact = score(metric, ["a b c d", "e f g h"], [["x", "a b c d"], "e f g h"])
    assert list(exact.values()) == pytest.approx([100] * len(exact))
    with pytest.raises(UserError, match="text 1 has no reference"):
        score(metric, ["a", "b"], ["a", []])


@pytest.mark.parametrize("metric", ["bleu", "chrf", "rouge"])
def test_empty_predictions(metric):
    assert set(score(metric, ["", ""], ["some words", "more words"]).values()) == {0.0}


def test_rouge_by_hand():
    # 3 of 4 words; 1 of 3 pairs; common subsequence a b d of 4 and 4 words
    assert score("rouge", ["a b x d"], ["a b c d"]) == pytest.approx(
        {"rouge1": 75, "rouge2": 100 / 3, "rougeL": 75, "rougeLsum": 75}
    )


def test_rouge_is_the_mean_over_texts_with_porters_stems():
    ours = score("rouge", ["cats sat", "dog"], ["cat sat", "mouse"])
    assert ours["rouge1"] == 50
    assert score("rouge", ["cats sat", "dog"], ["cat sat", "mouse"], stemmer=False)["rouge1"] == 25


def test_the_best_reference_counts_for_each_type():
    assert score("rouge", ["a b"], [["b a", "a b c d"]], stemmer=False)["rouge1"] == 100
    assert score("rouge", ["a b"], [["b a", "a b c d"]], stemmer=False)["rouge2"] == pytest.approx(50)


@pytest.mark.parametrize(
    ("sentences", "prediction", "target"),
    [
        ("t5", "one two . three four", "three four . one two"),
        ("punctuation", "One two. Three four", "Three four! One two"),
        ("lines", "one two\nthree four", "three four\none two"),
    ],
)
def test_sentences_of_rouge_lsum(sentences, prediction, target):
    scores = score("rouge", [prediction], [target], sentences=sentences)
    assert scores["rougeL"] == 50 and scores["rougeLsum"] == 100


def test_rouge_lsum_is_that_of_the_library():
    prediction, target = "a b . c d", "c d . a e"
    library = RougeScorer(["rougeLsum"]).score("c d .\na e", "a b .\nc d")["rougeLsum"].fmeasure
    assert score("rouge", [prediction], [target], stemmer=False)["rougeLsum"] == 100 * library


def test_signatures():
    bleu = f"nrefs:2|case:lc|eff:no|tok:intl|smooth:exp|version:{sacrebleu.__version__}"
    assert find("bleu").signature(2, tokenize="intl", lowercase=True) == bleu
    assert find("chrf").signature(1).startswith("nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:")
    assert (
        find("rouge").signature(1, stemmer=False).startswith("stem:no|tok:ascii|sentences:t5|mean|version:rouge-score-")
    )
    assert find("ter").signature(1).startswith("nrefs:1|case:lc|tok:tercom|norm:no|punct:yes|asian:no|version:")
    assert find("chrf").signature(None).startswith("nrefs:var|case:mixed|")
    assert find("bleu").signature(1, max_ngram_order=2).endswith("|max_ngram_order:2")
    assert find("accuracy").signature(1) is None
    assert find("squad").signature(1) == "normalization:squad"
    assert find("squad").signature(1, normalization="de") == "normalization:de"
    options = find("exact_match").signature
    assert options(1) is None and options(1, ignore_case=True, ignore_numbers=False) == "ignore_case:yes"


CHINESE = ["我们今天去了北京的公园。"], ["我们昨天去了北京的公园。"]


def test_chinese_is_split_into_words():
    """To 13a a sentence without spaces is one word."""
    expected = sacrebleu.corpus_bleu(CHINESE[0], [CHINESE[1]], tokenize="zh").score
    assert score("bleu", *CHINESE)["bleu"] == expected > 50
    assert score("bleu", *CHINESE, tokenize="13a")["bleu"] == 0
    assert score("ter", *CHINESE)["ter"] == pytest.approx(100 / 12)  # 1 edit of 12 characters
    assert score("rouge", *CHINESE)["rouge1"] == pytest.approx(100 * 10 / 11)
    assert score("rouge", *CHINESE, tokenize="ascii")["rouge1"] == 0
    assert score("squad", *CHINESE)["f1"] == pytest.approx(100 * 10 / 11)


def test_the_first_letters_say_the_language():
    """No more is read of long targets."""

    def texts():
        yield from ["今天" * 5000] * 2
        pytest.fail("20,000 letters are enough")

    assert language_of(["Es regnet " * 10, *["今天"] * 100]) == "zh"  # 80 letters and 200
    assert language_of(["1,2", "..."]) == "en"
    assert language_of(texts()) == "zh"


def test_japanese_wants_mecab_or_another_tokenizer(monkeypatch):
    monkeypatch.setitem(sys.modules, "MeCab", None)  # not installed
    monkeypatch.delitem(sys.modules, "sacrebleu.tokenizers.tokenizer_ja_mecab", raising=False)
    japanese = ["今日は雨が降っています"]
    how = r"bleu: .*ja-mecab is not installed: pip install 'sacrebleu\[ja\]', or set metric_options to "
    with pytest.raises(UserError, match=how):
        score("bleu", japanese, japanese)
    assert score("bleu", japanese, japanese, tokenize="char")["bleu"] == pytest.approx(100)


def test_words_of_any_alphabet():
    assert score("rouge", ["Идёт дождь"], ["Идёт сильный дождь"])["rouge1"] == pytest.approx(80)
    assert score("rouge", ["Für Größe"], ["für größe"], language="de")["rouge1"] == 100
    assert score("rouge", ["Cats sat"], ["cat sat"], tokenize="unicode")["rouge1"] == 100  # with stems
    halves = ["第一句。第二句。"], ["第二句。第一句。"]
    assert score("rouge", *halves)["rougeLsum"] == 100 > score("rouge", *halves)["rougeL"]


def test_normalization_of_exact_match():
    assert score("exact_match", ["The Cat, "], ["the cat"]) == {"exact_match": 0}
    options = {"ignore_case": True, "ignore_punctuation": True, "ignore_whitespace": True}
    assert score("exact_match", ["The Cat, "], ["the  cat"], **options) == {"exact_match": 1}
    assert score("exact_match", ["cat 2"], [["dog", "cat 3"]], ignore_numbers=True) == {"exact_match": 1}


def test_exact_match_of_texts_is_literal():
    assert score("exact_match", ["a", "a ", "B"], ["a", "a", ["b", "B"]]) == {"exact_match": 2 / 3}
