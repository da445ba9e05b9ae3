"""Nats and perplexity of a dialogue's answer tokens, beside those of the model that training started from."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from jaxpt.evals.base import Evaluate, Evaluator, Result
from jaxpt.evals.heldout import feeds, validate
from jaxpt.parallel import distributed
from jaxpt.train import initial
from jaxpt.train import step as steps
from jaxpt.train.state import Setup

if TYPE_CHECKING:
    from jaxpt.data.datasets import Data


class Answers(Evaluator):
    """Loss and perplexity of an answer token on the validation split, and those of `init_from`'s model."""

    kind: Literal["answers"] = "answers"
    of: str = "validation"
    """Name of an earlier evaluator in the list, whose loss is reported."""

    def prepare(self, setup: Setup, data: Data) -> Evaluate:
        base: list[float | None] = []  # the first evaluation measures it

        def evaluate(params: Any, earlier: Mapping[str, float], stop: Callable[[], bool]) -> Result | None:
            loss = earlier.get(f"{self.of}/target_loss")
            if loss is None:
                return Result({})
            if not base:
                found = base_loss(setup, data, stop)
                if found is None and stop():
                    return None
                base.append(found)
            metrics = {"nats": loss, "perplexity": math.exp(min(loss, 700.0))}
            line = f"{self.called}: {loss:.4f} nats per answer token, perplexity {metrics['perplexity']:.2f}"
            if base[0] is not None:
                metrics |= {"base_nats": base[0], "base_perplexity": math.exp(min(base[0], 700.0))}
                line += f" (base {base[0]:.4f} nats, perplexity {metrics['base_perplexity']:.2f})"
            return Result(metrics, (line,))

        return evaluate


def base_loss(setup: Setup, data: Data, stop: Callable[[], bool] = lambda: False) -> float | None:
    """Nats per target of the model that a run starts from, on the validation split.

    Args:
      setup: the run, for evaluation.
      data: its data.
      stop: called between batches, in all processes.

    Returns:
      The loss; None if the run starts from no weights, they are no longer there, or it was stopped.
    """
    config = setup.config
    source = config.init_from
    if source is None or not Path(source.path).exists():
        return None
    params = initial.start(setup, source, lambda line: None).params
    rows = distributed.rows(setup.mesh, config.data.batch_size)
    means = validate(setup, config.objective, steps.make_eval_step(setup, config.objective), params, feeds(config, data, rows), stop)
    return None if means is None else means["target_loss"]
