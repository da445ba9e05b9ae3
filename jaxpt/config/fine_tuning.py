"""A recipe with a `task`: what it leaves out follows from the task; the objective is told of both task and model."""

from __future__ import annotations

from typing import Any

from jaxpt.config.kinds import Unread, resolve
from jaxpt.config.tree import ModelConfig, ObjectiveConfig, TaskConfig
from jaxpt.errors import UserError

HIDDEN = ("task", "text_layout", "part")
"""Fields of a labelled objective that are not keys of a recipe: copies of `task` and of the model's `text_layout`, and
which task of a mixture it is for."""


def complete(tree: Any) -> Any:
    """The plain tree of a recipe with what its task implies.

    Without `objective` it is the one for the task's kind; without `evals` held-out loss and the task's metrics;
    without `checkpoint.best_metric` the first of these. Features of a frozen model train the heads alone.

    Args:
      tree: plain values.

    Returns:
      A changed copy; the tree itself where it has no task.

    Raises:
      UserError: an objective that needs a task has none, or the other way round.
    """
    if not isinstance(tree, dict):
        return tree
    task = tree.get("task")
    objective = tree.get("objective")
    if isinstance(objective, dict) and (key := next((key for key in HIDDEN if key in objective), None)):
        raise UserError(f"objective.{key}: unknown key; it is a key of the recipe itself: task")
    if task is None:
        kind = _kind(objective)
        if kind and "task" in resolve(kind, "jaxpt.objectives", ObjectiveConfig, "objective").model_fields:
            raise UserError(f"task: key task is missing; objective.kind: {kind} learns from labelled data")
        return tree
    if not isinstance(task, dict) or not (kind := _kind(task)):
        return tree  # its validation says what is wrong
    of_task = resolve(kind, "jaxpt.data.tasks", TaskConfig, "task")
    objective = {"kind": of_task.objective, **(objective or {})}
    if objective["kind"] is None:
        raise UserError(f"objective: key objective is missing; its default is in code that is not run here: {kind}")
    objective_class = resolve(objective["kind"], "jaxpt.objectives", ObjectiveConfig, "objective")
    if issubclass(objective_class, Unread):
        return tree
    if "task" not in objective_class.model_fields:
        raise UserError(
            f"task: objective.kind: {objective['kind']} has no labels to learn; remove task, or objective.kind"
        )
    objective["task"] = task
    if "text_layout" in objective_class.model_fields and (kind := _kind(tree.get("model"))):
        objective["text_layout"] = resolve(kind, "jaxpt.models", ModelConfig, "model").text_layout or ""  # "": unread
    tree = {**tree, "objective": objective}
    if isinstance(features := objective.get("features"), dict) and features.get("frozen", True) is True:
        trained = tree.get("train") or {}
        if trained.get("trainable") is None and trained.get("lora") is None:
            tree["train"] = {**trained, "trainable": ["heads"]}
    if tree.get("evals") is None:
        tree["evals"] = [dict(evaluator) for evaluator in of_task.default_evals]
    saved = tree.get("checkpoint") or {}
    if "best_metric" not in saved and any(_kind(evaluator) == "task" for evaluator in tree["evals"]):
        name, mode = of_task.best_metric((task.get("metrics") or of_task.default_metrics)[0])
        tree["checkpoint"] = {**saved, "best_metric": f"task/{name}", "best_mode": mode}
    return tree


def _kind(part: Any) -> str | None:
    """The kind that a mapping names."""
    kind = part.get("kind") if isinstance(part, dict) else None
    return kind if isinstance(kind, str) else None
