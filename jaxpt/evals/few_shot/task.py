"""A task of the harness: where its rows are, what the model reads, what counts as right.

description: the last word of a passage
data: {path: lambada_openai.jsonl, tfds: lambada, split: test}
form: loglikelihood
context: "{{ context }}"
continuation: " {{ continuation }}"
metrics: [acc, perplexity]
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

import jaxpt
from jaxpt.config import Frozen, LanguageCode, NonNegativeInt, Overrides, PositiveInt
from jaxpt.config.files import override, parsed, read
from jaxpt.config.kinds import nearest
from jaxpt.errors import UserError
from jaxpt.evals.few_shot import measures
from jaxpt.metrics import check_options, check_value_names
from jaxpt.runtime import linear_regex

DEFAULT_METRIC = {
    "multiple_choice": "acc", "pair": "acc", "loglikelihood": "acc", "loglikelihood_rolling": "token_perplexity",
    "generate_until": "exact_match", "similarity": "spearman",
}  # fmt: skip
"""The metric of a task that names none, by its form."""
_SHOWN = ("instruction", "separator", "shots")
_KEYS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "multiple_choice": (("choices", "answer"), ("context", "continuation", "unconditional", *_SHOWN)),
    "pair": (("choices",), _SHOWN),
    "loglikelihood": (("continuation",), ("context", *_SHOWN)),
    "loglikelihood_rolling": (("text",), ("counted",)),
    "generate_until": (
        ("answers",), ("context", "continuation", *_SHOWN, "stop", "max_new_tokens", "extract", "language"),
    ),
    "similarity": (("choices", "answer"), ()),
}  # fmt: skip
"""By form: the keys that a task needs, and those that have an effect besides. Keys of no form have one in all."""
_OLD = {
    "": {"where": "filter", "description_context": "instruction"},
    "form: ": {
        "choice": "multiple_choice", "likelihood": "loglikelihood", "rolling": "loglikelihood_rolling",
        "generation": "generate_until",
    },
    "metrics: ": {"acc_context": "acc_mutual_info", "groups": "acc_all"},
}  # fmt: skip
"""Earlier names of keys, forms and metrics."""


class TaskData(Frozen):
    """Where a task's rows are: a file, or a set of TFDS."""

    path: str | None = None
    """A file or a glob (.jsonl, .json, .csv, .tsv, .parquet, also .gz, or a .zip of them), looked for in the directory
    of `--data`, then beside the task's file, then from the current directory on."""
    tfds: str | None = None
    """Name of a TFDS set, read where there is no `path`, or its file is not there."""
    split: str = "validation"
    """The set's split."""
    shots_path: str | None = None
    """Rows that examples are drawn from; by default those of `path`, of which the scored row is left out."""
    shots_split: str = "train"
    """The set's split that examples are drawn from."""
    header: tuple[str, ...] | None = None
    """Names of the columns of a TSV or CSV file without a header line."""
    quoted: bool | None = None
    """Fields of TSV and CSV files may stand in quotation marks; by default those of CSV."""


class HarnessTask(Frozen):
    """A task. Templates are Jinja over the columns of a row; expressions are Jinja without braces."""

    name: str
    """How results and their files call it, without `/`; the file's name by default."""
    description: str = ""
    """What is asked, in a line."""
    data: TaskData = TaskData()
    form: Literal[
        "multiple_choice", "pair", "loglikelihood", "loglikelihood_rolling", "generate_until", "similarity"
    ]  # fmt: skip
    """`multiple_choice`: the likeliest of several continuations. `pair`: the likelier of two texts, the first is right.
    `loglikelihood`: of one continuation. `loglikelihood_rolling`: of whole texts. `generate_until`: a written answer.
    `similarity`: the cosine of two texts' embeddings."""
    context: str = ""
    """Template of what the model reads before; `choice` is the text of a choice, where contexts differ by choice."""
    continuation: str = " {{ choice }}"
    """Template of what is scored after the context: of `multiple_choice` for each choice, of `loglikelihood` once, and
    what a shot shows as its answer (`generate_until`: of the first right answer, which is `choice`)."""
    choices: str | tuple[str, ...] | None = None
    """Of `multiple_choice`: an expression that gives a list of texts, such as `[sol1, sol2]`, or a list of templates.
    Of `pair` and `similarity`: both texts."""
    answer: str | None = None
    """Expression of the right choice: its number from 0 on, or its text; a text that is the number of another choice is
    refused. Of `similarity` the gold score."""
    answers: str | None = None
    """Of `generate_until`: expression of the right answer, or of a list of them."""
    text: str | None = None
    """Of `loglikelihood_rolling`: template of the text."""
    counted: str | None = None
    """Of `loglikelihood_rolling`: template of the text whose words and bytes count, where `text` is a cleaned one; by
    default `text`."""
    unconditional: str | None = None
    """Template of a context that says nothing, such as `Answer:`, for `acc_mutual_info`: the likelihood is divided by
    that after this context (GPT-3)."""
    instruction: str = ""
    """Text before the shots."""
    separator: str = "\n\n"
    """Between shots, and before the context."""
    shots: NonNegativeInt = 0
    """Shots without `--shots`."""
    group: str | None = None
    """Template of the group of a row (a paradigm, a question): `acc` is also reported by group, and as the mean over
    groups; `acc_all` is the share of groups whose rows are all right."""
    filter: str | None = None
    """Expression that is true of the rows that count."""
    stop: tuple[str, ...] = ("\n",)
    """Of `generate_until`: strings that end an answer."""
    max_new_tokens: PositiveInt = 64
    """Of `generate_until`."""
    extract: str | None = None
    """Of `generate_until`: a regular expression of RE2; its first group (or the match) in the text is the answer."""
    metrics: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    """Metrics of the form, see `measures`; the first is what a report shows."""
    metric_options: Overrides = ()
    """Options of metrics, such as {bleu: {tokenize: intl}}; jaxpt/data/tasks/README.md has a table of them."""
    language: LanguageCode | None = None
    """Code of the answers' language, which chooses how metrics split them into words; by default found by their
    letters."""
    source: str = ""
    """Where the task's file is, for messages."""

    @property
    def scored(self) -> tuple[str, ...]:
        """Names of the metrics."""
        return self.metrics or (DEFAULT_METRIC[self.form],)

    def num_shots(self, shots: int | None) -> int:
        """How many examples are shown when `shots` are asked for; None: the task's own number."""
        return 0 if not self.has_shots else self.shots if shots is None else shots

    @property
    def has_shots(self) -> bool:
        """True if examples can be shown before a text."""
        return "shots" in _KEYS[self.form][1]

    def check(self) -> None:
        """Raises UserError for a task that lacks what its form needs, has a key that its form does not read, or whose
        metrics or `extract` are wrong."""
        if re.search(r"[/\\\x00-\x1f]", self.name):
            raise UserError(f"{self.source}: name: {self.name!r}: results are files of this name; leave out / and \\")
        self._check_keys()
        scored = {}
        for metric in self.scored:
            try:
                scored[metric] = measures.named(metric, self.form)
            except UserError as error:
                why = str(error).removeprefix(f"{metric}: ")
                raise UserError(f"{self.source}: metrics: {metric}: {why}") from None
        check_value_names(scored, f"{self.source}: metrics")
        check_options(self.metric_options, self.scored, f"{self.source}: metric_options")
        if not all(self.stop):
            raise UserError(f"{self.source}: stop: has an empty text, which ends nothing; wants texts such as '.'")
        if self.extract is not None:
            linear_regex.check(self.extract, f"{self.source}: extract")
        if "acc_mutual_info" in self.scored and self.unconditional is None:
            raise UserError(f"{self.source}: metrics: acc_mutual_info needs unconditional, such as 'Answer:'")
        if "acc_all" in self.scored and self.group is None:
            raise UserError(f"{self.source}: metrics: acc_all needs group")

    def _check_keys(self) -> None:
        needed, optional = _KEYS[self.form]
        for key in needed:
            if not getattr(self, key):
                raise UserError(f"{self.source}: key {key} is missing; a task of form {self.form} needs it")
        others = {key for keys in _KEYS.values() for key in itertools.chain(*keys)} - {*needed, *optional}
        for key, field in HarnessTask.model_fields.items():
            if key in others and getattr(self, key) != field.default:
                raise UserError(f"{self.source}: key {key}: has no effect in form {self.form}; leave it out")


def shipped() -> dict[str, Path]:
    """The files by name of the tasks of the current directory's `configs/tasks`, and of the repository of jaxpt."""
    folders = (Path(jaxpt.__file__).parent.parent / "configs/tasks", Path("configs/tasks"))
    return {path.stem: path for folder in folders for path in sorted(folder.glob("*.yaml"))}


def load(name: str, overrides: Sequence[str] = (), key: str = "--tasks") -> HarnessTask:
    """Reads a task.

    Args:
      name: of a shipped task (`lambada`), or the path of a YAML file.
      overrides: `key=value`, such as `data.path=my.jsonl`.
      key: where the name stands, for messages; "" leaves it out.

    Returns:
      The task, checked.

    Raises:
      UserError: no such task, or a key is not as it must be; names the file and the key.

    Example:
      >>> load("lambada").metrics
      ('acc', 'perplexity')
    """
    path = _path(name, key)
    tree, origin, _ = read(path)
    tree: dict[str, Any] = {"name": path.stem, "source": str(path), **tree}
    for item in overrides:
        override(tree, origin, item)
    _refuse_old_names(tree, path)
    task = parsed(HarnessTask, tree, origin, str(path))
    task.check()
    return task


def _refuse_old_names(tree: dict[str, Any], path: Path) -> None:
    """Raises UserError for a key, a form or a metric that has another name now."""
    named = {"": list(tree), "form: ": [tree.get("form")], "metrics: ": tree.get("metrics")}
    for key, names in named.items():
        if old := next((name for name in names or () if isinstance(name, str) and name in _OLD[key]), None):
            raise UserError(f"{path}: {key}{old} is now called {_OLD[key][old]}")


def load_all(names: Sequence[str], overrides: Sequence[str] = (), key: str = "--tasks") -> list[HarnessTask]:
    """Reads several tasks.

    Args:
      names: as `load`.
      overrides: `TASK.key=value`, as `overrides_of`.
      key: as of `load`.

    Raises:
      UserError: as `load` and `overrides_of`, or two tasks have one name, by which results are called.

    Example:
      >>> [one.shots for one in load_all(["lambada", "piqa"], ["piqa.shots=2"])]
      [0, 2]
    """
    tasks: dict[str, HarnessTask] = {}
    by_name = overrides_of(names, overrides, key)
    for name in names:
        task = load(name, by_name[name], key)
        if (other := tasks.setdefault(task.name, task)) is not task:
            raise UserError(
                f"{task.source}: is named {task.name}, as {other.source} is; give it another name (key name)"
            )
    return list(tasks.values())


def _path(name: str, key: str) -> Path:
    prefix = f"{key}: " if key else ""
    if name.endswith((".yaml", ".yml")):
        if not Path(name).is_file():
            raise UserError(f"{prefix}{name}: no such file")
        return Path(name)
    tasks = shipped()
    if name not in tasks:
        raise UserError(f"{prefix}{name}: no such task{nearest(name, sorted(tasks))}; or name a YAML file")
    return tasks[name]


def overrides_of(names: Sequence[str], overrides: Sequence[str], key: str = "--tasks") -> dict[str, list[str]]:
    """The overrides of each task, without its name.

    Args:
      names: of tasks, or their files.
      overrides: `TASK.key=value`; TASK is the name of a task, or that of its file where no task is named so.
      key: as of `load`.

    Raises:
      UserError: there is no such task, or an override is none of theirs.

    Example:
      >>> overrides_of(["piqa", "lambada"], ["piqa.data.path=a.jsonl", "lambada.shots=1"])
      {'piqa': ['data.path=a.jsonl'], 'lambada': ['shots=1']}
    """
    by_name: dict[str, list[str]] = {name: [] for name in names}
    if not overrides:
        return by_name
    paths = {name: _path(name, key) for name in names}
    owners: dict[str, list[str]] = {}
    for name, path in paths.items():
        owners.setdefault(str(read(path)[0].get("name", path.stem)), []).append(name)
    task_names = sorted(owners)
    for name, path in paths.items():
        if path.stem not in task_names:
            owners.setdefault(path.stem, []).append(name)
    for item in overrides:
        owner = max((known for known in owners if item.startswith(f"{known}.")), key=len, default=None)
        if owner is None:
            raise UserError(f"{item}: wants TASK.key=value; TASK is one of {', '.join(task_names)}")
        for name in owners[owner]:
            by_name[name].append(item.removeprefix(f"{owner}."))
    return by_name
