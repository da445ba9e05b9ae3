"""What is wrong with a run, found before TensorFlow and Orbax are imported or a device is started: in a second."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Iterable
from pathlib import Path

from jaxpt import config as configs
from jaxpt import errors
from jaxpt.config import Config, ModelConfig
from jaxpt.data import checks
from jaxpt.data.batches import manifest
from jaxpt.errors import UserError
from jaxpt.runtime import hub, plugins, process
from jaxpt.train import foreign, run_dir, schedules
from jaxpt.train.evaluators import Evaluator, default_every

TEST_WITHOUT_TASK = (
    "data.test_path: is for recipes with a task; `jaxpt eval RUN data.validation_path=…` measures another file"
)
"""What is said where nothing reads a test set."""


def check(config: Config) -> None:
    """Finds what a recipe alone shows to be wrong with a run; nothing is written.

    Args:
      config: the run's configuration.

    Raises:
      UserError: a module that the recipe names was edited since its import, the run_dir cannot be written or belongs to
        another run, wandb is wanted and not installed, or as `check_recipe`.
    """
    process.check_limits()
    plugins.check_unedited(configs.dump(config))
    run_dir.check(config)
    if config.log.wandb and importlib.util.find_spec("wandb") is None:
        raise UserError("log.wandb: the package is not installed; pip install wandb, or leave log.wandb out")
    check_recipe(config)


def check_recipe(config: Config) -> None:
    """Finds what is wrong with a recipe, whichever run_dir it is for.

    Args:
      config: the run's configuration.

    Raises:
      UserError: a schedule that does not fit into the run, a setting without effect, or a traced step beyond the run's
        end; in a phase, a file that is missing or named twice, or data that the objective or the model cannot take; a
        file or task of an evaluator; `init_from.path` or `train.compiled` is not there, or is another model's, or one
        that reads text in the other direction.
    """
    _check_schedule(run_dir.with_own_warmup(config))
    _check_effects(config)
    if config.profile is not None and config.profile.last > config.train.steps:
        raise UserError(
            f"profile: steps {config.profile.first} to {config.profile.last} are to be traced, but the run ends at "
            f"step {config.train.steps} (train.steps)"
        )
    if config.data.source == "batches":
        manifest.check(config)
    for phase in configs.phase_configs(config):
        phase.model.check_length(phase.data.length)
        checks.check(phase)
        checks.check_held_out(phase)
        check_tables(phase)
        check_repeated_files(phase)
        refuse_to_begin(phase, checks.idle_fields(phase))
    _check_evaluators(config)
    _note_unranked_checkpoints(config)
    if config.train.compiled is not None and not Path(config.train.compiled).is_dir():
        raise UserError(
            f"train.compiled: {config.train.compiled}: no such directory; `jaxpt plan RECIPE --save DIR` writes one"
        )
    if config.init_from is not None and not run_dir.with_checkpoints(config):
        _check_origin(config, Path(config.init_from.path))


def check_tables(phase: Config) -> None:
    """Raises UserError where a position table is too short for the targets, or a generator's for the text, or a table
    of token types for the pairs; notes it of a run with a checkpoint.

    Args:
      phase: the run's configuration in one phase.
    """
    refuse_to_begin(phase, phase.objective.missing_rows(phase.model, phase.data.length))


def check_repeated_files(phase: Config) -> None:
    """Raises UserError where two paths of a list name one file; notes it of a run with a checkpoint.

    Args:
      phase: the run's configuration in one phase.
    """
    if line := checks.repeated_file(phase):
        refuse_to_begin(phase, [line])


def _check_evaluators(config: Config) -> None:
    """Raises UserError where an evaluator finds something wrong; the key begins with its place in `evals`."""
    for number, evaluator in enumerate(config.evals):
        if not isinstance(evaluator, Evaluator):
            continue
        try:
            evaluator.check(config)
        except UserError as error:
            raise UserError(f"evals.{number}.{error}") from None


def _note_unranked_checkpoints(config: Config) -> None:
    """Notes where `checkpoint.keep_best` has little to choose from: few steps are both saved and evaluated."""
    saves, metric = config.checkpoint, config.checkpoint.best_metric
    for evaluator in config.evals if saves.keep_best else ():
        if evaluator.called != metric.partition("/")[0] or evaluator.every == "end":
            continue
        every, measured = saves.every or default_every(config), evaluator.every or default_every(config)
        both = math.lcm(every, measured)
        if both not in (every, measured):
            errors.note(
                f"checkpoint.keep_best: {metric} is measured every {measured} steps, checkpoints are saved every "
                f"{every}: they can be ranked every {both} steps alone; checkpoint.every={measured} ranks all"
            )


def _check_schedule(config: Config) -> None:
    """Raises UserError where the schedule does not fit into the run; a warm-up that is too long is shortened."""
    schedule = config.optimizer.schedule.within(config.train.steps)
    if schedule != config.optimizer.schedule:
        limit = schedule.warmup_limit
        of_run = f"longer than the run, train.steps is {config.train.steps}"
        reason = of_run if limit is None else f"over optimizer.schedule.warmup_limit, which is {limit}"
        errors.note(
            f"optimizer.schedule.warmup_steps: {config.optimizer.schedule.warmup_steps} is {reason}; "
            f"the warm-up takes {schedule.warmup_steps}"
        )
    schedules.make(schedule, config.optimizer.learning_rate, config.train.steps)


def _check_effects(config: Config) -> None:
    """Refuses to begin a run where a setting does nothing, since another one is missing; notes settings of the model
    where it may be another's (`init_from`), whose config.json may have more than is read."""
    train, optimizer, metric = config.train, config.optimizer, config.checkpoint.best_metric
    during = [evaluator.called for evaluator in config.evals if evaluator.every != "end"]
    idle = [line for phase in configs.phase_configs(config) for line in phase.objective.idle_settings()]
    if train.patience is not None and metric.partition("/")[0] not in during:
        idle.append(
            f"train.patience: {train.patience} ends no run, since no evaluator that runs during training measures "
            f"checkpoint.best_metric: {metric}; evals has: {', '.join(during) or 'none'}"
        )
    if train.stall_exit and train.stall_seconds is None:
        idle.append("train.stall_exit: true ends no run, since train.stall_seconds is null; set train.stall_seconds")
    if optimizer.layer_decay_offset and optimizer.layer_decay is None:
        idle.append(
            f"optimizer.layer_decay_offset: {optimizer.layer_decay_offset} changes no rate, since "
            "optimizer.layer_decay is null; set optimizer.layer_decay, or optimizer.layer_decay_offset=0"
        )
    if optimizer.decay_multipliers and not optimizer.weight_decay:
        idle.append(
            "optimizer.decay_multipliers: changes no decay, since optimizer.weight_decay is 0; set "
            "optimizer.weight_decay, or optimizer.decay_multipliers={}"
        )
    if config.task is None and any(source.test_path is not None for source in (config.data, *config.data.mixture)):
        idle.append(TEST_WITHOUT_TASK)
    of_model = _idle_settings_of_model(config)
    refuse_to_begin(config, idle if config.init_from else [*idle, *of_model])
    for line in dict.fromkeys(of_model) if config.init_from else ():
        errors.note(line)


def _idle_settings_of_model(config: Config) -> list[str]:
    """Those that are idle in each phase: one may set what reads them."""
    first, *later = (phase.model.idle_settings() for phase in configs.phase_configs(config))
    return [line for line in first if all(line in lines for lines in later)]


def refuse_to_begin(config: Config, problems: Iterable[str]) -> None:
    """Raises UserError with the first problem; notes all of them of a run with a checkpoint, or a copy of one, which an
    earlier version let begin.

    Args:
      config: the run's configuration.
      problems: a line for each.
    """
    for line in dict.fromkeys(problems):
        if not run_dir.with_checkpoints(config):
            raise UserError(line)
        errors.note(line)


def _check_origin(config: Config, path: Path) -> None:
    """Raises UserError where the weights to start from are not there, of another family, or read text the other way."""
    origin = configs.run_dir_of(path)
    hub.local(path, key="init_from.path")
    if (origin / "config.yaml").is_file():
        theirs = configs.load(origin)
        kind = theirs.model.kind
        _check_direction(config, theirs, path)
    elif reader := foreign.reader(path):
        kind = reader.kind(path)
    else:
        raise UserError(f"init_from.path: {foreign.refusal(path)}")
    family = configs.resolve(kind, "jaxpt.models", ModelConfig).family
    if family != config.model.family and not config.init_from.partial:
        raise UserError(
            f"init_from.path: {path}: its model ({kind}) is of family {family}, "
            f"model.kind: {config.model.kind} of family {config.model.family}"
        )


def _check_direction(config: Config, theirs: Config, path: Path) -> None:
    """Raises UserError where a recurrent model would go on with text in the other direction than it was trained on;
    other objectives than its own read text forward."""
    now, was = (getattr(recipe.objective, "direction", None) for recipe in (config, theirs))
    if was is None or was == (now or "forward") or config.init_from.random:
        return
    reads = f"the model of init_from.path: {path} reads text {was}"
    if now is None:
        raise UserError(
            f"objective.kind: {config.objective.kind} reads text forward, but {reads}; take a forward model"
        )
    raise UserError(
        f"objective.direction: {now}, but {reads}; set objective.direction={was}, or start from a {now} model"
    )
