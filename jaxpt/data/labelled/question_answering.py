"""Questions about a context, as records: windows over the context, and the tokens where the answer starts and ends."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from jaxpt.data import tables
from jaxpt.data.labelled.layout import Record, TextLayout, lay, record, record_like
from jaxpt.data.labelled.windows import most_context, windows
from jaxpt.data.tasks.base import LocatedRow
from jaxpt.data.tasks.question_answering import QuestionAnsweringTask
from jaxpt.data.tokenizers.base import Encoded, Tokenizer
from jaxpt.errors import UserError


@dataclasses.dataclass(frozen=True)
class QuestionAnsweringEncoder:
    """From rows to records of a `QuestionAnsweringTask`, one for each window of a context."""

    task: QuestionAnsweringTask
    layout: TextLayout
    length: int
    """Maximum number of tokens in a record."""
    stride: int
    """Tokens from one window's start to the next."""
    max_query: int
    """Maximum number of tokens of a question; the rest is cut off."""
    context_first: bool
    """The question follows the context (XLNet)."""
    null_first: bool
    """The token that stands for no answer: the record's first, or its last."""

    def __call__(
        self, rows: Iterable[LocatedRow], tokenizer: Tokenizer, has_targets: bool, train: bool
    ) -> Iterator[Record]:
        """Encodes rows, in their order.

        Args:
          rows: the rows.
          tokenizer: the run's.
          has_targets: False: the rows need no answers.
          train: not used.

        Yields:
          {"tokens", "token_types" int32 [n], "positions" int32 [2]: first and last token of the first answer, or twice
          the null token where the window has not all of it, "truncated" int32 []: the question was cut, "origin" int64
          [2]}, and for `best_spans`: "context_start" int, the place of the window's first token of context, "spans"
          int64 [c, 2], the characters of each of these tokens, "most_context" bool [c]: a token has no more context in
          another window, and "null" int.

        Raises:
          UserError: names the row.
        """
        for chunk in tables.chunks(rows):
            texts = [self.task.texts(row.row, row.where) for row in chunk]
            questions = tokenizer.encode_batch([question for question, _ in texts])
            contexts = list(dict.fromkeys(context for _, context in texts))
            encoded = dict(zip(contexts, tokenizer.encode_with_offsets(contexts)))
            for row, question, (_, context) in zip(chunk, questions, texts):
                spans = self.task.spans(row.row, row.where) if has_targets else []
                answer = token_span(encoded[context].offsets, *spans[0], row.where) if spans else None
                yield from self._records(question, encoded[context], answer, row)

    def _records(
        self, question: Sequence[int], context: Encoded, answer: tuple[int, int] | None, row: LocatedRow
    ) -> Iterator[Record]:
        query = question[: self.max_query]
        room = self.layout.room(self.length, 2) - len(query)
        spans = windows([1] * len(context.ids), room, self.stride)
        window_of = most_context(spans, np.arange(len(context.ids)))
        for number, (start, end) in enumerate(spans):
            texts = [query, context.ids[start:end]]
            laid = lay(self.layout, texts[::-1] if self.context_first else texts)
            at = laid.starts[0 if self.context_first else 1]
            null = 0 if self.null_first else len(laid.tokens) - 1
            is_here = answer is not None and start <= answer[0] and answer[1] < end
            positions = [at + token - start for token in answer] if is_here else [null, null]
            is_cut = len(question) > len(query)
            window = record(row, is_cut, tokens=laid.tokens, token_types=laid.types, positions=positions)
            yield window | {
                "context_start": at,
                "spans": context.offsets[start:end],
                "most_context": window_of[start:end] == number,
                "null": null,
            }

    def like(self) -> Record:
        """Arrays of the dtypes of a record; shape (0,) stands for any length."""
        return record_like("tokens", "token_types", "positions")


def token_span(offsets_Nx2: np.ndarray, start: int, end: int, where: str) -> tuple[int, int]:
    """The tokens of a span of characters.

    Args:
      offsets_Nx2: characters of each token, ascending.
      start: first character.
      end: one behind the last character.
      where: file and row, for messages.

    Returns:
      (first token that has a character of the span, last one).

    Raises:
      UserError: no token has one.

    Example:
      >>> token_span(np.array([(0, 3), (4, 7), (7, 9), (10, 12)]), 4, 9, "row 1")
      (1, 2)
    """
    first = int(np.searchsorted(offsets_Nx2[:, 1], start, "right"))
    last = int(np.searchsorted(offsets_Nx2[:, 0], end)) - 1
    if first > last:
        raise UserError(f"{where}: the vocabulary has no token for the answer at answer_start {start}")
    return first, last


def best_spans(logits_Lx2: np.ndarray, record: Mapping[str, Any], n_best: int, max_answer: int) -> np.ndarray:
    """The best spans of a window, by BERT's rules: among the `n_best` starts and ends of the context, an end not before
    its start, at most `max_answer` tokens, and a start that has not more context in another window.

    Args:
      logits_Lx2: of start and end, for each token of the record.
      record: as the encoder makes it.
      n_best: starts and ends that are tried, and most spans of the result.
      max_answer: most tokens of an answer.

    Returns:
      float64 [1 + spans, 3]: (score of no answer, loss of the record's own "positions", 0), and (score, first
      character, one behind the last) of each span, the best first. Where there is no span, one of the score −inf.
    """
    logits_Lx2 = logits_Lx2.astype(np.float64)
    at, spans = record["context_start"], record["spans"]
    null = (logits_Lx2[record["null"]].sum(), span_loss(logits_Lx2[: len(record["tokens"])], record["positions"]), 0)
    context = logits_Lx2[at : at + len(spans)]
    allowed = np.flatnonzero(record["most_context"])
    starts = allowed[np.argsort(-context[allowed, 0], kind="stable")[:n_best]]
    ends = np.argsort(-context[:, 1], kind="stable")[:n_best]
    tokens = ends - starts[:, None]
    is_valid = (tokens >= 0) & (tokens < max_answer) & (spans[ends, 1] > spans[starts, 0][:, None])
    score = np.where(is_valid, context[starts, 0][:, None] + context[ends, 1], -np.inf)
    if not is_valid.any():
        return np.array([null, (-np.inf, 0, 0)])
    best = np.argsort(-score, axis=None, kind="stable")[: min(n_best, np.count_nonzero(is_valid))]
    s, e = np.unravel_index(best, score.shape)
    return np.vstack([null, np.stack([score[s, e], spans[starts[s], 0], spans[ends[e], 1]], axis=1)])


def span_loss(logits_Lx2: np.ndarray, positions: np.ndarray) -> float:
    """½ (−log softmax(start)[first] − log softmax(end)[last]).

    Args:
      logits_Lx2: of start and end, for each token.
      positions: first and last token of the span: int [2].

    Example:
      >>> bool(span_loss(np.zeros((4, 2)), np.array([1, 2])) == np.log(4))
      True
    """
    top = logits_Lx2.max(0)
    normalizers = top + np.log(np.exp(logits_Lx2 - top).sum(0))
    return float((normalizers - logits_Lx2[positions, [0, 1]]).mean())
