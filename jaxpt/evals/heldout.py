"""Loss on held-out text, with fixed noise and every example exactly once."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

import jax
import numpy as np

from jaxpt.config import Config
from jaxpt.errors import UserError
from jaxpt.objectives.base import Objective
from jaxpt.parallel import distributed
from jaxpt.runtime.progress import track
from jaxpt.train import step as steps
from jaxpt.train.evaluators import Evaluate, Evaluator, Result
from jaxpt.train.state import Setup

if TYPE_CHECKING:
    from jaxpt.data.base import Data
    from jaxpt.data.stream.loader import Stream


class HeldOut(Evaluator):
    """The objective's loss, its parts and metrics on the validation split."""

    kind: Literal["heldout"] = "heldout"

    @property
    def called(self) -> str:
        return self.name or "validation"

    def prepare(self, setup: Setup, data: Data) -> Evaluate:
        program, config, rows = compiled_step(setup, data), setup.config, rows_of(setup)

        def evaluate(params: Any, earlier: Mapping[str, float], stop: Callable[[], bool]) -> Result | None:
            if not _wait_for_records(data, stop):
                return None
            limit, sizes = config.train.eval_examples, [len(stream) for stream in data.validation.each().values()]
            total = sum(size if limit is None else min(size, limit) for size in sizes)
            means = validate(setup, config.objective, program, params, feeds(config, data, rows), stop, total)
            return None if means is None else Result(means)

        tasks = list(data.validation.each())
        names = ["loss", *jax.tree.unflatten(program.out_tree, range(program.out_tree.num_leaves))[0]]
        of_tasks = [f"{task}/{name}" for task in tasks for name in names] if len(tasks) > 1 else []
        evaluate.metric_names = (*names, *of_tasks)
        return evaluate


def _wait_for_records(data: Data, stop: Callable[[], bool]) -> bool:
    """Waits for validation records that are made beside the run; False if it was stopped."""
    stores = [store for name, store in data.stores.items() if name.rpartition("/")[2] == "validation"]
    with track("waiting for validation records"):
        return all(store.wait(stop) for store in stores)


def rows_of(setup: Setup) -> np.ndarray:
    """This process's rows of each batch."""
    return distributed.rows(setup.mesh, setup.config.data.batch_size)


def compiled_step(setup: Setup, data: Data) -> Callable[..., Any]:
    """The compiled step that `validate` takes; no record is read for it."""
    config, rows = setup.config, len(rows_of(setup))
    features = config.objective.data_spec(config.data.length).features
    zeros = {name: np.zeros((rows, *shape), dtype) for name, (shape, dtype) in features.items()}
    first = _with_mask(config, zeros, data)
    placed = setup.placed_shapes()
    with setup.use():
        lowered = steps.make_eval_step(setup, setup.config.objective).lower(
            placed.params, steps.put(first, setup), placed.carry, *setup.teacher_params()
        )
    return lowered.compile()


def feeds(config: Config, data: Data, rows: np.ndarray | None = None) -> dict[str, Iterator[dict[str, np.ndarray]]]:
    """The validation batches of each task, with `eval_mask`; the last batch is padded with rows of zero weight.

    Args:
      config: the run's configuration in its current phase.
      data: result of `jaxpt.data.datasets.prepare`.
      rows: this process's rows of each batch; all by default.

    Returns:
      {task: iterator of {feature: NumPy array}}.
    """

    def batches(stream: Stream) -> Iterator[dict[str, np.ndarray]]:
        for batch in stream.epoch(config.data.batch_size, limit=config.train.eval_examples, rows=rows):
            yield _with_mask(config, batch, data)

    return {name: batches(stream) for name, stream in data.validation.each().items()}


def _with_mask(config: Config, batch: dict[str, np.ndarray], data: Data) -> dict[str, np.ndarray]:
    mask = config.objective.baseline.eval_mask(batch, data.vocabulary)
    shape, count = np.shape(mask), next(iter(batch.values())).shape[:1]
    if mask is None or shape[:1] != count:
        actual = f"{'None' if mask is None else f'an array {list(shape)}'} for {count[0]} rows"
        raise UserError(f"objective.kind: {config.objective.kind}: eval_mask of the baseline returns {actual}")
    return batch | {"eval_mask": np.asarray(mask, np.float32)}


def batches(config: Config, data: Data) -> Iterator[dict[str, np.ndarray]]:
    """The validation batches of all tasks in sequence."""
    return itertools.chain.from_iterable(feeds(config, data).values())


def validate(
    setup: Setup,
    objective: Objective,
    eval_step: Callable[..., Any],
    params: Any,
    feeds: Mapping[str, Iterable[dict[str, np.ndarray]]],
    stop: Callable[[], bool] = lambda: False,
    rows: int = 0,
) -> dict[str, float] | None:
    """Means over the whole validation split.

    Args:
      setup: mesh and shardings.
      objective: for the coefficients of the loss parts.
      eval_step: result of `make_eval_step`.
      params: the parameters to evaluate.
      feeds: this process's validation batches of each task.
      stop: called after each batch, in all processes; True stops the evaluation.
      rows: how many there are, for the progress.

    Returns:
      Means over all examples of "loss", each loss part and each metric; with several tasks also "task/loss", … per
      task. None if stopped.
    """
    totals: dict[str, dict[str, np.ndarray]] = {task: {} for task in feeds}
    with setup.use(), track("validating", rows, "rows") as work:
        for task, feed in feeds.items():
            carry = setup.empty_carry()
            for batch in feed:
                step_sums, carry = eval_step(params, steps.put(batch, setup), carry, *setup.teacher_params())
                for name, sums in jax.device_get(step_sums).items():
                    totals[task][name] = totals[task].get(name, 0.0) + np.array(sums, np.float64)
                work.add(setup.config.data.batch_size)
                if stop():
                    return None
    of_all = {name: np.sum([of_task[name] for of_task in totals.values()], 0) for name in next(iter(totals.values()))}
    means = _means(objective, of_all)
    if len(totals) > 1:
        for task, of_task in totals.items():
            # Heads of other tasks have no weight here, nor has a loss part that this task's examples do not have.
            weighted = {name: sums for name, sums in of_task.items() if sums[1] > 0}
            means |= {f"{task}/{name}": value for name, value in _means(objective, weighted).items()}
    return means


def _means(objective: Objective, totals: dict[str, np.ndarray]) -> dict[str, float]:
    """The loss, and each Σ value / Σ weight; a part of the loss that is not there adds nothing, as in training."""
    means = {name: float(value / max(weight, 1e-9)) for name, (value, weight) in totals.items()}
    return {"loss": sum(c * means.get(part, 0.0) for part, c in objective.coefficients().items()), **means}
