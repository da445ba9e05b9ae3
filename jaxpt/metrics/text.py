"""Metrics of generated text: BLEU, chrF and TER (sacrebleu), ROUGE (rouge-score). Percentages, as they are published.

A target is a text, or a list of references. The language of texts is told by their letters, where none is named;
`bleu_defaults` and its like say which options fit a language.
"""

from __future__ import annotations

import collections
import itertools
import re
import unicodedata
from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

from annotated_types import Ge  # a dependency of pydantic

from jaxpt.errors import UserError
from jaxpt.metrics.base import metric

if TYPE_CHECKING:
    from rouge_score.rouge_scorer import RougeScorer
    from sacrebleu.metrics.base import Metric as SacreMetric

References = Sequence[str | Sequence[str]]
BleuTokenizer = Literal["13a", "intl", "char", "zh", "ja-mecab", "ko-mecab", "none", "spm", "flores101", "flores200"]

_WITHOUT_SPACES = ("zh", "ja", "th", "lo", "km", "my", "bo")
"""Codes of languages that write no spaces between words."""
_OF_SCRIPT = {
    "CJK": "zh", "HIRAGANA": "ja", "KATAKANA": "ja", "HANGUL": "ko", "THAI": "th", "LAO": "lo", "KHMER": "km",
    "MYANMAR": "my", "TIBETAN": "bo", "LATIN": "en",
}  # fmt: skip
"""By the first word of a letter's name in Unicode."""
_ENOUGH = 20_000
"""Letters that are looked at."""
ROUGE_TYPES = ("rouge1", "rouge2", "rougeL", "rougeLsum")


def language_of(texts: Iterable[str]) -> str:
    """A language that is written in the letters of most of these texts.

    Args:
      texts: references of a metric.

    Returns:
      Its code. Of Latin letters "en", of other alphabets with spaces "und" (undetermined). Without letters "en".

    Example:
      >>> language_of(["今日は雨です"]), language_of(["今天下雨"]), language_of(["Es regnet"]), language_of(["Дождь"])
      ('ja', 'zh', 'en', 'und')
    """
    counts: collections.Counter[str] = collections.Counter()
    left = _ENOUGH
    for text in texts:
        scripts = [unicodedata.name(letter, "?").split()[0] for letter in text[:left] if letter.isalpha()]
        counts.update(_OF_SCRIPT.get(script, "und") for script in scripts)
        if (left := left - len(scripts)) <= 0:
            break
    if counts["ja"] > 0.1 * counts["zh"]:  # Japanese is written in kanji and kana, Chinese has no kana
        counts["ja"] += counts.pop("zh", 0)
    return counts.most_common(1)[0][0] if counts else "en"


def reference_count(targets: Iterable[Any]) -> int | None:
    """How many references each text has; None where their number varies.

    Args:
      targets: of each text a reference, or several.

    Example:
      >>> reference_count(["a", ["b"]]), reference_count([["a"], ["b", "c"]])
      (1, None)
    """
    counts = {max(len(target), 1) if isinstance(target, list | tuple) else 1 for target in targets}
    return min(counts, default=1) if len(counts) < 2 else None


def primary(code: str) -> str:
    """The language of a code with a region or script.

    Example:
      >>> primary("zh-Hant"), primary("de_CH")
      ('zh', 'de')
    """
    return code.replace("_", "-").partition("-")[0].lower()


def bleu_defaults(language: str) -> dict[str, Any]:
    """The tokenizer of a language, as sacrebleu chooses it; characters where it has none and no spaces part words."""
    tokenizers = {"zh": "zh", "ja": "ja-mecab", "ko": "ko-mecab"}
    return {"tokenize": tokenizers.get(language, "char" if language in _WITHOUT_SPACES else "13a")}


def ter_defaults(language: str) -> dict[str, Any]:
    """Characters are the words of Chinese and Japanese.

    Raises:
      UserError: sacrebleu splits the language in no way.
    """
    if language in _WITHOUT_SPACES and language not in ("zh", "ja"):
        raise UserError(f"ter: {language} has no spaces between words, and sacrebleu splits it in no way; take chrf")
    return {"normalized": language in ("zh", "ja"), "asian_support": language in ("zh", "ja")}


def rouge_defaults(language: str) -> dict[str, Any]:
    """rouge-score's own words with Porter's stems for English alone; any letters, or characters, for the others."""
    if language == "en":
        return {"stemmer": True, "tokenize": "ascii"}
    if language in _WITHOUT_SPACES:
        return {"stemmer": False, "tokenize": "char", "sentences": "punctuation"}
    return {"stemmer": False, "tokenize": "unicode"}


def _signature(name: str, references: int | None, **options: Any) -> str:
    scorer = _scorer(name, options)
    rows = [["a"], ["a", "a"]] if references is None else [["a"] * references]
    scorer.corpus_score(["a"] * len(rows), _columns(rows))  # the signature has the number of references
    signature = str(scorer.get_signature())
    order = options.get("max_ngram_order", 4)  # sacrebleu's signature does not have it
    return signature if order == 4 else f"{signature}|max_ngram_order:{order}"


def _rouge_signature(
    references: int | None, stemmer: bool = True, sentences: str = "t5", tokenize: str = "ascii"
) -> str:
    from importlib.metadata import version

    stem = "yes" if stemmer else "no"
    return f"stem:{stem}|tok:{tokenize}|sentences:{sentences}|mean|version:rouge-score-{version('rouge-score')}"


@metric(targets=("text",), unit="percent", by_language=bleu_defaults, signature=partial(_signature, "bleu"))
def bleu(
    predictions: Sequence[str],
    targets: References,
    tokenize: BleuTokenizer = "13a",
    lowercase: bool = False,
    smooth_method: Literal["exp", "floor", "add-k", "none"] = "exp",
    smooth_value: Annotated[float, Ge(0)] | None = None,
    max_ngram_order: Annotated[int, Ge(1)] = 4,
    effective_order: bool = False,
) -> dict[str, float]:
    """Corpus BLEU of detokenized texts. Options have sacrebleu's names and defaults.

    Args:
      predictions: [N] texts.
      targets: [N], each one reference or several.
      tokenize: sacrebleu's tokenizer; T5's published scores have "intl".
      lowercase: compares without case.
      smooth_method: of n-grams without a match.
      smooth_value: of "floor" and "add-k".
      max_ngram_order: longest n-gram.
      effective_order: leaves out orders without a match, for single sentences.

    Example:
      >>> bleu(["the cat sat on the mat"], [["the cat sat on the mat", "a cat sat"]])
      {'bleu': 100.00000000000004}
    """
    options = {
        "tokenize": tokenize, "lowercase": lowercase, "smooth_method": smooth_method, "smooth_value": smooth_value,
        "max_ngram_order": max_ngram_order, "effective_order": effective_order,
    }  # fmt: skip
    return {"bleu": _corpus_score("bleu", predictions, targets, options)}


@metric(targets=("text",), unit="percent", signature=partial(_signature, "chrf"))
def chrf(
    predictions: Sequence[str],
    targets: References,
    word_order: Annotated[int, Ge(0)] = 0,
    lowercase: bool = False,
    char_order: Annotated[int, Ge(1)] = 6,
    beta: Annotated[int, Ge(0)] = 2,
    whitespace: bool = False,
    eps_smoothing: bool = False,
) -> dict[str, float]:
    """chrF: F-score of character n-grams. Options have sacrebleu's names and defaults.

    Args:
      predictions: [N] texts.
      targets: [N], each one reference or several.
      word_order: length of word n-grams that are counted besides; 2 is chrF++.
      lowercase: compares without case.
      char_order: longest n-gram of characters.
      beta: how many times as much recall counts as precision.
      whitespace: spaces are characters, too.
      eps_smoothing: smooths as NLTK and chrF++'s own script do.

    Example:
      >>> chrf(["the cat"], ["the cat"])
      {'chrf': 100.0}
    """
    options = {
        "word_order": word_order, "lowercase": lowercase, "char_order": char_order, "beta": beta,
        "whitespace": whitespace, "eps_smoothing": eps_smoothing,
    }  # fmt: skip
    return {"chrf": _corpus_score("chrf", predictions, targets, options)}


@metric(
    targets=("text",), unit="percent", lower_is_better=True, by_language=ter_defaults,
    signature=partial(_signature, "ter"),
)  # fmt: skip
def ter(
    predictions: Sequence[str],
    targets: References,
    normalized: bool = False,
    no_punct: bool = False,
    asian_support: bool = False,
    case_sensitive: bool = False,
) -> dict[str, float]:
    """Translation edit rate: edits per word of the references. Lower is better, and above 100 is possible.

    Options have sacrebleu's names and defaults.

    Args:
      predictions: [N] texts.
      targets: [N], each one reference or several.
      normalized: tokenizes punctuation.
      no_punct: removes punctuation.
      asian_support: with `normalized`: each Chinese or Japanese character is a word.
      case_sensitive: compares with case.

    Example:
      >>> ter(["the cat sat"], ["the dog sat"])
      {'ter': 33.33333333333333}
    """
    options = {
        "normalized": normalized, "no_punct": no_punct, "asian_support": asian_support,
        "case_sensitive": case_sensitive,
    }  # fmt: skip
    return {"ter": _corpus_score("ter", predictions, targets, options)}


@metric(
    targets=("text",), unit="percent", aggregation="mean", values=ROUGE_TYPES, selection_value="rouge2",
    by_language=rouge_defaults, signature=_rouge_signature,
)  # fmt: skip
def rouge(
    predictions: Sequence[str],
    targets: References,
    stemmer: bool = True,
    sentences: Literal["t5", "punctuation", "lines"] = "t5",
    tokenize: Literal["ascii", "unicode", "char"] = "ascii",
) -> dict[str, float]:
    """ROUGE-1, -2, -L and -Lsum: the mean over texts of the F1, of the best reference for each type.

    Args:
      predictions: [N] texts.
      targets: [N], each one reference or several.
      stemmer: Porter's stems are compared, as ROUGE-1.5.5 does with -m. T5's published scores are without.
      sentences: what rougeLsum takes for sentences: lines, and with "t5" what " . " ends (CNN/DailyMail's tokenized
        texts), with "punctuation" what . ! or ? with a space after it, or 。！？ ends.
      tokenize: words after lower-casing: "ascii" runs of a–z and 0–9, as rouge-score, to which other letters are
        nothing; "unicode" runs of any letters and digits; "char" the same, but each letter of a language without spaces
        is a word.

    Returns:
      {"rouge1": …, "rouge2": …, "rougeL": …, "rougeLsum": …}. T5's code takes the median of bootstrap samples, which
      is the mean up to chance.

    Example:
      >>> rouge(["a cat sat"], ["the cat sat"])["rouge2"]
      50.0
      >>> rouge(["今天下雨"], ["今天有雨"], tokenize="char")["rouge1"]
      75.0
    """
    split = {
        "t5": lambda text: text.replace(" . ", " .\n"),
        "punctuation": lambda text: re.sub(r"(?<=[.!?]) +|(?<=[。！？]) *(?=.)", "\n", text),
        "lines": lambda text: text,
    }[sentences]
    scorer = _rouge_scorer(stemmer, tokenize)
    totals = dict.fromkeys(ROUGE_TYPES, 0.0)
    for references, prediction in zip(_references(targets), predictions):
        scores = scorer.score_multi([split(text) for text in references], split(prediction))
        for name in ROUGE_TYPES:
            totals[name] += scores[name].fmeasure
    return {name: 100.0 * total / len(predictions) for name, total in totals.items()}


def _scorer(metric: str, options: dict[str, Any]) -> SacreMetric:
    """sacrebleu's scorer.

    Raises:
      UserError: the tokenizer wants what is not installed, or a file that cannot be downloaded.
    """
    import sacrebleu

    scorer_class = {"bleu": sacrebleu.BLEU, "chrf": sacrebleu.CHRF, "ter": sacrebleu.TER}[metric]
    try:
        return scorer_class(**options)
    except (ImportError, RuntimeError, OSError) as error:
        name = options.get("tokenize")
        extra = {"ja-mecab": "pip install 'sacrebleu[ja]'", "ko-mecab": "pip install 'sacrebleu[ko]'"}.get(name)
        reason = f"is not installed: {extra}" if extra else f"cannot be loaded ({str(error).strip().splitlines()[0]})"
        other = f"{{{metric}: {{tokenize: char}}}}"
        raise UserError(f"{metric}: the tokenizer {name} {reason}, or set metric_options to {other}") from None


def _rouge_scorer(stemmer: bool, tokenize: str) -> RougeScorer:
    from rouge_score.rouge_scorer import RougeScorer
    from rouge_score.tokenizers import Tokenizer

    if tokenize == "ascii":
        return RougeScorer(ROUGE_TYPES, use_stemmer=stemmer)
    import regex  # a dependency of sacrebleu; Python's own has no classes of letters
    from nltk.stem.porter import PorterStemmer

    stem = PorterStemmer().stem if stemmer else str
    pattern = regex.compile(_WORD_PATTERNS[tokenize])

    class Words(Tokenizer):
        """Words of any alphabet; as in rouge-score, those of three letters have no stem."""

        def tokenize(self, text: str) -> list[str]:
            return [stem(word) if len(word) > 3 else word for word in pattern.findall(text.lower())]

    return RougeScorer(ROUGE_TYPES, tokenizer=Words())


_NO_SPACES = r"\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}\p{Tibetan}"
_WORD_PATTERNS = {
    "unicode": r"[\p{L}\p{N}][\p{L}\p{N}\p{M}]*",
    "char": rf"(?=\p{{L}})[{_NO_SPACES}]\p{{M}}*|(?:(?![{_NO_SPACES}])[\p{{L}}\p{{N}}]\p{{M}}*)+|\p{{N}}+",
}
"""Vowels and accents that are marks (M) belong to the letter (L) before them."""


def _corpus_score(metric: str, predictions: Sequence[str], targets: References, options: dict[str, Any]) -> float:
    columns = _columns(_references(targets))
    return _scorer(metric, options).corpus_score(list(predictions), columns).score


def _columns(references: list[list[str]]) -> list[tuple[str | None, ...]]:
    """The first reference of each text, the second, …, as sacrebleu takes them; None where a text has fewer."""
    return list(itertools.zip_longest(*references))


def _references(targets: References) -> list[list[str]]:
    rows = [[target] if isinstance(target, str) else list(target) for target in targets]
    if not all(rows):
        raise UserError(f"text {rows.index([])} has no reference")
    return rows
