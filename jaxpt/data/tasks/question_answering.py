"""Questions whose answers are spans of a context (SQuAD 1.1), or that have none there (SQuAD 2.0)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np

from jaxpt import metrics
from jaxpt.config import PositiveInt
from jaxpt.data import tables
from jaxpt.data.tables import Row
from jaxpt.data.tasks.base import Answer, ComparedTexts
from jaxpt.errors import UserError
from jaxpt.metrics import Targets


class Found(NamedTuple):
    """The likeliest span of a context."""

    text: str
    start: int | None
    """Its first character in the context; None: there is no span."""
    score: float
    """Its start and end logit, minus those of no answer."""


class QuestionAnsweringTask(ComparedTexts):
    """A task with a context, a question about it, and answers with the characters where they start.

    Example:
      >>> task = QuestionAnsweringTask()
      >>> values = {"context": "Ada met Charles.", "answers": [{"text": "Charles", "answer_start": 8}]}
      >>> task.spans(Row(1, {**values, "question": "Whom?"}), "row 1")
      [(8, 15)]
    """

    kind: Literal["question_answering"] = "question_answering"
    question: str = "question"
    """Column of the question."""
    context: str = "context"
    """Column of the text that has the answer."""
    answers: str = "answers"
    """Column of the answers, as in SQuAD's files or TFDS's: training learns the first, any of them counts as right."""
    null_threshold: float | None = None
    """With the metric squad_v2 a question has no answer where (null score − score of the best span) is larger. By
    default 0 on the validation set; the test set and predictions have the best threshold of the validation set, which
    the run saves with its metrics as `best_f1_thresh`."""
    nbest: PositiveInt | None = None
    """`jaxpt predict` also writes so many of the likeliest answers of each row with their probabilities, out of the
    `objective.n_best` best spans of each window."""

    objective: ClassVar[str] = "question_answering"
    head: ClassVar[str] = "span"
    outputs: ClassVar[int] = 2
    default_metrics: ClassVar[tuple[str, ...]] = ("squad",)
    metric_targets: ClassVar[Targets | None] = "answer"

    @property
    def may_have_no_answer(self) -> bool:
        """True if questions without an answer are allowed: the metric is squad_v2."""
        return "squad_v2" in self.scored

    def with_measured(self, metrics: Mapping[str, float]) -> QuestionAnsweringTask:
        """The task with the threshold that was best on the validation set, where the recipe gives none."""
        best = next((value for name, value in metrics.items() if name.rpartition("/")[2] == "best_f1_thresh"), None)
        if self.null_threshold is not None or best is None:
            return self
        return self.model_copy(update={"null_threshold": float(best)})

    def columns(self) -> tuple[str, ...]:
        return self.question, self.context

    def texts(self, row: Row, where: str) -> tuple[str, str]:
        """Question and context."""
        named = (("question", self.question), ("context", self.context))
        question, context = (tables.text(row, name, f"{where} (task.{key})") for key, name in named)
        if not context.strip():
            raise UserError(f"{where}: column {self.context!r} (task.context) is empty; wants the text with the answer")
        return question, context

    def content(self, row: Row, where: str) -> tuple[str, ...]:
        """The context alone: all questions about it are held out together."""
        return (self.texts(row, where)[1],)

    def vocabulary_texts(self, row: Row, where: str) -> tuple[str, ...]:
        return self.texts(row, where)

    def spans(self, row: Row, where: str) -> list[tuple[int, int]]:
        """(start, end) of each answer's characters in the context; [] where there is none.

        Raises:
          UserError: an answer does not stand where it should; or there is none, and the metric is SQuAD 1.1's.
        """
        context, spans = self.texts(row, where)[1], []
        for answer in self._answers(row, where):
            text, start = answer["text"], answer["answer_start"]
            excerpt = context[max(start, 0) : max(start, 0) + len(text)]
            if start < 0 or excerpt != text or not text.strip():
                raise UserError(f"{where}: answer {text!r} is not at answer_start {start}, where {excerpt!r} stands")
            spans.append((start, start + len(text)))
        return spans

    def target(self, row: Row, where: str) -> list[str]:
        """The texts of the answers; [] where there is none."""
        return [answer["text"] for answer in self._answers(row, where)]

    def _answers(self, row: Row, where: str) -> list[dict[str, Any]]:
        value = tables.column(row, self.answers, f"{where} (task.answers)")
        value = tables.parse_list(value, f"{where}: column {self.answers!r} (task.answers)", objects=True)
        answers = [] if tables.flag(row.values.get("is_impossible")) else tables.answers(value, where)
        if not answers and not self.may_have_no_answer:
            raise UserError(f"{where}: the question has no answer; task.metrics=[squad_v2] allows such questions")
        return answers

    def decide(self, outputs: Sequence[np.ndarray], context: str) -> Found:
        """The likeliest span over all windows of a question.

        Args:
          outputs: of each window [1 + spans, 3]: (null score, loss, 0), and (score, start, end) of its best spans.
          context: the text that it is cut from.
        """
        null = min(float(window[0, 0]) for window in outputs)
        score, start, end = max((window[1] for window in outputs), key=lambda span: span[0])
        if not math.isfinite(score):
            return Found("", None, -math.inf)
        return Found(context[int(start) : int(end)], int(start), float(score) - null)

    def answer(self, outputs: Sequence[np.ndarray], context: str) -> Answer:
        """The answer, "" where there is none, and the score that is compared with −`null_threshold`."""
        text, start, score = self._with_threshold(self.decide(outputs, context))
        answer = {"answer": text, "score": round(score, 6) if math.isfinite(score) else None, "start": start}
        return answer | ({"nbest": self.best(outputs, context)} if self.nbest else {})

    def best(self, outputs: Sequence[np.ndarray], context: str) -> list[Answer]:
        """The `nbest` likeliest answers over all windows, each text once, as BERT's nbest_predictions.json.

        Args:
          outputs: as of `decide`.
          context: likewise.

        Returns:
          [{"text", "probability"}], the likeliest first: the softmax of their scores. "" is no answer; it is always
          one of them where questions may have none, and the only one where a window has no span.
        """
        candidates = [
            (float(score), context[int(start) : int(end)]) for window in outputs for score, start, end in window[1:]
        ]
        if self.may_have_no_answer:
            candidates.append((min(float(window[0, 0]) for window in outputs), ""))
        scores: dict[str, float] = {}
        for score, text in sorted(candidates, key=lambda candidate: -candidate[0]):
            if math.isfinite(score):
                scores.setdefault(text, score)
        best = dict(itertools.islice(scores.items(), self.nbest))
        if self.may_have_no_answer or not best:
            best.setdefault("", scores.get("", 0.0))
        p = np.exp(-metrics.negative_log_softmax(np.array(list(best.values()))))
        return [{"text": text, "probability": round(float(probability), 6)} for text, probability in zip(best, p)]

    def _with_threshold(self, span: Found) -> Found:
        """No span where the threshold says so."""
        if self.may_have_no_answer and -span.score > (self.null_threshold or 0.0):
            return Found("", None, span.score)
        return span

    def loss(self, outputs: Sequence[np.ndarray], target: list[str]) -> float:
        """Mean over the windows of the loss of start and end of the first answer."""
        return float(np.mean([window[0, 1] for window in outputs]))

    def named(self, value: Found | list[str], row: Row, where: str) -> str | list[str]:
        """The text, "" for no answer; of a target all texts."""
        return self._with_threshold(value).text if isinstance(value, Found) else value

    def parsed(self, value: str | list[str]) -> Found | list[str]:
        if self.may_have_no_answer:
            raise NotImplementedError("squad_v2 wants the scores of the answers")
        return Found(value, None, math.inf if value else -math.inf) if isinstance(value, str) else value

    def text_of(self, row: Row, where: str) -> str:
        return self.texts(row, where)[0]

    def score(self, predictions: Sequence[Found], targets: Sequence[list[str]], metric: str) -> dict[str, float]:
        """SQuAD's metrics; of squad_v2 also the best that any threshold gives, and that threshold.

        Written answers have no scores that a threshold could part: their best values are those that they have.
        """
        texts = [prediction.text for prediction in predictions]
        if metric != "squad_v2":
            return metrics.score(metric, texts, targets, **self.options(metric))
        no_answer = [-prediction.score for prediction in predictions]
        threshold = self.null_threshold or 0.0
        options = {"no_answer": no_answer, "threshold": threshold, "best": True, **self.options(metric)}
        if all(map(math.isinf, no_answer)):
            values = metrics.score(metric, texts, targets, **options | {"best": False})
            return values | {f"best_{name}": values[name] for name in ("exact", "f1")}
        values = metrics.score(metric, texts, targets, **options)
        for name in ("best_exact_thresh", "best_f1_thresh"):
            # The official script says 0 where it is best to answer nothing, as if these were probabilities.
            if values[name] not in no_answer:
                values[name] = min(no_answer) - 1.0
        return values

    def target_text(self, row: Row, where: str) -> str:
        return next(iter(self.target(row, where)), "")

    def parse(self, text: str, row: Row, where: str) -> Found:
        return Found(text, None, math.inf if text else -math.inf)
