"""`jaxpt eval`: runs the evaluators of a recipe on a checkpoint, or tasks on any model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jaxpt import config as configs
from jaxpt.data import preparing
from jaxpt.errors import UserError
from jaxpt.parallel import processes
from jaxpt.study import recipes
from jaxpt.train import checkpoint, evaluation, state, teachers
from jaxpt.train import step as steps
from jaxpt.train.display import console, say


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
      overrides: `key=value`; `data.validation_path=…` evaluates another file.

    Returns:
      The printed {metric: value}.

    Raises:
      UserError: there is no checkpoint, or the data cannot be read.
    """
    named = checkpoint.named_step(path)
    config = recipes.load(named[0] if named else path, overrides)
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
        params = saved.restore_params(setup, step)
        setup = teachers.attach_same(setup, saved.meta(step), say)
    if not setup.teachers:
        setup = setup.for_phase(config.model_copy(update={"objective": config.objective.without_teachers()}))
    say(f"{run_dir} at step {step}, {len(data.validation)} validation examples")
    evaluators = evaluation.Evaluators(setup, data)
    for name, result in evaluators.run(evaluators.missing(), params):
        lines = result.lines
        if lines is None:
            figures = evaluation.figures({name: result})
            lines = [f"  {metric.removeprefix('validation/'):24} {value:.4f}" for metric, value in figures.items()]
        for line in lines:
            say(line)
        if result.details is not None:
            say("\n".join(result.details(params, evaluation.figures(evaluators.found)).lines))
    return evaluation.figures(evaluators.found)
