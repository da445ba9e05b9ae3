"""Loss on held-out text: fixed noise, every example exactly once, beside a trivial baseline."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from jaxpt import config as configs
from jaxpt.config import Config
from jaxpt.evals import baselines
from jaxpt.objectives.base import Objective
from jaxpt.train import step as steps
from jaxpt.train.state import Setup

if TYPE_CHECKING:
    from jaxpt.data.pipeline import Data
    from jaxpt.data.stream.loader import Stream


def feeds(config: Config, data: Data, rows: np.ndarray | None = None) -> dict[str, Iterator[dict[str, np.ndarray]]]:
    """The validation batches of each task of a run, with `probe_weights`; the last one of each is filled up with rows
    without weight.

    Args:
      config: the run's configuration in its current phase.
      data: what `jaxpt.data.pipeline.prepare` gave.
      rows: this process's rows of each batch, all by default.

    Returns:
      {task: feature dictionaries of numpy arrays}.
    """

    def batches(stream: Stream) -> Iterator[dict[str, np.ndarray]]:
        for batch in stream.epoch(config.data.batch_size, limit=config.train.eval_examples, rows=rows):
            yield batch | {"probe_weights": config.objective.probe(batch, data.vocabulary).astype(np.float32)}

    return {name: batches(stream) for name, stream in data.validation.each().items()}


def batches(config: Config, data: Data) -> Iterator[dict[str, np.ndarray]]:
    """The validation batches of all tasks, one after the other."""
    return itertools.chain.from_iterable(feeds(config, data).values())


def validate(
    setup: Setup,
    objective: Objective,
    eval_step: Callable[..., Any],
    params: Any,
    feeds: Mapping[str, Iterable[dict[str, np.ndarray]]],
    stop: Callable[[], bool] = lambda: False,
) -> dict[str, float] | None:
    """Means over the whole validation split.

    Args:
      setup: mesh and placement.
      objective: gives the coefficients of the loss parts.
      eval_step: what `make_eval_step` returns.
      params: the parameters to evaluate.
      feeds: this process's validation batches of each task.
      stop: asked after each batch, in all processes; True ends the evaluation.

    Returns:
      "loss", each loss part, and each metric of the objective, as means over all examples; of several tasks also
      "task/loss", … over those of one. None where it was stopped.
    """
    totals: dict[str, dict[str, np.ndarray]] = {task: {} for task in feeds}
    with setup.use():
        for task, feed in feeds.items():
            carry = setup.empty_carry()
            for batch in feed:
                found, carry = eval_step(params, steps.put(batch, setup), carry, *setup.frozen_params())
                for name, sums in jax.device_get(found).items():
                    totals[task][name] = totals[task].get(name, 0.0) + np.array(sums, np.float64)
                if stop():
                    return None
    of_all = {name: np.sum([of_task[name] for of_task in totals.values()], 0) for name in next(iter(totals.values()))}
    means = _means(objective, of_all)
    if len(totals) > 1:
        for task, of_task in totals.items():
            means |= {f"{task}/{name}": value for name, value in _means(objective, of_task).items()}
    return means


def _means(objective: Objective, totals: dict[str, np.ndarray]) -> dict[str, float]:
    """The loss, and each Σ value / Σ weight."""
    means = {name: float(value / max(weight, 1e-9)) for name, (value, weight) in totals.items()}
    return {"loss": sum(c * means[part] for part, c in objective.coefficients().items()), **means}


def baseline(config: Config, data: Data) -> float:
    """Nats per token of the objective's trivial baseline on the validation split.

    Args:
      config: the run's configuration in its current phase.
      data: training text (for a bigram's counts) and validation text.

    Returns:
      The baseline's loss at the positions that `objective.probe_name` names.
    """
    objective: Objective = config.objective
    if objective.baseline == "bigram":
        train = data.train.epoch(config.data.batch_size)
        return baselines.bigram(data.vocabulary.size, train, batches(config, data))
    targets_name = "masked_targets" if objective.family == "encoder" else "decoder_target_tokens"
    found = [(b[targets_name], b["probe_weights"]) for b in batches(config, data)]
    targets, weights = (np.concatenate(x) for x in zip(*found))
    return baselines.unigram(targets, weights)


def verdict(objective: Objective, probe_loss: float, trivial: float) -> str:
    """One line that sets the model beside the baseline."""
    side = "below" if probe_loss < trivial else "ABOVE"
    return (
        f"validation, {objective.probe_name}: model {probe_loss:.3f} nats, {objective.baseline} baseline "
        f"{trivial:.3f}: {abs(trivial - probe_loss):.3f} nats {side} it"
    )


def evaluate(path: str, overrides: tuple[str, ...] | list[str] = ()) -> dict[str, float]:
    """`jaxpt eval`: a checkpoint of a run on its validation split.

    Args:
      path: a run_dir or a recipe (the newest checkpoint), or `RUN_DIR/checkpoints/STEP`.
      overrides: `key=value`; `data.validation_path=…` evaluates other text.

    Returns:
      The means that were printed.

    Raises:
      UserError: no checkpoint there, or data that cannot be read.
    """
    from jaxpt.data import pipeline
    from jaxpt.evals import samples
    from jaxpt.train import checkpoint, frozen, state
    from jaxpt.train.display import console

    named = checkpoint.named_step(path)
    config = configs.load(named[0] if named else path, overrides)
    run_dir, step = checkpoint.find(path if named else config.run_dir, None)
    phase = configs.phase_of(config, step)
    config = configs.at_phase(config, phase)
    data = pipeline.prepare(config, phase=phase)
    setup = state.setup(config)
    steps.check(config, setup)
    reader = checkpoint.Checkpoints(run_dir, config.checkpoint, read_only=True)
    params = reader.restore_params(setup, step)
    setup = frozen.attach_same(setup, reader.meta(step), lambda line: console.print(line, markup=False))
    reader.close()
    objective = config.objective if setup.frozen else config.objective.without_frozen()
    eval_step = steps.make_eval_step(setup, objective)
    means = validate(setup, objective, eval_step, params, feeds(config, data))
    lines = [f"{run_dir} at step {step}, {len(data.validation)} validation examples"]
    lines += [f"  {name:24} {value:.4f}" for name, value in means.items()]
    lines += [verdict(objective, means["probe_loss"], baseline(config, data)), *objective.remarks(means)]
    for line in [*lines, *samples.show(setup.model, params, config, data)]:
        console.print(line, markup=False)
    return means
