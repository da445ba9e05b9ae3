"""Hugging Face's classes for fine-tuning (`…ForSequenceClassification`, …): their heads' names and their labels.

A class has one of the heads of `jaxpt.models.heads.classes`, with the pooler that the architecture has for it, and the
backbone without its projection to the vocabulary.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

from jaxpt.config import ModelConfig
from jaxpt.errors import UserError, shown
from jaxpt.hf.table import HeadTable, Row, Table, dense, norm, with_heads

Problem = Literal["single_label_classification", "multi_label_classification", "regression"]
"""Their `problem_type`: what loss the class has."""
WORDS = {
    "classes": "text classification", "tags": "token classification", "span": "question answering",
    "choice": "multiple choice",
}  # fmt: skip
PROJECTIONS = ("lm_head.", "lm_loss.", "embed_out.")
"""Their names of the projection to the vocabulary."""
VOCABULARY = (r"head/.*", "vocab_bias")
"""Parameters of the projection to the vocabulary, which these classes do not have."""


@dataclasses.dataclass(frozen=True)
class Task:
    """One of their classes for fine-tuning."""

    name: str
    """Of the class."""
    classifier: str
    """Name of the projection to the logits."""
    pooler: str | None = None
    """Name of the pooler's projection, if the architecture has a pooler for this head."""
    norm: str | None = None
    """Name of the pooler's norm."""
    prefix: tuple[str, str] = ("", "")
    """(prefix of the backbone's names in the family's other classes, in this one), if they differ."""
    lacks: tuple[str, ...] = ()
    """Regular expressions of more parameters of the backbone that the class does not have."""
    fixed: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """{key of config.json: the supported value}."""

    def table(self, head: str, body: Table, config: ModelConfig) -> Table:
        """The weight table of the class.

        Args:
          head: name of our head.
          body: table of the backbone.
          config: our configuration.
        """
        old, new = self.prefix
        lacks = (*VOCABULARY, *self.lacks)

        def theirs(name: str) -> str:
            return new + name.removeprefix(old)

        def renamed(row: Row) -> Row:
            tied = tuple(theirs(name) for name in row.tied if not name.startswith(PROJECTIONS))
            return dataclasses.replace(row, theirs=theirs(row.theirs), tied=tied)

        rows = [renamed(row) for row in body.rows if not any(re.fullmatch(x, p) for x in lacks for p in row.paths)]
        body = dataclasses.replace(
            body,
            rows=tuple(rows),
            ignored=(*body.ignored, r".*\.pooler\.dense\..*"),  # some files have an unused pooler
            prefix=theirs(body.prefix) if body.prefix else new,
            renamed=(*body.renamed, *(((f"^{re.escape(old)}", new),) if old else ())),
            zeros={},
            lacks=tuple(f"model/{x}" for x in lacks),
        )
        options = config.task_head(head)
        heads = {head: HeadTable(dense("dense", self.classifier, options.use_bias))}
        if options.pooler is not None:
            rows = [*dense("dense", self.pooler, options.pooler.use_bias)]
            if options.pooler.epsilon is not None:
                rows += norm("norm", self.norm, options.pooler.norm_bias)
            heads = {"pooler": HeadTable(tuple(rows)), **heads}
        return with_heads(body, heads)


Names = str | tuple[str, str]
"""Name of the classifier, or of the pooler's projection and the classifier."""


def tasks(
    name: str,
    *,
    classes: Names,
    choice: Names | None = None,
    tags: Names | None = "classifier",
    span: Names | None = "qa_outputs",
    fixed: Mapping[str, Any] | None = None,
    **more: Any,
) -> dict[str, Task]:
    """The classes of a family; None: it has no such class.

    Args:
      name: with which the classes' names begin.
      classes: names in `…ForSequenceClassification`.
      choice: names in `…ForMultipleChoice`.
      tags: names in `…ForTokenClassification`.
      span: names in `…ForQuestionAnswering`.
      fixed: keys of config.json that change the pooler of whole texts: {key: the supported value}.
      **more: fields of each task.

    Returns:
      {name of our head: task}.
    """
    kinds = {
        "classes": ("SequenceClassification", classes), "tags": ("TokenClassification", tags),
        "span": ("QuestionAnswering", span), "choice": ("MultipleChoice", choice),
    }  # fmt: skip
    by_head = {}
    for head, (kind, names) in kinds.items():
        if names is not None:
            pooler, classifier = (None, names) if isinstance(names, str) else names
            fields = {"fixed": fixed} if fixed and head in ("classes", "choice") else {}
            by_head[head] = Task(f"{name}For{kind}", classifier, pooler, **fields, **more)
    return by_head


# ---- labels ---------------------------------------------------------------------------------------------------------


def labels_to_json(
    head: str | None, outputs: int, labels: Sequence[str] | None, problem: Problem | None
) -> dict[str, Any]:
    """Keys of config.json that say what the logits mean.

    Args:
      head: name of the head.
      outputs: number of its logits.
      labels: their names; by default LABEL_0, LABEL_1, …, as in transformers.
      problem: the loss of "classes".

    Returns:
      id2label, label2id, num_labels and problem_type for "classes" and "tags", {} for other heads.

    Raises:
      UserError: another number of labels than of logits, a label twice, or labels of a head without them.
    """
    if head not in ("classes", "tags"):
        if labels is not None:
            raise UserError("labels: only the heads classes and tags have labels")
        return {}
    names = [f"LABEL_{i}" for i in range(outputs)] if labels is None else list(labels)
    if len(names) != outputs:
        raise UserError(f"labels: {len(names)} names, but the head {head} has {outputs} outputs")
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise UserError(f"labels: {twice[0]!r} stands there twice")
    keys: dict[str, Any] = {
        "num_labels": outputs,
        "id2label": {str(i): name for i, name in enumerate(names)},
        "label2id": {name: i for i, name in enumerate(names)},
    }
    return keys | ({"problem_type": problem} if problem is not None and head == "classes" else {})


def labels_from_json(head: str | None, outputs: int, given: Mapping[str, Any]) -> tuple[str, ...] | None:
    """The names of the labels in the order of the logits; None where config.json has none.

    Raises:
      UserError: `id2label` has another number of labels than there are logits, or other indices.
    """
    names = given.get("id2label")
    if head not in ("classes", "tags") or not names:
        return None
    if sorted(map(str, names)) != sorted(map(str, range(outputs))):
        ids = ", ".join(shown(str(name)) for name in names).replace("'", "")
        raise UserError(f"config.json: id2label: has the ids {ids}, but the weights are of {outputs} labels")
    return tuple(str(names[str(i)] if str(i) in names else names[i]) for i in range(outputs))


def problem_from_json(head: str | None, outputs: int, given: Mapping[str, Any]) -> Problem | None:
    """Their `problem_type`, or what their class takes without it; None for other heads than "classes"."""
    if head != "classes":
        return None
    problem = given.get("problem_type") or ("regression" if outputs == 1 else "single_label_classification")
    if problem not in get_args(Problem):
        raise UserError(
            f"config.json: problem_type: {shown(problem)} is not supported, only {', '.join(get_args(Problem))}"
        )
    return problem
