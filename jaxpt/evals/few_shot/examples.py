"""From rows to examples: what the model reads and what is scored, with shots that are drawn per example."""

from __future__ import annotations

import hashlib
import itertools
import math
import os
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jaxpt.data import tables
from jaxpt.data.tables import Row
from jaxpt.errors import UserError
from jaxpt.evals.few_shot import templates
from jaxpt.evals.few_shot.task import HarnessTask

FIRST_ROWS = 20
"""Rows that `check_first_rows` looks at."""


class Example(NamedTuple):
    """A row of a task as texts."""

    id: Any
    """The row's `id` or `idx`, or its number."""
    contexts: tuple[str, ...]
    """Of each continuation, shots included; of a written answer the prompt."""
    continuations: tuple[str, ...]
    """What is scored; of rolling likelihood the text, of a similarity both texts."""
    choices: tuple[str, ...] = ()
    """The choices as they are in the row, without template."""
    gold: Any = None
    """Number of the right choice, the right answers, or the gold score."""
    group: str | None = None
    unconditional: str | None = None
    """A context that says nothing."""
    counted: str | None = None
    """Of rolling likelihood: the text whose words and bytes count, where it is not the one that is scored."""
    where: str = ""
    """The row's file and place in it, for messages."""


class Located(NamedTuple):
    """A row and where it stands."""

    row: Row
    where: str
    key: tuple[str, int] = ("", 0)
    """The file, whichever path names it, and the row's number in it: equal for a row that is read twice."""


def examples(
    task: HarnessTask, shots: int | None = None, limit: int | None = None, folder: str | None = None, seed: int = 0
) -> list[Example]:
    """The examples of a task.

    Args:
      task: the task.
      shots: examples shown before each; the task's by default. Each example's are drawn anew, by the seed, the task's
        name and the number of the row, so that they do not depend on the limit.
      limit: the first rows alone, of pairs of each group; a group of choices is not cut.
      folder: where files are looked for first.
      seed: of the draws.

    Returns:
      Examples in the order of the file.

    Raises:
      UserError: there is no data, no row counts, a row is not as the task says, or there are fewer rows than shots.
    """
    shots = task.num_shots(shots)
    rows = pool = _counted(task, rows_of(task, folder))
    if not rows:
        raise UserError(f"{task.source}: has no rows that count" + (f" (filter: {task.filter})" if task.filter else ""))
    if shots and (candidates := shot_rows(task, folder)) is not None:
        pool = _counted(task, candidates)
    numbers = {located.key: number for number, located in enumerate(pool)}
    is_own = any(located.key in numbers for located in rows)
    if shots > len(pool) - is_own:
        beside = " beside the one that is asked" if is_own else ""
        raise UserError(f"{task.source}: {shots} shots, but there are {len(pool) - is_own} rows{beside}; give fewer")
    return [
        _example(task, located, _prefix(task, _drawn(task, numbers.get(located.key), number, pool, shots, seed)))
        for number, located in _limited(task, rows, limit)
    ]


def rows_of(task: HarnessTask, folder: str | None) -> list[Located]:
    """The rows that are scored."""
    if files := _scored_files(task, folder, f"--data DIR or {task.name}.data.path=FILE"):
        return list(_read(task, files))
    return _tfds(task.data.tfds, task.data.split)


def _scored_files(task: HarnessTask, folder: str | None, hint: str) -> list[str]:
    """The files of the rows that are scored; [] where these are a set of TFDS."""
    data = task.data
    if data.path is not None and (files := _files(task, data.path, folder)):
        return files
    if data.tfds is None:
        missing = f"no file {data.path}" if data.path else "no data.path"
        searched = f"; looked in {', '.join(map(str, _folders(task, folder)))}" if data.path else ""
        raise UserError(f"{task.source}: {missing}, and no data.tfds{searched}; give {hint}")
    return []


def check_first_rows(task: HarnessTask, folder: str | None, hint: str) -> None:
    """Raises UserError where a task's files are not there, or its templates do not fit their first rows.

    Args:
      task: the task.
      folder: where files are looked for first.
      hint: how its files are given, for messages.
    """
    rows = _read(task, _scored_files(task, folder, hint))
    for located in _counted(task, list(itertools.islice(rows, FIRST_ROWS))):
        unprompted(task, located)


def shot_rows(task: HarnessTask, folder: str | None) -> list[Located] | None:
    """The rows that shots are drawn from, which may be scored too; None: those that are scored."""
    data = task.data
    is_tfds = data.tfds is not None and (data.path is None or not _files(task, data.path, folder))
    if data.shots_path is not None and not is_tfds:
        files = _files(task, data.shots_path, folder)
        if not files:
            raise UserError(f"{task.source}: data.shots_path: no file {data.shots_path}; give --data DIR")
        return list(_read(task, files))
    if is_tfds:
        return None if data.shots_split == data.split else _tfds(data.tfds, data.shots_split)
    return None


def _folders(task: HarnessTask, folder: str | None) -> list[Path]:
    return [*([Path(folder)] if folder else []), Path(task.source).parent, Path()]


def _files(task: HarnessTask, path: str, folder: str | None) -> list[str]:
    """The files that a path names; the packed one counts as the file itself."""
    if "://" in path or os.path.isabs(path):
        return tables.expand(path, f"{task.source}: data.path")
    for place in _folders(task, folder):
        for name in (path, f"{path}.gz"):
            file = place / name
            files = [file] if file.is_file() else sorted(place.glob(name)) if path else []
            if files:
                return tables.expand([str(file) for file in files], f"{task.source}: data.path")
    return []


def _read(task: HarnessTask, files: Sequence[str]) -> Iterator[Located]:
    settings = {"header": task.data.header, "quoted": task.data.quoted}
    options = {name: value for name, value in settings.items() if value is not None}
    for file in files:
        same = file if "://" in file else os.path.realpath(file)
        for number, row in enumerate(tables.read(file, **options)):
            yield Located(row, tables.where(file, row), (same, number))


def _tfds(name: str, split: str) -> list[Located]:
    rows = tables.read(name, "tfds", split=split)
    return [Located(row, tables.where(name, row, "tfds"), (f"{name} {split}", n)) for n, row in enumerate(rows)]


def _counted(task: HarnessTask, rows: list[Located]) -> list[Located]:
    if task.filter is None:
        return rows
    return [
        located
        for located in rows
        if templates.value(task.filter, located.row.values, f"{task.source}: filter: {located.where}")
    ]


def _limited(task: HarnessTask, rows: list[Located], limit: int | None) -> Iterator[tuple[int, Located]]:
    """(number, row) of the first rows: of each group of pairs; a question that has several rows is there as a whole."""
    group_counts: dict[str | None, int] = {}
    question: str | None = None
    for number, located in enumerate(rows):
        group = _group(task, located)
        counted = group if task.form == "pair" else None
        group_counts[counted] = group_counts.get(counted, 0) + 1
        is_of_last = task.form != "pair" and group is not None and group == question
        if limit is None or group_counts[counted] <= limit or is_of_last:
            question = group
            yield number, located


def _drawn(
    task: HarnessTask, excluded: int | None, number: int, pool: Sequence[Located], shots: int, seed: int
) -> list[Located]:
    """Shots of the row `number`; never the row itself, whose number in the pool is `excluded`."""
    if not shots:
        return []
    digest = hashlib.blake2b(f"{seed} {task.name} {number}".encode(), digest_size=8).digest()
    indices = random.Random(int.from_bytes(digest, "big")).sample(range(len(pool)), min(shots + 1, len(pool)))
    return [pool[at] for at in indices if at != excluded][:shots]


def _prefix(task: HarnessTask, shots: Sequence[Located]) -> str:
    """What stands before the context."""
    shot_texts = []
    for shot in shots:
        texts = unprompted(task, shot)
        right = texts.gold if isinstance(texts.gold, int) else 0
        context = texts.contexts[right if len(texts.contexts) > 1 else 0]
        shot_texts.append(f"{context}{texts.continuations[right if len(texts.continuations) > 1 else 0]}")
    parts = [*([task.instruction] if task.instruction else []), *shot_texts]
    return "".join(f"{part}{task.separator}" for part in parts)


def _example(task: HarnessTask, located: Located, prefix: str) -> Example:
    texts = unprompted(task, located)
    if not prefix:
        return texts
    return texts._replace(contexts=tuple(f"{prefix}{context}" for context in texts.contexts))


def unprompted(task: HarnessTask, one: Located) -> Example:
    """What a row asks, without shots before it.

    Args:
      task: the task.
      one: the row.

    Returns:
      The example.

    Raises:
      UserError: a template of the task does not fit the row.
    """
    make: Callable[..., Example] = {
        "multiple_choice": _of_choice, "pair": _of_pair, "similarity": _of_pair, "loglikelihood": _of_likelihood,
        "loglikelihood_rolling": _of_rolling, "generate_until": _of_generation,
    }[task.form]  # fmt: skip
    values = one.row.values
    row_id = tables.row_id(one.row)
    return make(_Row(task, one, values))._replace(id=row_id, group=_group(task, one), where=one.where)


def _group(task: HarnessTask, located: Located) -> str | None:
    if task.group is None:
        return None
    return templates.text(task.group, located.row.values, f"{task.source}: group: {located.where}")


class _Row(NamedTuple):
    """A row with its task."""

    task: HarnessTask
    located: Located
    values: dict[str, Any]

    def place(self, key: str) -> str:
        return f"{self.task.source}: {key}: {self.located.where}"

    def text(self, key: str, **more: Any) -> str:
        return templates.text(getattr(self.task, key), {**self.values, **more}, self.place(key))

    def value(self, key: str) -> Any:
        return templates.value(getattr(self.task, key), self.values, self.place(key))

    def choices(self) -> tuple[str, ...]:
        sources = self.task.choices
        if isinstance(sources, tuple):
            choices = [templates.text(source, self.values, self.place("choices")) for source in sources]
        else:
            choices = self.value("choices")
        if isinstance(choices, str) or not hasattr(choices, "__iter__") or len(choices := list(choices)) < 2:
            raise UserError(f"{self.place('choices')}: wants a list of two texts or more, got {choices!r}")
        for number, choice in enumerate(choices):
            if not isinstance(choice, str) or not choice.strip():
                raise UserError(f"{self.place('choices')}: choice {number} is empty or no text: {choice!r}")
        return tuple(choices)


def _of_choice(row: _Row) -> Example:
    choices, answer = row.choices(), row.value("answer")
    if isinstance(answer, str) and answer.isdecimal():
        answer = _number_or_text(row, answer, choices)
    if isinstance(answer, str):
        if answer not in choices:
            raise UserError(f"{row.place('answer')}: {answer!r} is none of the choices: {', '.join(choices)}")
        answer = choices.index(answer)
    if isinstance(answer, bool) or (isinstance(answer, float) and answer.is_integer()):  # neither NaN nor infinity
        answer = int(answer)
    if not isinstance(answer, int) or not 0 <= answer < len(choices):
        raise UserError(
            f"{row.place('answer')}: {answer!r} is no number of a choice; wants 0 to {len(choices) - 1}, or its text"
        )
    continuations = tuple(row.text("continuation", choice=choice) for choice in choices)
    for number, continuation in enumerate(continuations):
        if not continuation.strip():
            raise UserError(f"{row.place('continuation')}: choice {number} is empty")
    return Example(
        None,
        tuple(row.text("context", choice=choice) for choice in choices),
        continuations,
        choices, answer,
        unconditional=None if row.task.unconditional is None else row.text("unconditional"),
    )  # fmt: skip


def _number_or_text(row: _Row, answer: str, choices: tuple[str, ...]) -> int | str:
    """An answer of digits: the number of a choice, or a choice's text. Raises UserError where it could be both, so that
    no task has numbers in some rows and texts in others."""
    if answer not in choices:
        return int(answer)
    if int(answer) < len(choices) and choices[int(answer)] != answer:
        expression = row.task.answer if row.task.answer.isidentifier() else f"({row.task.answer})"
        listed = row.task.choices if isinstance(row.task.choices, str) else "[…]"
        raise UserError(
            f"{row.place('answer')}: {answer!r} is the number of a choice and the text of another; write "
            f"`{expression} | int` for the number, `{listed}.index({row.task.answer})` for the text"
        )
    return answer


def _of_pair(row: _Row) -> Example:
    texts = row.choices()
    if len(texts) != 2:
        raise UserError(f"{row.place('choices')}: wants two texts, got {len(texts)}")
    gold: Any = 0
    if row.task.form == "similarity":
        gold = row.value("answer")
        try:
            gold = float(gold)
        except (TypeError, ValueError):
            raise UserError(f"{row.place('answer')}: {gold!r} is no number") from None
        if not math.isfinite(gold):
            raise UserError(f"{row.place('answer')}: {gold!r} is not finite; wants a score, such as 3.5")
    return Example(None, ("", ""), texts, texts, gold)


def _of_likelihood(row: _Row) -> Example:
    continuation = row.text("continuation")
    if not continuation.strip():
        raise UserError(f"{row.place('continuation')}: is empty")
    return Example(None, (row.text("context"),), (continuation,), gold=0)


def _of_rolling(row: _Row) -> Example:
    counted = None if row.task.counted is None else row.text("counted")
    return Example(None, ("",), (row.text("text"),), counted=counted)


def _of_generation(row: _Row) -> Example:
    answers = row.value("answers")
    golds = [answers] if isinstance(answers, str) else list(answers) if isinstance(answers, Iterable) else []
    if not golds or not all(isinstance(gold, str) for gold in golds):
        raise UserError(f"{row.place('answers')}: wants a text or a list of texts, got {answers!r}")
    continuation, stripped = row.text("continuation", choice=golds[0]), [gold.strip() for gold in golds]
    return Example(None, (row.text("context"),), (continuation,), gold=stripped)  # as `scoring.extracted` strips
