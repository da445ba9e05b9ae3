"""A tag for every word of a sentence: parts of speech, named entities.

As text to text, entities alone, in mT5's format (google-research/multilingual-t5 9dcd60f, preprocessors.wikiann):
`tag: Ada Lovelace met Babbage` → `PER: Ada Lovelace $$ PER: Babbage`. Span F1 is that of mT5's code, which compares
types and texts, but that this skips entities with a colon, and counts items without a type or a text as wrong.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import model_validator

from jaxpt import metrics
from jaxpt.data import tables
from jaxpt.data.tables import Row
from jaxpt.data.tables.rows import check_label, check_labels
from jaxpt.data.tasks.base import Answer, LocatedRow, Task
from jaxpt.errors import UserError
from jaxpt.metrics import Targets
from jaxpt.metrics.tagging import SCHEMES

_IOB = re.compile(r"O|[BI]-.+")
SPANS = " $$ "
"""What stands between the entities of a generated text."""


class TaggingTask(Task):
    """A task with a tag per word.

    Example:
      >>> task = TaggingTask(tags="ner", labels=("B-PER", "I-PER", "O"))
      >>> task.target(Row(1, {"tokens": ["Ada", "Lovelace", "wrote"], "ner": ["I-PER", "I-PER", "O"]}), "line 1")
      ['B-PER', 'I-PER', 'O']
    """

    kind: Literal["tagging"] = "tagging"
    tokens: str = "tokens"
    """Column of the words: a list, also as text (`["a", "b"]`), or text with white space between them."""
    tags: str = "tags"
    """Column of the tags (`upos` of CoNLL-U, `ner` of CoNLL-2003), likewise."""
    labels: tuple[str, ...] | None = None
    """The tags in the order of the head's outputs; by default those of the training set, numbers by value and words by
    alphabet. The run saves them."""
    scheme: Literal["auto", "iob2", "ioe1", "ioe2", "iobes", "bilou", "none"] = "auto"
    """How tags mark entities; other tags are refused. `iob2` also refuses an I-X that follows neither B-X nor I-X;
    `auto` finds the scheme by the labels, and where these are all O, B-X or I-X reads such an I-X as B-X, as conlleval
    and seqeval do (IOB1 becomes IOB2); `none` changes nothing."""

    objective: ClassVar[str] = "tagging"
    head: ClassVar[str] = "tags"
    default_metrics: ClassVar[tuple[str, ...]] = ("tag_accuracy",)
    metric_targets: ClassVar[Targets | None] = "tags"

    @model_validator(mode="after")
    def _consistent(self) -> TaggingTask:
        check_labels(self.labels)
        if wrong := self._outside(self.labels or ()):
            raise ValueError(f"labels: {wrong!r} is neither {self._forms} (scheme: {self.scheme}); set scheme: none")
        return self

    def _outside(self, tags: Sequence[str]) -> str | None:
        """The first tag that the scheme has not, where one is named."""
        if self.scheme in ("auto", "none"):
            return None
        prefixes = "".join(SCHEMES[self.scheme.upper()] - {"O"})
        return next((tag for tag in tags if not re.fullmatch(rf"O|[{prefixes}]-.+", tag)), None)

    @property
    def _forms(self) -> str:
        """The forms of the scheme's tags."""
        *first, last = (f"{prefix}-X" for prefix in sorted(SCHEMES[self.scheme.upper()] - {"O"}))
        return f"{', '.join(['O', *first])} nor {last}"

    @property
    def span_scheme(self) -> str:
        """The scheme of the labels.

        Raises:
          UserError: they are no tags of entities, or of no single scheme.
        """
        return metrics.scheme_of(self.labels) if self.scheme in ("auto", "none") else self.scheme.upper()

    def check_metrics(self) -> None:
        super().check_metrics()
        if "span_f1" in self.scored and self.labels is not None:
            try:
                self.span_scheme  # noqa: B018 which raises
            except UserError as error:
                raise UserError(f"task.metrics: {error}") from None

    def columns(self) -> tuple[str, ...]:
        return (self.tokens,)

    def words(self, row: Row, where: str) -> list[str]:
        """The words of a row.

        Raises:
          UserError: there are none.
        """
        words = _listed(row, self.tokens, where, "tokens")
        if not words:
            raise UserError(f"{where}: column {self.tokens!r} (task.tokens) has no words; take the row out")
        return words

    def content(self, row: Row, where: str) -> tuple[str, ...]:
        return (" ".join(self.words(row, where)),)

    def labels_in(self, row: Row, where: str) -> list[str]:
        """The tags of a row's words.

        Raises:
          UserError: not as many tags as words, or a tag that the scheme does not allow.
        """
        words, tags = self.words(row, where), _listed(row, self.tags, where, "tags")
        if len(words) != len(tags):
            raise UserError(
                f"{where}: {len(words)} words ({self.tokens}) and {len(tags)} tags ({self.tags}); wants a tag for each "
                "word"
            )
        if "" in tags:
            raise UserError(f"{where}: word {tags.index('') + 1}, {words[tags.index('')]!r}, has an empty tag")
        return self._in_scheme(tags, where)

    def _in_scheme(self, tags: list[str], where: str) -> list[str]:
        if wrong := self._outside(tags):
            raise UserError(f"{where}: tag {wrong!r} is neither {self._forms} (task.scheme: {self.scheme})")
        is_iob = all(_IOB.fullmatch(tag) for tag in (*tags, *(self.labels or ())))
        if self.scheme not in ("auto", "iob2") or not is_iob:
            return tags
        fixed = repaired(tags)
        if self.scheme == "iob2" and fixed != tags:
            at = next(n for n, (old, new) in enumerate(zip(tags, fixed)) if old != new)
            before = tags[at - 1] if at else "the start"
            raise UserError(
                f"{where}: word {at + 1} has {tags[at]} after {before}; wants {fixed[at]}, or task.scheme: auto, which "
                "reads it so"
            )
        return fixed

    def before_labels(self, rows: Iterable[tuple[Row, str]]) -> TaggingTask:
        """The tags as they stand tell whether an I-X may be read as B-X: not in a set that has E-X (IOE, IOBES)."""
        if self.labels is not None or self.scheme != "auto":
            return self
        plain = self.model_copy(update={"scheme": "none"})
        tags = dict.fromkeys(tag for row, where in rows for tag in plain.labels_in(row, where))
        return self.model_copy(update={"labels": tuple(tags)})

    def target(self, row: Row, where: str) -> list[str]:
        """The tags of a row.

        Raises:
          UserError: a tag that is none of the labels.
        """
        tags = self.labels_in(row, where)
        for tag in tags:
            check_label(tag, self.labels, where, "tag")
        return tags

    def options(self, metric: str) -> dict[str, Any]:
        return {**({"scheme": self.span_scheme} if metric == "span_f1" else {}), **super().options(metric)}

    def computed(self, metric: str, targets: Sequence[Any]) -> str | None:
        if metric == "span_f1":
            rules = "strict" if self.options(metric).get("strict") else "conlleval's rules"
            return f"micro average over entities, {self.span_scheme}, {rules}"
        return "mean over the tags that occur" if metric == "macro_f1" else None

    def baseline_names(self) -> dict[str, str]:
        of_words = [value for metric in ("tag_accuracy", "span_f1") for value in metrics.find(metric).values]
        return dict.fromkeys(of_words, "most-frequent-tag baseline")

    def score(self, predictions: Sequence[list[str]], targets: Sequence[list[str]], metric: str) -> dict[str, float]:
        """A metric; macro_f1 is over all words, each tag a label. Tags beyond the words are compared with O."""
        targets = [[*tags, *["O"] * (len(p) - len(tags))] for p, tags in zip(predictions, targets, strict=True)]
        if metric == "macro_f1":
            predictions, targets = _flat(predictions), _flat(targets)
        return metrics.score(metric, predictions, targets, **self.options(metric))

    def majority(
        self, metric: str, trained: Sequence[LocatedRow], rows: Sequence[LocatedRow], targets: Sequence[list[str]]
    ) -> dict[str, float] | None:
        """A metric of each word's most frequent tag; macro_f1 of the most frequent tag."""
        tags = [self.target(row.row, row.where) for row in trained]
        if metric == "macro_f1":
            return metrics.majority(metric, _flat(tags), _flat(targets))
        words = ([self.words(row.row, row.where) for row in split] for split in (trained, rows))
        words = {"train_words": next(words), "words": next(words)}
        return metrics.majority(metric, tags, targets, **words, **self.options(metric))

    def input_text(self, row: Row, where: str) -> str:
        return f"tag: {' '.join(self.words(row, where))}"

    def target_text(self, row: Row, where: str) -> str:
        words = self.words(row, where)
        return SPANS.join(
            f"{kind}: {' '.join(words[start:end])}" for kind, start, end in _spans(self.target(row, where))
        )

    def parse(self, text: str, row: Row, where: str) -> list[str]:
        """The tags that a generated text gives to a row's words.

        An entity that is one of the row's own goes to that one's words, any other to the first place that is free. One
        that does not stand there is wrong: it has a tag of its own after those of the words.
        """
        try:
            targets = _spans(self.labels_in(row, where))
        except UserError:  # a row without tags
            targets = []
        return _placed(text, self.words(row, where), targets)

    def answer_text(self, text: str, row: Row, where: str) -> Answer:
        """The text, words and their tags: each entity at the first place, whatever the row's own tags are."""
        words = self.words(row, where)
        return {"text": text, "tokens": words, "tags": _placed(text, words)[: len(words)]}

    def loss(self, outputs: Sequence[np.ndarray], target: Sequence[str]) -> float:
        """Mean over the words of −log softmax(outputs)[tag]."""
        losses = metrics.negative_log_softmax(np.concatenate(outputs))
        return float(losses[np.arange(len(target)), self.encoded(target)].mean())

    def text_of(self, row: Row, where: str) -> str:
        return " ".join(self.words(row, where))

    def difference(self, target: Sequence[str], prediction: Sequence[str], row: Row, where: str) -> str:
        """The words with another tag than the target's."""
        words = zip(self.words(row, where), target, prediction)
        return ", ".join(f"{word} {tag} → {predicted}" for word, tag, predicted in words if tag != predicted)

    def confusions(self, predictions: Sequence[list[str]], targets: Sequence[list[str]]) -> list[str]:
        ids = {label: number for number, label in enumerate(self.labels)}
        pairs = [
            (ids.get(tag, -1), ids[target])  # a generated tag may be none of the labels, or stand after the words
            for tags, target_tags in zip(predictions, targets, strict=True)
            for tag, target in zip(tags, target_tags)
        ]
        return metrics.confusions([p for p, _ in pairs], [t for _, t in pairs], self.labels)

    def repairs(self, row: Row, where: str) -> int:
        """How many tags of a row are I-X and are read as B-X."""
        return sum(old != new for old, new in zip(_listed(row, self.tags, where, "tags"), self.labels_in(row, where)))

    def encoded(self, target: Sequence[str]) -> np.ndarray:
        """Indices of tags: int32 [words]."""
        index = {label: n for n, label in enumerate(self.labels)}
        return np.array([index[tag] for tag in target], np.int32)

    def decide(self, outputs: Sequence[np.ndarray]) -> list[str]:
        """The tags of a row's words.

        Args:
          outputs: the head's, of each of the row's windows: [words of the window, labels].
        """
        return [self.labels[n] for n in np.concatenate(outputs).argmax(-1)]

    def answer(self, outputs: Sequence[np.ndarray], words: Sequence[str]) -> Answer:
        """Words, their tags, and how likely these are."""
        best = np.exp(-metrics.negative_log_softmax(np.concatenate(outputs)).min(-1)).tolist()
        return {"tokens": list(words), "tags": self.decide(outputs), "probabilities": [round(x, 6) for x in best]}


def repaired(tags: Sequence[str]) -> list[str]:
    """Tags in IOB2: an I-X that continues no entity of type X begins one.

    Args:
      tags: O, B-X and I-X.

    Example:
      >>> repaired(["I-PER", "I-PER", "I-LOC", "O", "B-LOC", "I-LOC"])
      ['B-PER', 'I-PER', 'B-LOC', 'O', 'B-LOC', 'I-LOC']
    """
    before = ["O", *tags]
    return [f"B{tag[1:]}" if tag.startswith("I-") and last[1:] != tag[1:] else tag for last, tag in zip(before, tags)]


def _spans(tags: Sequence[str]) -> list[tuple[str, int, int]]:
    """(type, first word, word after the last) of each entity of tags in IOB2.

    Raises:
      UserError: a tag is neither O, B-X nor I-X.
    """
    if wrong := next((tag for tag in tags if not _IOB.fullmatch(tag)), None):
        raise UserError(f"objective.kind: text_to_text wants tags of entities: {wrong!r} is neither O, B-X nor I-X")
    starts = [n for n, tag in enumerate(tags) if tag.startswith("B-")]
    ends = (next((n for n in range(start + 1, len(tags)) if tags[n][0] != "I"), len(tags)) for start in starts)
    return [(tags[start][2:], start, end) for start, end in zip(starts, ends)]


def _placed(text: str, words: Sequence[str], targets: Sequence[tuple[str, int, int]] = ()) -> list[str]:
    """The tags that a generated text gives to words: see `TaggingTask.parse`.

    Args:
      text: entities as `TaggingTask.target_text` writes them.
      words: of a sentence.
      targets: its own entities, as `_spans` gives them.
    """
    tags, more, others = ["O"] * len(words), [], []
    places: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for kind, start, end in targets:
        places.setdefault((kind, " ".join(words[start:end])), []).append((start, end))

    def tag(kind: str, start: int, end: int) -> None:
        tags[start:end] = [f"B-{kind}", *[f"I-{kind}"] * (end - start - 1)]

    for item in text.split(SPANS.strip()):
        kind, _, entity = (" ".join(part.split()) for part in item.partition(":"))
        if equal := places.get((kind, entity)):
            tag(kind, *equal.pop(0))
        elif kind and entity:
            others.append((kind, entity.split()))
    for kind, entity in others:
        ends = range(len(entity), len(words) + 1)
        free = (n for n in ends if words[n - len(entity) : n] == entity and set(tags[n - len(entity) : n]) == {"O"})
        if (end := next(free, None)) is not None:
            tag(kind, end - len(entity), end)
        else:
            more.append(f"B-{kind}")
    return tags + more


def _flat(rows: Sequence[Sequence[str]]) -> list[str]:
    """The tags of all words."""
    return [tag for row in rows for tag in row]


def _listed(row: Row, name: str, where: str, key: str) -> list[str]:
    """A column of words or tags."""
    place = f"{where}: column {name!r} (task.{key})"
    value = tables.parse_list(tables.column(row, name, f"{where} (task.{key})"), place, numbers=key == "tags")
    entries = value.split() if isinstance(value, str) else value
    if not isinstance(entries, list) or any(isinstance(entry, list | dict) for entry in entries):
        raise UserError(f"{place} wants a list, got {type(value).__name__}")
    return [tables.label(entry) for entry in entries]
