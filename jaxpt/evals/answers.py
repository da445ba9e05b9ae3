"""Nats and perplexity of a dialogue's answer tokens, beside those of the model that training started from."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from jaxpt.evals.heldout import compiled_step, feeds, rows_of, validate
from jaxpt.train import initial, state
from jaxpt.train.evaluators import Evaluate, Evaluator, Result
from jaxpt.train.state import Setup

if TYPE_CHECKING:
    from jaxpt.data.base import Data


class Answers(Evaluator):
    """Loss and perplexity of an answer token on the validation split, and those of `init_from`'s model."""

    kind: Literal["answers"] = "answers"
    of: str = "validation"
    """Name of an earlier evaluator in the list, whose loss is reported."""

    def prepare(self, setup: Setup, data: Data) -> Evaluate:
        measure, base = base_loss(setup, data), list[float]()  # the first evaluation measures it

        def evaluate(params: Any, earlier: Mapping[str, float], stop: Callable[[], bool]) -> Result | None:
            loss = earlier.get(f"{self.of}/target_loss")
            if loss is None:
                return Result({})
            if measure is not None and not base:
                if (base_nats := measure(stop)) is None:
                    return None
                base.append(base_nats)
            metrics = {"nats": loss, "perplexity": _perplexity(loss)}
            line = f"{self.called}: {loss:.4f} nats per answer token, perplexity {metrics['perplexity']:.2f}"
            if base:
                metrics |= {"base_nats": base[0], "base_perplexity": _perplexity(base[0])}
                line += f" (base {base[0]:.4f} nats, perplexity {metrics['base_perplexity']:.2f})"
            return Result(metrics, (line,))

        return evaluate


def base_loss(setup: Setup, data: Data) -> Callable[[Callable[[], bool]], float | None] | None:
    """Compiles a function that measures the model that a run starts from, on the validation split.

    Args:
      setup: the run, for evaluation.
      data: its data.

    Returns:
      stop → nats per target, or None if it was stopped; None if the run starts from no weights, or these are no longer
      there.
    """
    config = setup.config
    source = config.init_from
    if source is None or source.random or not Path(source.path).exists():
        return None
    if config.train.lora is not None:  # the base has no adapter
        setup = state.setup(config.model_copy(update={"train": config.train.model_copy(update={"lora": None})}))
    program = compiled_step(setup, data)

    def measure(stop: Callable[[], bool]) -> float | None:
        params = initial.start(setup, source, lambda line: None).params
        means = validate(setup, config.objective, program, params, feeds(config, data, rows_of(setup)), stop)
        return None if means is None else means["target_loss"]

    return measure


def _perplexity(nats: float) -> float:
    return math.exp(min(nats, 700.0))
