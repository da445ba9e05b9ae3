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
    given = tree.get("task")
    own = tree.get("objective")
    if isinstance(own, dict) and (key := next((key for key in HIDDEN if key in own), None)):
        raise UserError(f"objective.{key}: unknown key; it is a key of the recipe itself: task")
    if given is None:
        kind = _kind(own)
        if kind and "task" in resolve(kind, "jaxpt.objectives", ObjectiveConfig, "objective").model_fields:
            raise UserError(f"task: key task is missing; objective.kind: {kind} learns from labelled data")
        return tree
    if not isinstance(given, dict) or not (kind := _kind(given)):
        return tree  # its validation says what is wrong
    of_task = resolve(kind, "jaxpt.data.tasks", TaskConfig, "task")
    own = {"kind": of_task.objective, **(own or {})}
    if own["kind"] is None:
        raise UserError(f"objective: key objective is missing; its default is in code that is not run here: {kind}")
    found = resolve(own["kind"], "jaxpt.objectives", ObjectiveConfig, "objective")
    if issubclass(found, Unread):
        return tree
    if "task" not in found.model_fields:
        raise UserError(f"task: objective.kind: {own['kind']} has no labels to learn; remove task, or objective.kind")
    own["task"] = given
    if "text_layout" in found.model_fields and (kind := _kind(tree.get("model"))):
        own["text_layout"] = resolve(kind, "jaxpt.models", ModelConfig, "model").text_layout or ""  # "": unread
    tree = {**tree, "objective": own}
    if isinstance(features := own.get("features"), dict) and features.get("frozen", True) is True:
        trained = tree.get("train") or {}
        if trained.get("trainable") is None and trained.get("lora") is None:
            tree["train"] = {**trained, "trainable": ["heads"]}
    if tree.get("evals") is None:
        tree["evals"] = [dict(one) for one in of_task.default_evals]
    saved = tree.get("checkpoint") or {}
    if "best_metric" not in saved and any(_kind(one) == "task" for one in tree["evals"]):
        name, mode = of_task.best_metric((given.get("metrics") or of_task.default_metrics)[0])
        tree["checkpoint"] = {**saved, "best_metric": f"task/{name}", "best_mode": mode}
    return tree


def _kind(part: Any) -> str | None:
    """The kind that a mapping names."""
    kind = part.get("kind") if isinstance(part, dict) else None
    return kind if isinstance(kind, str) else None
