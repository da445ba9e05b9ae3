"""Tasks as text to text: T5's formats, and the way from generated text back to labels.

The texts are those of the released code (t5/data/preprocessors.py, postprocessors.py and glue_utils.py of
text-to-text-transfer-transformer; t5_cbqa/preprocessors.py for closed-book QA): checkpoints that were fine-tuned on
them know them. A row has the columns of the set in TFDS. Generated text that is no label becomes −1, which no metric
counts as right.

Paper: https://arxiv.org/abs/1910.10683
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxpt.errors import UserError
from jaxpt.metrics import text_pronouns as pronouns

Row = Mapping[str, Any]

UNKNOWN = "<unk>"
"""The target of a row whose label is hidden (−1)."""


@dataclasses.dataclass(frozen=True)
class TextTask:
    """A task's texts."""

    inputs: Callable[[Row], str]
    targets: Callable[[Row], tuple[str, ...]]
    """Texts to train on, one example each."""
    gold: Callable[[Row], Any]
    """What predictions are scored against: a class id, a number, or texts."""
    parse: Callable[[str, Row], Any]
    """From generated text to a prediction of the kind of `gold`."""
    labels: tuple[str, ...] = ()
    """Label words in the order of the class ids."""
    names: tuple[str, ...] = ()
    """What class ids mean, where targets are other texts than these words."""
    columns: tuple[str, ...] = ()
    """Columns of its texts, where these are all of the input: of MNLI the premise and the hypothesis."""


def text_task(name: str) -> TextTask:
    """The formats of a task.

    Args:
      name: one of `TASKS`, or translate_SOURCE_TARGET with two language codes (translate_en_de).

    Returns:
      Its formats.

    Raises:
      UserError: there is no such task; the message has the nearest names.

    Example:
      >>> task = text_task("cola")
      >>> row = {"sentence": "He run.", "label": 0}
      >>> task.inputs(row), task.targets(row), task.parse("acceptable", row), task.parse("maybe", row)
      ('cola sentence: He run.', ('unacceptable',), 1, -1)
    """
    if match := re.fullmatch(r"translate_(\w[\w-]*)_(\w[\w-]*)", name):
        return _translation(*match.groups())
    if name not in TASKS:
        near = difflib.get_close_matches(name, TASKS, 3) or [*TASKS, "translate_en_de"]
        raise UserError(f"no text format for the task {name!r}; one of: {', '.join(near)}")
    return TASKS[name]


def generic_inputs(task: str, columns: Mapping[str, Any]) -> str:
    """The format of any task with columns: its name, then names and texts of columns, sorted by name.

    Example:
      >>> generic_inputs("mnli", {"premise": "It rains.", "hypothesis": "It is wet."})
      'mnli hypothesis: It is wet. premise: It rains.'
    """
    return " ".join([task, *(f"{name}: {columns[name]}" for name in sorted(columns))])


def label_word(label: Any, labels: Sequence[str]) -> str:
    """The word of a label: of a class id (2 or "2"), of the word itself; "<unk>" of −1 and of None, as TFDS has −1.

    Raises:
      UserError: it is none of the labels.

    Example:
      >>> label_word(1, ["negative", "positive"]), label_word("negative", ["negative", "positive"])
      ('positive', 'negative')
    """
    if label is None:
        return UNKNOWN
    if label in labels:
        return label
    if re.fullmatch(r"-1|\d+", str(int(label) if hasattr(label, "__index__") else label)):
        number = int(label)
        if number < len(labels):
            return labels[number] if number >= 0 else UNKNOWN
    raise UserError(f"the label {label!r} is none of: {', '.join(labels)}")


def parse_label(text: str, labels: Sequence[str]) -> int:
    """The class id of a label word; −1 of any other text.

    Example:
      >>> parse_label("positive", ["negative", "positive"]), parse_label("Positive", ["negative", "positive"])
      (1, -1)
    """
    return list(labels).index(text) if text in labels else -1


def parse_number(text: str) -> float:
    """The number that a text is; −1 of any other text (T5's code takes "nan" and "inf" for numbers).

    Example:
      >>> parse_number("3.8"), parse_number("four")
      (3.8, -1.0)
    """
    try:
        return value if math.isfinite(value := float(text)) else -1.0
    except ValueError:
        return -1.0


def _columns(name: str, *keys: str, row: Row) -> list[str]:
    if missing := [key for key in keys if key not in row]:
        raise UserError(f"{name}: the row has no column {missing[0]!r}; it has: {', '.join(row)}")
    return [row[key] for key in keys]


def _having(name: str, columns: Sequence[str], inputs: Callable[[Row], str]) -> Callable[[Row], str]:
    """`inputs` of rows that have been found to have these columns."""
    return lambda row: inputs(row) if _columns(name, *columns, row=row) else ""


def _id(row: Row, labels: Sequence[str]) -> int:
    return parse_label(label_word(row.get("label", -1), labels), labels)


def _labelled(name: str, labels: tuple[str, ...], *columns: str, sort: bool = True) -> TextTask:
    """GLUE's format: `{name} {column}: {text} …`, the label's word."""

    def inputs(row: Row) -> str:
        keys = sorted(columns) if sort else columns
        if name == "rte" and "sentence1" in row:  # GLUE's columns; SuperGLUE's are premise and hypothesis
            keys = ["sentence1", "sentence2"]
        values = _columns(name, *keys, row=row)
        return " ".join([name, *(f"{key}: {value}" for key, value in zip(keys, values))])

    return TextTask(
        inputs,
        targets=lambda row: (label_word(row.get("label", -1), labels),),
        gold=lambda row: _id(row, labels),
        parse=lambda text, row: parse_label(text, labels),
        labels=labels,
        columns=columns,
    )


def _texts(
    inputs: Callable[[Row], str],
    gold: Callable[[Row], list[str]],
    targets: Callable[[Row], tuple[str, ...]] | None = None,
) -> TextTask:
    """A task with free text as its answer; the first of several texts is trained on, unless `targets` says more."""
    return TextTask(inputs, targets or (lambda row: tuple(gold(row)[:1])), gold, lambda text, row: text)


def _stsb() -> TextTask:
    def label(row: Row) -> float:
        return float(*_columns("stsb", "label", row=row))

    def rounded(row: Row) -> tuple[str, ...]:
        """The nearest 0.2 with one decimal, ties to the even fifth, in float32 as in T5."""
        import numpy as np

        return (f"{np.round(np.float32(label(row)) * np.float32(5)) / np.float32(5):.1f}",)

    def inputs(row: Row) -> str:
        first, second = _columns("stsb", *columns, row=row)
        return f"stsb sentence1: {first} sentence2: {second}"

    columns = ("sentence1", "sentence2")
    return TextTask(inputs, rounded, label, lambda text, row: parse_number(text), columns=columns)


def _multirc() -> TextTask:
    plain = _labelled("multirc", FALSE_TRUE, "question", "answer", "paragraph", sort=False)
    return dataclasses.replace(plain, inputs=lambda row: re.sub("</?b>", "", plain.inputs(row).replace("<br>", " ")))


def _axb() -> TextTask:
    def inputs(row: Row) -> str:
        first, second = _columns("axb", "sentence1", "sentence2", row=row)
        return f"rte hypothesis: {second} premise: {first}"

    return dataclasses.replace(_RTE, inputs=inputs)


def _record() -> TextTask:
    def inputs(row: Row) -> str:
        query, entities, passage = _columns("record", "query", "entities", "passage", row=row)
        passage = re.sub(r"([.?!\"'])\n@highlight\n", r"\1 ", passage).replace("\n@highlight\n", ". ")
        return f"record query: {query} entities: {', '.join(_as_list(entities))} passage: {passage}"

    def answers(row: Row) -> list[str]:
        return _as_list(row.get("answers", ()))

    return _texts(inputs, answers, targets=lambda row: tuple(answers(row)) or (UNKNOWN,))


def _squad(with_context: bool = True) -> TextTask:
    def inputs(row: Row) -> str:
        if not with_context:
            return _single_spaced(f"squad trivia question: {_spaced(*_columns('squad', 'question', row=row))}")
        question, context = map(_spaced, _columns("squad", "question", "context", row=row))
        return _single_spaced(f"question: {question} context: {context}")

    def answers(row: Row) -> list[str]:
        golds = row.get("answers", ())
        return [_spaced(text) for text in _as_list(golds["text"] if isinstance(golds, Mapping) else golds)]

    return _texts(inputs, answers)


def _as_list(texts: str | Sequence[str]) -> list[str]:
    """Several texts, or one by itself, as a list."""
    return [texts] if isinstance(texts, str) else list(texts)


def _spaced(text: str) -> str:
    """Spaces around each ASCII punctuation character, single white space."""
    return _single_spaced(re.sub(r"([!-/:-@\[-`{-~])", r" \1 ", text))


def _single_spaced(text: str) -> str:
    return re.sub(r"[\t\n\f\r ]+", " ", text)


def _closed_book(prefix: str, name: str) -> TextTask:
    """`{prefix}{question}`. Answers: a text, a list, or TriviaQA's {"value": …, "aliases": …}."""

    def answers(row: Row) -> list[str]:
        golds = row.get("answers", row.get("answer", ()))
        return _as_list(golds["aliases"] if isinstance(golds, Mapping) else golds)

    def targets(row: Row) -> tuple[str, ...]:
        answer = row.get("answer")
        return (answer["value"],) if isinstance(answer, Mapping) else tuple(answers(row)[:1])

    return _texts(lambda row: prefix + _columns(name, "question", row=row)[0], answers, targets)


def _summary(article: str, summary: str) -> TextTask:
    return _texts(
        lambda row: f"summarize: {_columns('summarize', article, row=row)[0]}",
        lambda row: [row[summary]] if summary in row else [],
    )


def _translation(source: str, target: str) -> TextTask:
    """`translate English to German: {text}`; columns are the language codes."""
    for code in (source, target):
        if code[:2] not in LANGUAGES:
            raise UserError(f"translate: no language {code!r}; one of: {', '.join(LANGUAGES)}")
    prefix = f"translate {LANGUAGES[source[:2]]} to {LANGUAGES[target[:2]]}: "
    return _texts(
        lambda row: prefix + _columns("translate", source, row=row)[0],
        lambda row: [row[target]] if target in row else [],
    )


def _pronoun(
    inputs: Callable[[Row], str], referent: Callable[[Row], str], labels: tuple[str, ...], train: bool
) -> TextTask:
    """`wsc: … *it* …`; the text is what the pronoun refers to, the label whether that is the row's referent."""

    def targets(row: Row) -> tuple[str, ...]:
        return () if train and _id(row, labels) != 1 else (referent(row),)

    return TextTask(
        inputs,
        targets,
        lambda row: _id(row, labels),
        lambda text, row: pronouns.names_referent(text, referent(row)),
        names=labels,
    )


LANGUAGES = {
    "ar": "Arabic", "bg": "Bulgarian", "bn": "Bangla", "cs": "Czech", "da": "Danish", "de": "German", "el": "Greek",
    "en": "English", "es": "Spanish", "et": "Estonian", "fi": "Finnish", "fr": "French", "gu": "Gujarati",
    "ha": "Hausa", "he": "Hebrew", "hi": "Hindi", "hr": "Croatian", "hu": "Hungarian", "id": "Indonesian",
    "it": "Italian", "ja": "Japanese", "kk": "Kazakh", "ko": "Korean", "lt": "Lithuanian", "lv": "Latvian",
    "nl": "Dutch", "no": "Norwegian", "pl": "Polish", "ps": "Pashto", "pt": "Portuguese", "ro": "Romanian",
    "ru": "Russian", "sk": "Slovak", "sl": "Slovenian", "sv": "Swedish", "ta": "Tamil", "th": "Thai", "tr": "Turkish",
    "uk": "Ukrainian", "vi": "Vietnamese", "zh": "Chinese",
}  # fmt: skip
"""English names of languages, as babel has them."""

FALSE_TRUE = ("False", "True")
NLI = ("entailment", "neutral", "contradiction")
RTE = ("entailment", "not_entailment")


def _dpr_referent(row: Row) -> list[str]:
    candidates, label = _columns("dpr", "candidates", "label", row=row)
    return [_as_list(candidates)[int(label)]]


WNLI = ("not_entailment", "entailment")
_NLI = _labelled("mnli", NLI, "premise", "hypothesis")
_RTE = _labelled("rte", RTE, "premise", "hypothesis")

TASKS: dict[str, TextTask] = {
    "cola": _labelled("cola", ("unacceptable", "acceptable"), "sentence"),
    "sst2": _labelled("sst2", ("negative", "positive"), "sentence"),
    "mrpc": _labelled("mrpc", ("not_equivalent", "equivalent"), "sentence1", "sentence2"),
    "qqp": _labelled("qqp", ("not_duplicate", "duplicate"), "question1", "question2"),
    "stsb": _stsb(),
    "mnli": _NLI,
    "mnli_matched": _NLI,
    "mnli_mismatched": _NLI,
    "ax": _NLI,
    "qnli": _labelled("qnli", RTE, "question", "sentence"),
    "rte": _RTE,
    "wnli": _labelled("wnli", WNLI, "sentence1", "sentence2"),
    "wnli_simple": _pronoun(
        _having("wnli", ("sentence1", "sentence2"), pronouns.wnli_inputs), pronouns.wnli_referent, WNLI, train=False
    ),
    "boolq": _labelled("boolq", FALSE_TRUE, "passage", "question"),
    "cb": _labelled("cb", ("entailment", "contradiction", "neutral"), "premise", "hypothesis"),
    "copa": _labelled("copa", ("choice1", "choice2"), "choice1", "choice2", "premise", "question"),
    "multirc": _multirc(),
    "record": _record(),
    "wic": _labelled("wic", FALSE_TRUE, "sentence1", "sentence2", "word", sort=False),
    "wsc": dataclasses.replace(
        _labelled("wsc", FALSE_TRUE, "text"),
        inputs=_having(
            "wsc", ("text", "span1_text", "span1_index", "span2_text", "span2_index"), pronouns.marked_wsc_inputs
        ),
    ),
    "wsc_simple": _pronoun(
        _having("wsc", ("text", "span1_text", "span2_text", "span2_index"), pronouns.wsc_inputs),
        lambda row: row["span1_text"],
        FALSE_TRUE,
        train=True,
    ),
    "dpr": _texts(
        _having("dpr", ("sentence", "pronoun"), pronouns.dpr_inputs),
        _dpr_referent,
    ),
    "axb": _axb(),
    "axg": _RTE,
    "squad": _squad(),
    "squad_context_free": _squad(with_context=False),
    "natural_questions": _closed_book("nq question: ", "natural_questions"),
    "trivia_qa": _closed_book("trivia_qa question: ", "trivia_qa"),
    "web_questions": _closed_book("wq question: ", "web_questions"),
    "cnn_dailymail": _summary("article", "highlights"),
    "xsum": _summary("document", "summary"),
}
"""T5's tasks by TFDS's names, and XSum in the format of CNN/DailyMail. Published figures of WSC and WNLI are those of
the formats wsc_simple and wnli_simple, trained on wsc_simple and dpr."""
