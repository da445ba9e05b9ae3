"""From plain values to the checked tree, and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pydantic import ValidationError

from jaxpt import metrics
from jaxpt.config import metric_paths
from jaxpt.config.explain import explain
from jaxpt.config.kinds import Unread, resolve, strictly
from jaxpt.config.parts import ModelConfig, ObjectiveConfig, TaskConfig
from jaxpt.config.phases import HIDDEN, of_phase, train_stages
from jaxpt.config.tree import Config
from jaxpt.errors import UserError


def build(tree: Mapping[str, Any], where: Callable[[str], str] = lambda key: "config") -> Config:
    """Checks a plain tree of values.

    Args:
      tree: nested mappings, lists, strings, numbers, booleans and None, as of a recipe.
      where: from a dotted key to the file that set it, for messages.

    Returns:
      The frozen configuration.

    Raises:
      UserError: names where the key was set, the key, what was given and what is wanted.
    """
    try:
        config = strictly(Config, {**tree, **_implied(tree)} if isinstance(tree, dict) else tree)
    except ValidationError as error:
        key, message = explain(error, tree)
        raise UserError(f"{where(key)}: {message}") from None
    except UserError as error:  # a kind
        raise UserError(f"{where(str(error).partition(':')[0])}: {error}") from error
    try:
        train_stages(config)
        for phase in range(len(config.train.phases)):
            of_phase(config, phase)
    except UserError as error:
        key = "train.unfreeze" if str(error).startswith("train.unfreeze") else "train.phases"
        raise UserError(f"{where(key)}: {error}") from None
    return config


def dump(config: Config) -> dict[str, Any]:
    """The tree as plain values, ready for YAML or JSON.

    Args:
      config: the run's configuration.

    Returns:
      Nested mappings; `build` makes an equal configuration of them.
    """
    return config.model_dump(mode="json", warnings=False)  # a `kind` may be dotted where its class has the short name


def _implied(tree: dict[str, Any]) -> dict[str, Any]:
    """Blocks of a recipe with what its task implies; {} without a task.

    Without `objective` it is the one for the task's kind; without `evals` held-out loss and the task's metrics;
    without `checkpoint.best_metric` the first of these. Features of a frozen model train the heads alone.

    Args:
      tree: plain values.

    Raises:
      UserError: an objective that needs a task has none, or the other way round.
    """
    task, objective = tree.get("task"), tree.get("objective")
    if isinstance(objective, dict) and (key := next((key for key in HIDDEN if key in objective), None)):
        raise UserError(f"objective.{key}: unknown key; it is a key of the recipe itself: task")
    if task is None:
        kind = _kind(objective)
        if kind and "task" in resolve(kind, "jaxpt.objectives", ObjectiveConfig, "objective").model_fields:
            raise UserError(f"task: key task is missing; objective.kind: {kind} learns from labelled data")
        return {}
    if not (kind := _kind(task)):
        return {}  # its validation says what is wrong
    task_class = resolve(kind, "jaxpt.data.tasks", TaskConfig, "task")
    objective = {"kind": task_class.objective, **(objective or {})}
    if objective["kind"] is None:
        raise UserError(f"objective: key objective is missing; its default is in code that is not run here: {kind}")
    objective_class = resolve(objective["kind"], "jaxpt.objectives", ObjectiveConfig, "objective")
    if issubclass(objective_class, Unread):
        return {}
    if "task" not in objective_class.model_fields:
        raise UserError(
            f"task: objective.kind: {objective['kind']} has no labels to learn; remove task, or objective.kind"
        )
    objective["task"] = task
    if "text_layout" in objective_class.model_fields and (kind := _kind(tree.get("model"))):
        objective["text_layout"] = resolve(kind, "jaxpt.models", ModelConfig, "model").text_layout or ""  # "": unread
    blocks: dict[str, Any] = {"objective": objective, "evals": tree.get("evals")}
    if blocks["evals"] is None:
        blocks["evals"] = [dict(evaluator) for evaluator in task_class.default_evals]
    train, checkpoint, features = tree.get("train") or {}, tree.get("checkpoint") or {}, objective.get("features")
    reads_frozen = isinstance(features, dict) and features.get("frozen", True) is True
    if reads_frozen and train.get("trainable") is None and train.get("lora") is None:
        blocks["train"] = {**train, "trainable": ["heads"]}
    if "best_metric" not in checkpoint and any(_kind(evaluator) == "task" for evaluator in blocks["evals"]):
        metric = metrics.describe(_first_metric(task, task_class))
        blocks["checkpoint"] = {**checkpoint, "best_metric": f"task/{metric.selection_value}", "best_mode": metric.mode}
    return blocks


def _first_metric(task: dict[str, Any], task_class: type[TaskConfig]) -> str:
    """The metric that chooses the best checkpoint; its module is imported where it is a dotted path."""
    name = (task.get("metrics") or task_class.metrics_of(task.get("name")))[0]
    try:
        metric_paths.register([name])
    except UserError as error:
        raise UserError(f"task.metrics: {error}") from None
    return name


def _kind(part: Any) -> str | None:
    """The kind that a mapping names."""
    kind = part.get("kind") if isinstance(part, dict) else None
    return kind if isinstance(kind, str) else None
