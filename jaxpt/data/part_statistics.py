"""Statistics of one task of a recipe: of its documents or labelled rows, split by split."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from jaxpt.config import Config
from jaxpt.data import tables
from jaxpt.data.labelled.examples import split_rows
from jaxpt.data.sources.base import Source
from jaxpt.data.sources.readers import PAIR_SEPARATOR
from jaxpt.data.sources.rows import Rows
from jaxpt.data.statistics import Document, Split, strings
from jaxpt.data.tasks.base import LocatedRow
from jaxpt.data.tokenizers.base import Tokenizer

_CHUNK = 256  # documents that are tokenized together


def measure(
    config: Config,
    source: Source,
    tokenizer: Tokenizer | None,
    lengths: list[int],
    most: int | None,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Reads all splits of a task.

    Args:
      config: the recipe, as if this task were all.
      source: its documents or rows.
      tokenizer: the recipe's; None: lengths are in words.
      lengths: `data.length` of each phase.
      most: only the first so many documents of a split are read.
      say: is given lines of progress.

    Returns:
      {"found", "unit", "splits": {split: what `statistics.Split` has, "empty", "cut", "longer"}}, ready for JSON.

    Raises:
      UserError: names the file and line that is not as it should be.
    """
    splits: dict[str, Any] = {}
    train = None
    for split in ("train", "validation", *(("test",) if config.task and config.data.has_test else ())):
        statistics = Split(tokenizer, train)
        cut = _Cut(config, tokenizer, split)
        for chunk in _chunks(_rows(config, source, split), most):
            statistics.add([document for document, _ in chunk])
            cut.add([row for _, row in chunk])
            say(f"{split}: {statistics.documents:,} read")
        empty = source.counts.get(split, {}).get("empty")
        splits[split] = statistics.result() | {"empty": empty, "cut": cut.result()}
        if config.task is None and tokenizer is not None:
            splits[split]["longer"] = {str(length): statistics.lengths.above(length) for length in lengths}
        train = statistics if split == "train" else train
    return {
        "found": list(source.found),
        "unit": "documents" if config.task is None else "rows",
        "splits": splits,
    }


def _rows(config: Config, source: Source, split: str) -> Iterator[tuple[Document, LocatedRow | None]]:
    """Documents of a split; with a task each with its row."""
    if split == "test":
        yield from ((_of_row(config, row, split), row) for row in split_rows(config, split))
        return
    for file, number, text in source.documents(split):
        if isinstance(source, Rows):
            located = source.place(split, file, number, str(text))
            yield _of_row(config, located, split), located
        elif source.fields is not None:
            columns = dict(zip(source.fields, str(text).split(PAIR_SEPARATOR)))
            yield Document(str(text).replace(PAIR_SEPARATOR, "\n"), columns), None
        else:
            yield Document(text, {}), None


def _of_row(config: Config, located: LocatedRow, split: str) -> Document:
    """A labelled row. The rows of a test set may have no labels."""
    task, (row, where, _) = config.task, located
    columns = {name: strings(tables.column(row, name, where)) for name in task.columns()}
    content = task.content(row, where)
    has_labels = split != "test" or not hasattr(task, "label") or task.label in row.values
    labels = task.labels_in(row, where) if has_labels else []
    value = float(task.target(row, where)) if task.quantiles and has_labels else None
    text = " ".join(columns.values()) or " ".join(content)
    return Document(text, columns or {"text": text}, content, labels, value)


def _chunks(items: Iterator[Any], max_items: int | None) -> Iterator[list[Any]]:
    """Some items at a time, of the first `max_items`."""
    chunk: list[Any] = []
    for number, item in enumerate(items):
        if number == max_items:
            break
        chunk.append(item)
        if len(chunk) == _CHUNK:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


class _Cut:
    """How many rows the objective's own encoder cuts to `data.length`, or leaves out."""

    def __init__(self, config: Config, tokenizer: Tokenizer | None, split: str) -> None:
        self._tokenizer, self._is_train, self._encoder = tokenizer, split == "train", None
        if tokenizer is not None and config.task is not None and split != "test":
            self._encoder = config.objective.batches.encoder(config.data.length, tokenizer.vocabulary)
            self._like = self._encoder.like()
        self._examples = self._cut = self._left_out = 0

    def add(self, rows: Iterable[LocatedRow]) -> None:
        """Encodes rows as training does."""
        if self._encoder is None:
            return
        for record in self._encoder(rows, self._tokenizer, has_targets=True, train=self._is_train):
            is_left_out = not len(record.get("tokens", self._like))
            self._examples += not is_left_out
            self._left_out += is_left_out
            self._cut += bool(record["truncated"]) and not is_left_out

    def result(self) -> dict[str, Any] | None:
        if self._encoder is None:
            return None
        return {"examples": self._examples, "cut": self._cut, "left_out": self._left_out}
