"""`jaxpt eval`: runs the evaluators of a recipe on a checkpoint, or tasks on any model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jaxpt import config as configs
from jaxpt.config import Config
from jaxpt.data import preparing
from jaxpt.data.parts import each_task
from jaxpt.errors import UserError
from jaxpt.parallel import processes
from jaxpt.study import recipes
from jaxpt.train import checkpoint, evaluation, preflight, state, teachers
from jaxpt.train import step as steps
from jaxpt.train.display import console, say
from jaxpt.train.evaluators import Result


def run(path: str, overrides: Sequence[str], tasks: Sequence[str] | None = None, **options: Any) -> None:
    """Evaluates a checkpoint.

    Args:
      path: as `evaluate`; with tasks any model.
      overrides: `key=value`.
      tasks: names of tasks or their files; None: the recipe's evaluators.
      **options: of the tasks, as `jaxpt.inference.evaluate.evaluate` has them.

    Raises:
      UserError: there are options of tasks and no tasks, or as the two functions.
    """
    if tasks:
        from jaxpt.inference.evaluate import evaluate as evaluate_tasks

        evaluate_tasks(path, tasks, overrides=overrides, **options)
    elif options:
        raise UserError(f"--{next(iter(options)).replace('_', '-')}: is for --tasks: give both")
    else:
        evaluate(path, overrides)


def evaluate(path: str, overrides: Sequence[str] = ()) -> dict[str, float]:
    """Runs all evaluators, including those for the end of training; of a task it shows where the model is wrong.

    Args:
      path: a run_dir or a recipe (the newest checkpoint; of a finished run with a task the best), or
        `RUN_DIR/checkpoints/STEP`.
      overrides: `key=value`; `data.validation_path=…` evaluates another file, `data.test_path=…` scores a task on one
        as on a test set.

    Returns:
      The printed {metric: value}.

    Raises:
      UserError: there is no checkpoint, the data cannot be read, or a test set is named of a recipe without a task.
    """
    named = checkpoint.named_step(path)
    config = recipes.load(named[0] if named else path, overrides)
    has_test = _names_test_set(config, overrides)
    processes.start(config.distributed)
    console.quiet = not checkpoint.is_primary()
    run_dir, step = checkpoint.find(path if named else config.run_dir)
    index = configs.phase_of(config, step)
    phase = configs.train_stages(config)[index].phase
    config = configs.at_phase(config, index)
    data = preparing.prepare(config, phase=phase)
    setup = state.setup(config).for_evaluation()
    steps.check(config, setup)
    with checkpoint.Checkpoints(run_dir, config.checkpoint, read_only=True) as saved:
        params, measured = saved.restore_params(setup, step), saved.metrics(step)
        setup = teachers.attach_same(setup, saved.meta(step), say)
    if not setup.teachers:
        setup = setup.for_phase(config.model_copy(update={"objective": config.objective.without_teachers()}))
    say(f"{run_dir} at step {step}, {len(data.validation)} validation examples")
    evaluators = evaluation.Evaluators(setup, data)
    for name, result in evaluators.run(evaluators.missing(), params):
        _show(name, result, params, evaluation.figures(evaluators.found))
    if has_test:
        _score_test_set(evaluators, params, measured)
    return evaluation.figures(evaluators.found)


def _names_test_set(config: Config, overrides: Sequence[str]) -> bool:
    """True if an override names a test set. That of the recipe was scored when training ended."""
    if not any("test_path" in override for override in overrides):
        return False
    if config.task is None:
        raise UserError(preflight.TEST_WITHOUT_TASK)
    return any(task_config.data.test_path is not None for task_config in each_task(config).values())


def _score_test_set(evaluators: evaluation.Evaluators, params: Any, saved: Mapping[str, float]) -> None:
    """Scores the test set, with thresholds from the metrics that were saved with the checkpoint; where there are none,
    from those that were just measured."""
    measured = saved or evaluation.figures(evaluators.found)
    evaluators.found["test"] = evaluators.of_task("test")(params, measured, lambda: False)
    _show("test", evaluators.found["test"], params, measured)


def _show(name: str, result: Result, params: Any, measured: Mapping[str, float]) -> None:
    """Says what an evaluator found, and of a task where the model is wrong."""
    lines = result.lines
    if lines is None:
        figures = evaluation.figures({name: result})
        lines = [f"  {metric.removeprefix('validation/'):24} {value:.4f}" for metric, value in figures.items()]
    for line in lines:
        say(line)
    if result.details is not None:
        say("\n".join(result.details(params, measured).lines))
