"""Recipes as files: what a recipe leaves out is taken from the model it starts from, and from its data.

model, data.tokenizer         of `init_from.path`, where the recipe names no kind
model.vocab_size              grows to what data.tokenizer.add_tokens, or a vocabulary that extends the model's, need
task.labels                   of the training set, in a stable order; a run of the same files and columns that has a
                              checkpoint keeps its own
task.most_choices             of the training set; likewise
objective.class_weights       `balanced`: from the counts of the rows that are trained on
objective.opening             of ULMFiT's classifier `eos`; a run that began without it keeps its own
train.trainable               with train.lora the head of the task too; a run that began without it keeps it frozen
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxpt import config as configs
from jaxpt import errors
from jaxpt.config import Config
from jaxpt.config.files import read
from jaxpt.config.plain import merge
from jaxpt.data import tables
from jaxpt.data.labelled.examples import split_rows
from jaxpt.data.labelled.files import RowFile, files
from jaxpt.data.parts import each_task, named
from jaxpt.data.tables.rows import EmptyLabelError, check_empty_labels
from jaxpt.data.tasks.base import Task
from jaxpt.errors import UserError, shown
from jaxpt.runtime import hub
from jaxpt.train.run_dir import has_checkpoint

Tree = dict[str, Any]


def load(
    path: str | Path,
    overrides: Sequence[str] = (),
    where: str = "command line",
    report: Callable[[str], None] = lambda line: None,
    origin: Callable[[Path, Any], tuple[Tree, Tree]] | None = None,
) -> Config:
    """`jaxpt.config.load` for recipes that may leave out model, tokenizer and labels.

    Args:
      path: a YAML file, or the directory of a run.
      overrides: `key=value`.
      where: where the overrides stand, for messages.
      report: is given lines for the user.
      origin: gives model and tokenizer of `init_from.path` and the recipe's data.tokenizer.path; by default
        `origin_of`.

    Returns:
      The frozen configuration, complete: the run saves it, and needs neither `init_from.path` nor the training set
      again to know its labels.

    Raises:
      UserError: as `jaxpt.config.load`; the model to start from is not there; a label of a single kind.

    Example: `load("configs/finetune/roberta/sst2.yaml", ["init_from.path=runs/roberta", "data.path=train.tsv"])`
    """
    config = configs.load(path, overrides, where, report, complete=lambda tree: with_room(inherit(tree, origin)))
    return with_task_values(config)


def load_data(
    path: str | Path, overrides: Sequence[str] = (), report: Callable[[str], None] = lambda line: None
) -> tuple[Config, bool]:
    """`load` for what only reads the data: a recipe of fine-tuning need not say which model it starts from.

    Args:
      path: a YAML file, or the directory of a run.
      overrides: `key=value`.
      report: is given lines for the user.

    Returns:
      (the configuration, whether the recipe says which model and tokenizer it has; else others stand in their place).

    Raises:
      UserError: as `load`.
    """
    is_named = True

    def complete(tree: Tree) -> Tree:
        nonlocal is_named
        _check_mappings(tree)
        no_model = "kind" not in (tree.get("model") or {}) and (tree.get("init_from") or {}).get("path") is None
        is_named = tree.get("task") is None or not no_model
        if is_named:
            return with_room(inherit(tree))
        tokenizer = merge({"kind": "wordpiece"}, (tree.get("data") or {}).get("tokenizer") or {})
        return {**tree, "model": dict(_STAND_IN), "data": {**(tree.get("data") or {}), "tokenizer": tokenizer}}

    config = configs.load(path, overrides, report=report, complete=complete)
    return with_task_values(config), is_named


_STAND_IN = {"kind": "bert", "vocab_size": 30522, "layers": 12, "embed_dim": 768, "heads": 12, "mlp_dim": 3072}


def inherit(tree: Tree, origin: Callable[[Path, Any], tuple[Tree, Tree]] | None = None) -> Tree:
    """Model and tokenizer of `init_from.path`, under what the recipe says of them.

    Args:
      tree: plain values of a recipe.
      origin: as in `load`.

    Returns:
      A changed copy; the tree itself where it names its model, or has no task and starts from nothing.
    """
    _check_mappings(tree)
    source, model = (tree.get("init_from") or {}).get("path"), tree.get("model") or {}
    if "kind" in model or (tree.get("task") is None and source is None):
        return tree
    if source is None:
        raise UserError(
            "init_from.path: key init_from.path is missing: a run or a directory of Hugging Face that the model is "
            "taken from; or name a model: model.kind"
        )
    if not isinstance(source, str):
        raise UserError(f"init_from.path: wants a path, got {shown(source)}")
    section = tree.get("data") or {}
    settings = section.get("tokenizer") or {}
    source_model, tokenizer = (origin or origin_of)(Path(source), settings.get("path"))
    tokenizer = tokenizer if "kind" not in settings else {}
    return {**tree, "model": merge(source_model, model), "data": {**section, "tokenizer": merge(tokenizer, settings)}}


def _check_mappings(tree: Tree) -> None:
    """Raises UserError where a section that is read before the validation is no mapping."""
    sections = {key: tree.get(key) for key in ("init_from", "model", "data")}
    if isinstance(sections["data"], dict):
        sections["data.tokenizer"] = sections["data"].get("tokenizer")
    for key, section in sections.items():
        if section is not None and not isinstance(section, dict):
            raise UserError(f"{key}: wants a mapping of keys to values, got {shown(section)}")


def origin_of(path: Path, vocabulary: Any = None) -> tuple[Tree, Tree]:
    """`model` and `data.tokenizer` of a run or a directory that can be imported.

    Args:
      path: the directory.
      vocabulary: the recipe's data.tokenizer.path, for a directory that has none (T5X, MaxText).

    Returns:
      (model, data.tokenizer).
    """
    run_dir = configs.run_dir_of(path)
    if (run_dir / "config.yaml").is_file():
        tree, _, _ = read(run_dir / "config.yaml")
        if (tree.get("train") or {}).get("phases"):  # the last one may have other positions
            from jaxpt.train import checkpoint

            tree["model"] = configs.model_at(configs.load(run_dir), checkpoint.find(path)[1]).model_dump(mode="json")
        tokenizer = dict(tree["data"]["tokenizer"])
        if (run_dir / "tokenizer").is_dir():  # which has the run's add_tokens
            tokenizer |= {"path": str(run_dir / "tokenizer"), "add_tokens": []}
        tokenizer.pop("vocab_size", None)
        return tree["model"], tokenizer
    from jaxpt.train import foreign

    hub.local(path, key="init_from.path")
    if (reader := foreign.reader(path)) is None:
        raise UserError(f"init_from.path: {foreign.refusal(path)}")
    from jaxpt.data import tokenizers

    model = reader.open(path, partial=True).network.config
    extra_ids = None if model.kind == "t5" else 0  # only T5 adds sentinels to its SentencePiece model
    try:
        tokenizer = tokenizers.load(path, extra_ids=extra_ids, max_size=model.vocab_size)
    except UserError:
        if not isinstance(vocabulary, str):
            raise
        tokenizer = tokenizers.load(Path(vocabulary), extra_ids=extra_ids, max_size=model.vocab_size)
    settings = {"kind": tokenizer.kind, "lowercase": tokenizer.lowercase, "path": str(path), "extra_ids": extra_ids}
    return model.model_dump(mode="json"), settings


def with_room(tree: Tree) -> Tree:
    """The recipe with a `model.vocab_size` that has room for `data.tokenizer.add_tokens`, and with
    `init_from.vocabulary: mean` for all of the vocabulary.

    New tokens follow the tokenizer's ids: where the model's table was padded beyond these, they are in the padding, as
    in transformers, and the table grows by the others alone. A vocabulary that is still to be trained leaves room for
    them.

    Args:
      tree: plain values of a recipe.

    Returns:
      A changed copy; the tree itself where there is nothing to grow.
    """
    _check_mappings(tree)
    settings, model = (tree.get("data") or {}).get("tokenizer") or {}, tree.get("model") or {}
    tokens, size, path = settings.get("add_tokens"), model.get("vocab_size"), settings.get("path")
    extends = (tree.get("init_from") or {}).get("vocabulary") == "mean"
    tokens = [] if extends and tokens is None else tokens
    is_list = isinstance(tokens, list) and all(isinstance(token, str) and token for token in tokens)
    if not (tokens or extends) or not is_list or not isinstance(size, int) or not isinstance(path, str):
        return tree  # nothing to do, or its validation says what is wrong
    if isinstance(tree.get("run_dir"), str) and (Path(tree["run_dir"]) / "tokenizer").is_dir():
        path = str(Path(tree["run_dir"]) / "tokenizer")
    from jaxpt.data import tokenizers

    tokenizer = tokenizers.load(path, settings.get("kind"), extra_ids=settings.get("extra_ids"), add_tokens=tokens)
    return {**tree, "model": {**model, "vocab_size": max(size, tokenizer.vocabulary.size)}}


def with_task_values(config: Config) -> Config:
    """The configuration with what its task takes from the training set: labels, most choices, balanced class weights.

    New runs with groups hold out whole groups (`task.split_by`), those of ULMFiT's classifier begin texts with EOS
    (`objective.opening`), and those with low-rank adapters train the head.

    A run with a checkpoint keeps its values, and prepared batches have theirs; before it files may still change.

    Args:
      config: the configuration of a run.

    Raises:
      UserError: there is no training set to take them from, it has a single label, or a row has no choices.
    """
    if config.task is None:
        return config
    tree, old = configs.dump(config), _saved(config)
    is_kept = config.data.source == "batches" or has_checkpoint(Path(config.run_dir))
    for name, task_config in each_task(config).items():
        task, settings = task_config.task, _task_in(tree, name)
        same = old is not None and is_kept and _has_same_labels(old, tree, name)
        old_settings = _task_in(old, name) if same else {}
        if getattr(task, "group", None) is not None and task.split_by is None:
            settings["split_by"] = "group" if old is None else _task_in(old, name).get("split_by")
        if getattr(task, "most_choices", 0) is None:
            settings["most_choices"] = old_settings.get("most_choices") or _max_choices(task_config, name)
        wants_labels = getattr(task, "labels", ()) is None
        weights, key = _weights_in(tree, name)
        wants_weights = getattr(task_config.objective, "class_weights", None) == "balanced"
        if same and wants_labels:
            settings["labels"], wants_labels = old_settings.get("labels"), False
        old_weights = _weights_in(old, name)[0].get(key) if same else None
        if wants_weights and _may_be_balanced(task, old_weights):
            weights[key], wants_weights = old_weights, False
        if wants_labels or wants_weights:
            with named(name):
                counts = label_counts(task, files(task_config.data, "train"))
                if wants_labels:
                    settings["labels"] = list(counts)
                if wants_weights:
                    weights[key] = _balanced_weights(each_task(configs.build(tree))[name], counts)
    if getattr(config.objective, "opening", "") is None:
        tree["objective"]["opening"] = "eos" if old is None else (old.get("objective") or {}).get("opening")
    if _trains_head(config):
        tree["train"]["trainable"] = ["adapter", "heads"]
    return config if tree == configs.dump(config) else configs.build(tree)


def _trains_head(config: Config) -> bool:
    """True if a task's head is trained beside low-rank adapters, though the recipe does not say so: it is new."""
    if config.train.lora is None or config.train.trainable is not None or config.objective.predicts_tokens:
        return False
    file = Path(config.run_dir) / "config.yaml"
    before = (read(file)[0].get("train") or {}) if file.is_file() else {}
    return not before.get("lora") or before.get("trainable") is not None


def _may_be_balanced(task: Task, weights: Any) -> bool:
    """True if class weights of a run can be those that `balanced` was: of classes Σ 1/w_k = K; of multi_label any."""
    if not isinstance(weights, list) or task.kind == "multi_label":
        return isinstance(weights, list)
    return all(weights) and math.isclose(sum(1 / weight for weight in weights), len(weights), rel_tol=1e-4)


def _balanced_weights(config: Config, counts: Mapping[str, int]) -> list[float]:
    """Class weights from the rows that are trained on.

    Args:
      config: of one task, whose labels are known.
      counts: of the labels in its files. One whose rows are all held out has the weight of a label with one row, which
        no example takes.
    """
    from jaxpt.objectives import class_losses

    task, rows = config.task, split_rows(config, "train")
    trained = Counter(label for row in rows for label in task.labels_in(row.row, row.where))
    in_order = [trained[label] or min(counts.get(label, 0), 1) for label in task.labels]
    if task.kind != "multi_label":
        return class_losses.balanced_class_weights(in_order, task.labels).tolist()
    return class_losses.balanced_label_weights(in_order, len(rows), task.labels).tolist()


def _max_choices(config: Config, name: str) -> int:
    """The most choices of a row of the training set; 2 where it has no rows."""
    task: Any = config.task
    with named(name):
        rows = ((row, file.where(row)) for file in files(config.data, "train") for row in file.rows(task))
        return max((len(task.choices_in(row, where).texts) for row, where in rows), default=2)


def _saved(config: Config) -> Tree | None:
    """The recipe that the run saved, or that its batches were prepared with; None of a new run."""
    saved = Path(config.run_dir) / "config.yaml"
    if saved.is_file():
        return read(saved)[0]
    if config.data.source == "batches":
        from jaxpt.data.batches import manifest

        return manifest.recipe(config)
    return None


def _has_same_labels(old: Tree, tree: Tree, name: str) -> bool:
    """True if a saved recipe takes a task's labels from the same columns of the same files."""
    if (tree.get("data") or {}).get("source") == "batches":
        return True
    tasks = [_task_in(recipe, name) for recipe in (old, tree)]
    columns = [tuple(task.get(key) for key in ("kind", "label", "tags")) for task in tasks]
    return columns[0] == columns[1] and _paths_in(old, name) == _paths_in(tree, name)


def _paths_in(tree: Tree, name: str) -> Any:
    """The training files of a task in a plain tree."""
    data = tree.get("data") or {}
    part = next((part for part in data.get("mixture") or () if part.get("name") == name), {}) if name else data
    paths = part.get("path")
    return paths if isinstance(paths, str | None) else list(paths)


def _task_in(tree: Tree, name: str) -> Tree:
    """A task in a plain tree: one of a mixture by its name, or else the only one."""
    task = tree.get("task") or {}
    return next((subtask for subtask in task.get("tasks", ()) if subtask.get("name") == name), {}) if name else task


def _weights_in(tree: Tree, name: str) -> tuple[Tree, str]:
    """(settings of the objective, key of a task's class weights in them) in a plain tree."""
    objective = tree.get("objective") or {}
    return (objective.get("tasks") or {}, f"{name}.class_weights") if name else (objective, "class_weights")


def label_counts(task: Task, row_files: Sequence[RowFile]) -> dict[str, int]:
    """Rows of each label in some files: numbers by value, words by alphabet, label columns in their order.

    Args:
      task: a task with labels.
      row_files: its files.

    Raises:
      UserError: they have fewer than two labels, and the task does not say that there is one; rows have none.
    """
    counts: dict[str, int] = {}
    least = min(2, len(getattr(task, "labels", None) or "ab"))
    task = task.before_labels((row, file.where(row)) for file in row_files for row in file.rows(task))
    if getattr(task, "separator", None) in ("|", ";"):
        errors.note(f"column {task.label!r}: labels separated by {task.separator!r}")
    for file in row_files:
        empty: list[tuple[str, EmptyLabelError]] = []
        for row in file.rows(task):
            try:
                for label in task.labels_in(row, file.where(row)):
                    counts[label] = counts.get(label, 0) + 1
            except EmptyLabelError as error:
                empty.append((file.where(row), error))
        check_empty_labels(empty)
    if len(counts) < least:
        known = ", ".join(counts) or "none"
        names = ", ".join(file.name for file in row_files)
        raise UserError(f"{names}: wants rows of two labels or more (task.label), got {known}")
    if task.kind == "classification" and (
        joined := next((label for label in counts if _is_joined(label, counts)), None)
    ):
        errors.note(f"label {joined!r} holds several labels; task.kind: multi_label reads them one by one")
    columns = getattr(task, "label", "")
    order = columns if isinstance(columns, tuple) else tables.in_order(counts)
    return {label: counts.get(label, 0) for label in order}


def _is_joined(label: str, labels: Mapping[str, int]) -> bool:
    """True if a label is made of others, such as a|b of a and b."""
    return any(
        separator in label and all(part.strip() in labels for part in label.split(separator))
        for separator in ("|", ";", ",")
    )
