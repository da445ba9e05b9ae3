"""Metrics of short answers: the official rules of SQuAD 1.1 and 2.0, MLQA, ReCoRD and TriviaQA.

A prediction is a text, a target a text or a list of texts that are right: the best of them counts. SQuAD's and
TriviaQA's values are percentages, as their scripts print them; ReCoRD's are fractions.
"""

from __future__ import annotations

import collections
import re
import string
import unicodedata
from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args

from jaxpt.errors import UserError
from jaxpt.metrics.base import metric

Golds = Sequence[str | Sequence[str]]
Normalization = Literal["squad", "ar", "de", "en", "es", "hi", "vi", "zh"]
_VALUES = ("exact_match", "f1")
_VALUES_OF_PARTS = tuple(f"{prefix}_{value}" for prefix in ("HasAns", "NoAns", "best") for value in ("exact", "f1"))


def normalize(answer: str) -> str:
    """SQuAD's normal form: lower case, without punctuation, then without a, an and the, single spaces.

    Example:
      >>> normalize("The  U.S. team's")
      'us teams'
    """
    return _without_articles("".join(ch for ch in answer.lower() if ch not in string.punctuation))


def normalize_trivia_qa(answer: str) -> str:
    """TriviaQA's normal form: as SQuAD's, but punctuation becomes a space, and more characters are punctuation.

    Example:
      >>> normalize_trivia_qa("The_Team's")
      'team s'
    """
    return _without_articles("".join(" " if ch in string.punctuation + "‘’´`" else ch for ch in answer.lower()))


def normalize_mlqa(answer: str, language: str) -> str:
    """MLQA's normal form: without any Unicode punctuation and the language's articles; in Chinese each character is a
    word.

    Args:
      answer: a text.
      language: ar, de, en, es, hi, vi or zh.

    Example:
      >>> normalize_mlqa("Die «Grüne» Tür", "de"), normalize_mlqa("北京,2008年", "zh")
      ('grüne tür', '北 京 2008 年')
    """
    plain = "".join(ch for ch in answer.lower() if not _is_punctuation(ch))
    plain = re.sub(_ARTICLES[language], " ", plain) if language in _ARTICLES else plain
    if language == "zh":
        plain = re.sub(r"([\u4e00-\u9fa5])", r" \1 ", plain)
    return " ".join(plain.split())


_ARTICLES = {
    "en": r"\b(a|an|the)\b",
    "es": r"\b(un|una|unos|unas|el|la|los|las)\b",
    "vi": r"\b(của|là|cái|chiếc|những)\b",
    "de": r"\b(ein|eine|einen|einem|eines|einer|der|die|das|den|dem|des)\b",
    "ar": "ال",
}


def squad_defaults(language: str) -> dict[str, Any]:
    """SQuAD's rules for English, and for languages of which MLQA has none."""
    return {"normalization": language if language in get_args(Normalization) and language != "en" else "squad"}


def _squad_signature(references: int | None, normalization: Normalization = "squad") -> str:
    return f"normalization:{normalization}"


@metric(
    "squad", "natural_questions", "web_questions", targets=("text", "answer"), unit="percent", aggregation="mean",
    values=_VALUES, selection_value="f1", by_language=squad_defaults, signature=_squad_signature,
)  # fmt: skip
def squad(predictions: Sequence[str], targets: Golds, normalization: Normalization = "squad") -> dict[str, float]:
    """SQuAD 1.1: exact match and F1 of words after normalization, maximum over the answers, in percent.

    Args:
      predictions: [N] texts.
      targets: [N], each one answer or several.
      normalization: SQuAD's own, or MLQA's for a language.

    Returns:
      {"exact_match": …, "f1": …}.

    Raises:
      UserError: a question has no answer.

    Example:
      >>> squad(["the cat", "two dogs"], [["Cat!"], ["dogs", "three dogs"]])
      {'exact_match': 50.0, 'f1': 83.33333333333333}
    """
    return _means(predictions, targets, _normal_form(normalization), 100.0)


def _normal_form(normalization: Normalization) -> Callable[[str], str]:
    return normalize if normalization == "squad" else lambda answer: normalize_mlqa(answer, normalization)


@metric(targets=("text",), unit="percent", aggregation="mean", values=_VALUES, selection_value="f1")
def trivia_qa(predictions: Sequence[str], targets: Golds) -> dict[str, float]:
    """TriviaQA: as `squad` with TriviaQA's normal form; `targets` are the aliases.

    Example:
      >>> trivia_qa(["Jeff_Lynne"], [["jeff lynne", "Lynne"]])
      {'exact_match': 100.0, 'f1': 100.0}
    """
    return _means(predictions, targets, normalize_trivia_qa, 100.0)


@metric(targets=("text", "choice"), values=_VALUES, selection_value="f1")
def record(predictions: Sequence[str], targets: Golds, groups: Sequence | None = None) -> dict[str, float]:
    """ReCoRD: exact match and F1 as SQuAD 1.1's, as fractions.

    Args:
      predictions: [N] texts.
      targets: [N], the entities that are right.
      groups: [N] ids of the queries; where given, only the first row of each query counts (T5 has a row per answer).

    Example:
      >>> record(["Obama", "Obama"], [["Obama", "Joe"], ["Joe"]], groups=[7, 7])
      {'exact_match': 1.0, 'f1': 1.0}
    """
    if groups is not None:
        first = list({group: row for row, group in reversed(list(enumerate(groups)))}.values())
        predictions, targets = [predictions[i] for i in first], [targets[i] for i in first]
    return _means(predictions, targets, normalize, 1.0)


@metric(
    targets=("answer",), unit="percent", values=("exact", "f1", *_VALUES_OF_PARTS), selection_value="best_f1",
    by_language=squad_defaults, signature=_squad_signature,
)  # fmt: skip
def squad_v2(
    predictions: Sequence[str],
    targets: Golds,
    no_answer: Sequence[float] | None = None,
    threshold: float = 1.0,
    best: bool = False,
    normalization: Normalization = "squad",
) -> dict[str, float]:
    """SQuAD 2.0: as 1.1, but a question without answers wants the empty text. Percentages.

    Args:
      predictions: [N] texts; "" says that there is no answer.
      targets: [N] answers; [] where there is none.
      no_answer: [N] probabilities (or any scores) that there is no answer.
      threshold: a prediction counts as "" where `no_answer` is larger.
      best: adds the best values that any threshold gives ("best_exact", "best_f1"), and the thresholds
        ("best_exact_thresh", "best_f1_thresh").
      normalization: as of `squad`.

    Returns:
      {"exact": …, "f1": …}, and the same of questions with an answer ("HasAns_exact", "HasAns_f1") and without
      ("NoAns_exact", "NoAns_f1"), where there are any. The names are the official script's.

    Example:
      >>> squad_v2(["", "a cat"], [[], ["dog"]])
      {'exact': 50.0, 'f1': 50.0, 'HasAns_exact': 0.0, 'HasAns_f1': 0.0, 'NoAns_exact': 100.0, 'NoAns_f1': 100.0}
    """
    if best and no_answer is None:
        raise UserError("squad_v2: the best threshold needs `no_answer`, the score of no answer for each question")
    answered = [bool(_listed(golds)) for golds in targets]
    normal = _normal_form(normalization)
    real = [[gold for gold in _listed(golds) if normal(gold)] or [""] for golds in targets]
    raw = dict(zip(("exact", "f1"), _best(predictions, real, normal, _overlap_or_both_empty)))
    adjusted = raw
    if no_answer is not None:
        adjusted = {
            name: [float(not has) if na > threshold else x for x, na, has in zip(values, no_answer, answered)]
            for name, values in raw.items()
        }
    scores = {name: 100.0 * sum(values) / len(values) for name, values in adjusted.items()}
    for prefix, has_answer in (("HasAns", True), ("NoAns", False)):
        if has_answer in answered:
            for name, values in adjusted.items():
                chosen = [x for x, has in zip(values, answered) if has == has_answer]
                scores[f"{prefix}_{name}"] = 100.0 * sum(chosen) / len(chosen)
    if best:
        for name, values in raw.items():
            optimum = _best_threshold(predictions, values, no_answer, answered)
            scores |= dict(zip((f"best_{name}", f"best_{name}_thresh"), optimum))
    return scores


def _exact_match_signature(references: int | None, **options: bool) -> str | None:
    return "|".join(f"{name}:yes" for name, value in options.items() if value) or None


@metric(targets=("labels", "text"), aggregation="mean", constant="row", signature=_exact_match_signature)
def exact_match(
    predictions: Sequence,
    targets: Sequence,
    ignore_case: bool = False,
    ignore_punctuation: bool = False,
    ignore_numbers: bool = False,
    ignore_whitespace: bool = False,
) -> dict[str, float]:
    """Fraction of predictions that equal the target: texts as they are, or whole rows of a 0/1 matrix.

    Args:
      predictions: [N] texts, or 0/1 [N, C].
      targets: [N], each a text or a list of texts of which one is to be met; or 0/1 [N, C].
      ignore_case: compares texts in lower case.
      ignore_punctuation: compares texts without ASCII's punctuation.
      ignore_numbers: compares texts without the digits 0–9.
      ignore_whitespace: single spaces, none at the ends.

    Example:
      >>> exact_match(["a b", "c"], ["a b", ["C", "c"]])
      {'exact_match': 1.0}
      >>> exact_match(["The cat. "], ["the cat"], ignore_case=True, ignore_punctuation=True, ignore_whitespace=True)
      {'exact_match': 1.0}
      >>> exact_match([[1, 0], [1, 1]], [[1, 0], [0, 1]])
      {'exact_match': 0.5}
    """
    ignored = str.maketrans("", "", string.punctuation * ignore_punctuation + string.digits * ignore_numbers)

    def plain(text: str) -> str:
        text = (text.lower() if ignore_case else text).translate(ignored)
        return " ".join(text.split()) if ignore_whitespace else text

    def is_right(prediction: Any, target: Any) -> bool:
        if isinstance(prediction, str):
            return plain(prediction) in map(plain, _listed(target))
        return list(prediction) == list(target)

    return {"exact_match": sum(map(is_right, predictions, targets)) / len(targets)}


def _without_articles(text: str) -> str:
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def _is_punctuation(character: str) -> bool:
    return character in string.punctuation or unicodedata.category(character).startswith("P")


def _listed(golds: str | Sequence[str]) -> Sequence[str]:
    return [golds] if isinstance(golds, str) else golds


def _means(predictions: Sequence[str], targets: Golds, normal: Callable[[str], str], scale: float) -> dict[str, float]:
    """Exact match and F1 by SQuAD 1.1's rules, times `scale`."""
    exact, f1 = _best(predictions, targets, normal, _overlap)
    return {"exact_match": scale * sum(exact) / len(exact), "f1": scale * sum(f1) / len(f1)}


def _best(
    predictions: Sequence[str],
    targets: Golds,
    normal: Callable[[str], str],
    overlap: Callable[[list[str], list[str]], float],
) -> tuple[list[float], list[float]]:
    """Exact match and F1 of each prediction with the best of its golds: two [N]."""
    exact, f1 = [], []
    for row, (prediction, golds) in enumerate(zip(predictions, targets)):
        if not (golds := [normal(gold) for gold in _listed(golds)]):
            raise UserError(f"question {row} has no answer; questions without one are of the metric squad_v2")
        prediction = normal(prediction)
        exact.append(float(prediction in golds))
        f1.append(max(overlap(prediction.split(), gold.split()) for gold in golds))
    return exact, f1


def _overlap(prediction: list[str], gold: list[str]) -> float:
    """F1 of the words of two texts; 0 without common words, as of two empty texts in SQuAD 1.1."""
    common = sum((collections.Counter(prediction) & collections.Counter(gold)).values())
    if not common:
        return 0.0
    precision, recall = common / len(prediction), common / len(gold)
    return 2 * precision * recall / (precision + recall)


def _overlap_or_both_empty(prediction: list[str], gold: list[str]) -> float:
    """As `_overlap`, but 1 for two empty texts: SQuAD 2.0."""
    return _overlap(prediction, gold) if prediction and gold else float(prediction == gold)


def _best_threshold(
    predictions: Sequence[str], scores: Sequence[float], no_answer: Sequence[float], answered: Sequence[bool]
) -> tuple[float, float]:
    """(best mean in percent, its threshold): from "no answer to anything" the likeliest answers are given one by one.

    As in the official script rows with equal scores are counted one by one too.
    """
    current = best = float(len(answered) - sum(answered))
    threshold = 0.0
    for row in sorted(range(len(scores)), key=lambda row: no_answer[row]):
        current += scores[row] if answered[row] else -1.0 if predictions[row] else 0.0
        if current > best:
            best, threshold = current, float(no_answer[row])
    return 100.0 * best / len(scores), threshold
