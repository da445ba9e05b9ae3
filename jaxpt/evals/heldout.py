"""Loss on held-out text: fixed noise, every example exactly once, beside a trivial baseline."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from jaxpt import config as configs
from jaxpt.config import Config
from jaxpt.evals import baselines
from jaxpt.objectives.base import Objective
from jaxpt.parallel import mesh as meshes
from jaxpt.train import step as steps
from jaxpt.train.state import Setup

if TYPE_CHECKING:
    from jaxpt.data.pipeline import Data


def batches(config: Config, data: Data, rows: slice | None = None) -> Iterator[dict[str, np.ndarray]]:
    """The validation batches of a run, with `probe_weights`; the last one is filled up with rows without weight.

    Args:
      config: the run's configuration in its current phase.
      data: what `jaxpt.data.pipeline.prepare` gave.
      rows: this process's rows of each batch, all by default.

    Yields:
      Feature dictionaries of numpy arrays.
    """
    for batch in data.validation.epoch(config.data.batch_size, limit=config.train.eval_examples, rows=rows):
        yield batch | {"probe_weights": config.objective.probe(batch, data.vocabulary).astype(np.float32)}


def validate(
    setup: Setup,
    objective: Objective,
    eval_step: Callable[..., Any],
    params: Any,
    feed: Iterator[dict[str, np.ndarray]],
) -> dict[str, float]:
    """Means over the whole validation split.

    Args:
      setup: mesh and placement.
      objective: gives the coefficients of the loss parts.
      eval_step: what `make_eval_step` returns.
      params: the parameters to evaluate.
      feed: this process's validation batches.

    Returns:
      "loss", each loss part, and each metric of the objective, as means over all examples.
    """
    totals: dict[str, list[float]] = {}
    with meshes.use(setup.mesh):
        for batch in feed:
            sums = jax.device_get(eval_step(params, steps.put(batch, setup)))
            for name, (value, weight) in sums.items():
                total = totals.setdefault(name, [0.0, 0.0])
                total[0] += float(value)
                total[1] += float(weight)
    means = {name: value / max(weight, 1e-9) for name, (value, weight) in totals.items()}
    loss = sum(coefficient * means[part] for part, coefficient in objective.coefficients().items())
    return {"loss": loss, **means}


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
    from jaxpt.train import checkpoint, state
    from jaxpt.train.display import console

    named = checkpoint.named_step(path)
    config = configs.load(named[0] if named else path, overrides)
    run_dir, step = checkpoint.find(path if named else config.run_dir, None)
    phase = sum(start < step for start in configs.phase_starts(config)) - 1
    config = configs.at_phase(config, max(phase, 0))
    data = pipeline.prepare(config, phase=max(phase, 0))
    setup = state.setup(config)
    steps.check(config, setup)
    reader = checkpoint.Checkpoints(run_dir, config.checkpoint, read_only=True)
    params = reader.restore_params(setup, step)
    reader.close()
    eval_step = steps.make_eval_step(setup, config.objective)
    means = validate(setup, config.objective, eval_step, params, batches(config, data))
    lines = [f"{run_dir} at step {step}, {len(data.validation)} validation examples"]
    lines += [f"  {name:24} {value:.4f}" for name, value in means.items()]
    lines += [verdict(config.objective, means["probe_loss"], baseline(config, data))]
    for line in [*lines, *samples.show(setup.model, params, config, data)]:
        console.print(line, markup=False)
    return means
