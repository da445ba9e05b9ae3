"""An objective of each kind, without TensorFlow."""

from jaxpt.config import ObjectiveConfig, TaskConfig, resolve


def any_objective(kind):
    """An objective with its defaults; that of a task on a task of its own, that of a wrapper on a teacher."""
    found = resolve(kind, "jaxpt.objectives", ObjectiveConfig)
    if "task" not in found.model_fields:
        return found(**({"teacher": "somewhere"} if kind == "distillation" else {}))
    of_task = {"text_to_text": "generation", "recurrent_classification": "classification"}.get(kind, kind)
    labels = {"labels": ("a", "b")} if of_task in ("classification", "tagging") else {}
    most = {"most_choices": 2} if of_task == "multiple_choice" else {}
    named = [{"kind": "classification", "name": name, "labels": ("a", "b")} for name in ("one", "two")]
    tasks = {"tasks": named} if of_task == "mixture" else {}
    task = resolve(of_task, "jaxpt.data.tasks", TaskConfig, "task")(**labels, **most, **tasks)
    layout = {"text_to_text": "t5", "dialogue": "decoder"}.get(kind, "bert")
    return found(task=task, **({"text_layout": layout} if "text_layout" in found.model_fields else {}))
