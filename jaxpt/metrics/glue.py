"""GLUE: the files that its leaderboard takes. The columns of its own files are in `configs/finetune/glue`."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from jaxpt.errors import UserError
from jaxpt.metrics.text_tasks import TASKS


@dataclasses.dataclass(frozen=True)
class GlueTask:
    """A task of GLUE, as gluebenchmark.com distributes it."""

    name: str
    """TFDS's."""
    folder: str
    """Of the distribution."""
    labels: tuple[str, ...]
    """Values of the label column in the order of the class ids, which are TFDS's; () for numbers."""
    file: str = ""
    """The file that the leaderboard takes, where it is not named like the folder."""

    @property
    def words(self) -> tuple[str, ...]:
        """The labels as words, in the same order."""
        return TASKS[self.name].labels

    @property
    def submission(self) -> str:
        """Name of the file that the leaderboard takes."""
        return self.file or f"{self.folder}.tsv"


_BINARY, _RTE, _NLI = ("0", "1"), TASKS["rte"].labels, TASKS["mnli"].labels
_TASKS = (
    GlueTask("cola", "CoLA", _BINARY), GlueTask("sst2", "SST-2", _BINARY), GlueTask("mrpc", "MRPC", _BINARY),
    GlueTask("stsb", "STS-B", ()), GlueTask("qqp", "QQP", _BINARY),
    GlueTask("mnli_matched", "MNLI", _NLI, "MNLI-m.tsv"), GlueTask("mnli_mismatched", "MNLI", _NLI, "MNLI-mm.tsv"),
    GlueTask("qnli", "QNLI", _RTE), GlueTask("rte", "RTE", _RTE), GlueTask("wnli", "WNLI", _BINARY),
    GlueTask("ax", "AX", _NLI),
)  # fmt: skip
GLUE = {task.name: task for task in _TASKS}
"""The nine tasks, MNLI's two test sets, and the diagnostic set (predicted by a model of MNLI), by TFDS's names."""


def glue_task(name: str) -> GlueTask:
    """A task by TFDS's name, or by that of its folder or its submission ("SST-2", "MNLI-m").

    Example:
      >>> glue_task("STS-B").name, glue_task("MNLI-mm").name
      ('stsb', 'mnli_mismatched')
    """
    if name in GLUE:
        return GLUE[name]
    for task in GLUE.values():
        if name.lower() in (task.submission.removesuffix(".tsv").lower(), task.folder.lower()):
            return task
    raise UserError(f"GLUE has no task {name!r}; one of: {', '.join(GLUE)}")


def glue_test(name: str | None, file: str) -> str:
    """The test set of GLUE that a file is, for a model of a task.

    Args:
      name: the model's task, of any GLUE's.
      file: its name tells MNLI's test_matched.tsv, test_mismatched.tsv and diagnostic.tsv (AX) apart, whichever of them
        the task is named after; a file of another name is what the task's name says.

    Raises:
      UserError: the task is none of GLUE's.

    Example:
      >>> glue_test("mnli", "test_mismatched.tsv"), glue_test("mnli", "AX/diagnostic.tsv"), glue_test("RTE", "test.tsv")
      ('mnli_mismatched', 'ax', 'rte')
    """
    if name is None:
        raise UserError(f"task.name is missing; --glue wants one of: {', '.join(GLUE)}")
    task, last = glue_task(name), file.replace("\\", "/").rpartition("/")[2].lower()
    if task.folder not in ("MNLI", "AX"):
        return task.name
    if last.startswith(("diagnostic", "ax")):
        return "ax"
    return next((f"mnli_{kind}" for kind in ("mismatched", "matched") if kind in last), task.name)


def glue_labels(name: str, labels: Sequence[str], names: Sequence[str] | None = None) -> tuple[str, ...]:
    """What the leaderboard calls the labels of a model.

    Args:
      name: the task.
      labels: values of the label column; numbers are TFDS's class ids.
      names: what they mean; by default they say it themselves.

    Raises:
      UserError: a label is none of GLUE's, or they are not as many.

    Example:
      >>> glue_labels("rte", ["0", "1"]), glue_labels("cola", ["no", "yes"], ["unacceptable", "acceptable"])
      (('entailment', 'not_entailment'), ('0', '1'))
    """
    task, leaderboard_labels = glue_task(name), []
    for label, named in zip(labels, names or labels):
        words = [value for value, word in zip(task.labels, task.words) if label == value or named in (value, word)]
        if not words and label.isdecimal() and int(label) < len(task.labels):
            words = [task.labels[int(label)]]
        if not words:
            known = ", ".join(dict.fromkeys([*task.labels, *task.words]))
            raise UserError(f"task.labels: {label!r} is none of {task.submission}'s labels: {known}")
        leaderboard_labels += words[:1]
    if sorted(leaderboard_labels) != sorted(task.labels):
        raise UserError(f"task.labels: {', '.join(labels)} are not the labels of {task.submission}: "
                        f"{', '.join(task.labels)}")  # fmt: skip
    return tuple(leaderboard_labels)


def glue_submission(name: str, ids: Sequence, predictions: Sequence, default: str | None = None) -> list[str]:
    """The lines of the file that GLUE's leaderboard takes, `glue_task(name).submission`.

    Args:
      name: the task.
      ids: values of the test file's column `index`.
      predictions: one for each id: class ids, values of the files, or words; numbers for STS-B, which are cut to 0…5.
      default: the label of predictions that are none (unparseable text); None: that is an error.

    Returns:
      Lines without their ends, the header first.

    Raises:
      UserError: not as many ids as predictions, an id twice, or a prediction that is no label.

    Example:
      >>> glue_submission("rte", [0, 1], [1, "entailment"])
      ['index\\tprediction', '0\\tnot_entailment', '1\\tentailment']
      >>> glue_submission("stsb", [0, 1], [5.2, 1.2345])
      ['index\\tprediction', '0\\t5.000', '1\\t1.234']
    """
    task = glue_task(name)
    if len(ids) != len(predictions):
        raise UserError(f"{task.submission}: {len(predictions)} predictions for {len(ids)} ids; there is one for each")
    if len(set(ids)) < len(ids):
        twice = next(i for n, i in enumerate(ids) if i in ids[:n])
        raise UserError(f"{task.submission}: the id {twice!r} stands twice; each row of the test file stands once")
    lines = (f"{i}\t{_written(task, prediction, default)}" for i, prediction in zip(ids, predictions))
    return ["index\tprediction", *lines]


def _written(task: GlueTask, prediction: Any, default: str | None) -> str:
    """A prediction as the leaderboard has it."""
    if not task.labels:
        return _written_number(task, prediction, default)
    if prediction in task.labels:
        return prediction
    if prediction in task.words:
        return task.labels[task.words.index(prediction)]
    if hasattr(prediction, "__index__") and 0 <= int(prediction) < len(task.labels):
        return task.labels[int(prediction)]
    if default is None:
        raise UserError(f"{task.submission}: the prediction {prediction!r} is none of: {', '.join(task.labels)}")
    return _written(task, default, None)


def _written_number(task: GlueTask, prediction: Any, default: str | None) -> str:
    """A number as the leaderboard has it."""
    try:
        number = float(prediction)
    except (TypeError, ValueError):
        number = math.nan
    if math.isfinite(number):
        return f"{min(max(number, 0.0), 5.0):.3f}"
    if default is None:
        raise UserError(f"{task.submission}: the prediction {prediction!r} is no finite number")
    return _written_number(task, default, None)
