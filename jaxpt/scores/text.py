"""Metrics of generated text: BLEU and chrF (sacrebleu), ROUGE (rouge-score). Percentages, as they are published.

A target is a text, or a list of references.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from jaxpt.errors import UserError

if TYPE_CHECKING:
    from sacrebleu.metrics.base import Metric as SacreMetric

References = Sequence[str | Sequence[str]]

ROUGE_TYPES = ("rouge1", "rouge2", "rougeL", "rougeLsum")


def bleu(
    predictions: Sequence[str],
    targets: References,
    tokenize: Literal["13a", "intl", "char", "zh", "ja-mecab", "ko-mecab", "none"] = "13a",
    lowercase: bool = False,
) -> dict[str, float]:
    """Corpus BLEU of up to four words, exponential smoothing, of detokenized texts.

    Args:
      predictions: [N] texts.
      targets: [N], each one reference or several.
      tokenize: sacrebleu's tokenizer; T5's published scores have "intl".
      lowercase: compares without case.

    Example:
      >>> bleu(["the cat sat on the mat"], [["the cat sat on the mat", "a cat sat"]])
      {'bleu': 100.00000000000004}
    """
    return {"bleu": _corpus_score("bleu", predictions, targets, tokenize=tokenize, lowercase=lowercase)}


def chrf(
    predictions: Sequence[str], targets: References, word_order: int = 0, lowercase: bool = False
) -> dict[str, float]:
    """chrF: F2 of character n-grams up to six.

    Args:
      predictions: [N] texts.
      targets: [N], each one reference or several.
      word_order: length of word n-grams that are counted besides; 2 is chrF++.
      lowercase: compares without case.

    Example:
      >>> chrf(["the cat"], ["the cat"])
      {'chrf': 100.0}
    """
    return {"chrf": _corpus_score("chrf", predictions, targets, word_order=word_order, lowercase=lowercase)}


def rouge(
    predictions: Sequence[str],
    targets: References,
    stemmer: bool = True,
    sentences: Literal["t5", "punctuation", "lines"] = "t5",
) -> dict[str, float]:
    """ROUGE-1, -2, -L and -Lsum: the mean over texts of the F1, of the best reference for each type.

    Words are runs of a–z and 0–9 after lower-casing: other alphabets count nothing.

    Args:
      predictions: [N] texts.
      targets: [N], each one reference or several.
      stemmer: Porter's stems are compared, as ROUGE-1.5.5 does with -m. T5's published scores are without.
      sentences: what rougeLsum takes for sentences: lines, and with "t5" what " . " ends (CNN/DailyMail's tokenized
        texts), with "punctuation" what . ! or ? with a space after it ends.

    Returns:
      {"rouge1": …, "rouge2": …, "rougeL": …, "rougeLsum": …}. T5's code takes the median of bootstrap samples, which
      is the mean up to chance.

    Example:
      >>> rouge(["a cat sat"], ["the cat sat"])["rouge2"]
      50.0
    """
    from rouge_score.rouge_scorer import RougeScorer

    split = {
        "t5": lambda text: text.replace(" . ", " .\n"),
        "punctuation": lambda text: re.sub(r"(?<=[.!?]) +", "\n", text),
        "lines": lambda text: text,
    }[sentences]
    scorer = RougeScorer(ROUGE_TYPES, use_stemmer=stemmer)
    totals = dict.fromkeys(ROUGE_TYPES, 0.0)
    for references, prediction in zip(_references(targets), predictions):
        scores = scorer.score_multi([split(text) for text in references], split(prediction))
        for name in ROUGE_TYPES:
            totals[name] += scores[name].fmeasure
    return {name: 100.0 * total / len(predictions) for name, total in totals.items()}


def text_signature(metric: str, references: int = 1, **options: Any) -> str:
    """How a value of BLEU, chrF or ROUGE was computed, to publish beside it.

    Args:
      metric: "bleu", "chrf" or "rouge".
      references: references of each text.
      **options: the metric's.

    Example:
      >>> text_signature("bleu").partition("|version")[0]
      'nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp'
    """
    if metric == "rouge":
        from importlib.metadata import version

        stem = "yes" if options.get("stemmer", True) else "no"
        lines = options.get("sentences", "t5")
        return f"stem:{stem}|sentences:{lines}|mean|version:rouge-score-{version('rouge-score')}"
    scorer = _scorer(metric, **options)
    scorer.corpus_score(["a"], [["a"]] * references)  # the signature has the number of references
    return str(scorer.get_signature())


def _scorer(metric: str, **options: Any) -> SacreMetric:
    import sacrebleu

    return sacrebleu.BLEU(**options) if metric == "bleu" else sacrebleu.CHRF(**options)


def _corpus_score(metric: str, predictions: Sequence[str], targets: References, **options: Any) -> float:
    references = _references(targets)
    most = max(map(len, references))
    columns = [[row[i] if i < len(row) else None for row in references] for i in range(most)]
    return _scorer(metric, **options).corpus_score(list(predictions), columns).score


def _references(targets: References) -> list[list[str]]:
    rows = [[target] if isinstance(target, str) else list(target) for target in targets]
    if not all(rows):
        raise UserError(f"text {rows.index([])} has no reference")
    return rows
