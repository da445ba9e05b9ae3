"""Base class of evaluators: settings, and a function of the parameters that is compiled before the first step.

A recipe lists evaluators under `evals:`; the train loop and `jaxpt eval` run them in this order. An evaluator is a
module with one subclass of `Evaluator`, in `jaxpt.evals` or anywhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from jaxpt.config import EvaluatorConfig

if TYPE_CHECKING:
    from jaxpt.config import Config
    from jaxpt.data.base import Data
    from jaxpt.train.state import Setup


class Details(NamedTuple):
    """What is told of the best checkpoint of a run, beside its metrics."""

    lines: tuple[str, ...]
    """Report lines."""
    rows: tuple[dict[str, Any], ...]
    """What was found of each row, ready for JSON."""
    parts: tuple[dict[str, Any], ...] = ()
    """Of each task how often its labels occur, and its rows with the largest loss, with their texts; ready for JSON."""
    simple_models: Mapping[str, Any] = {}
    """{task, "" of the only one: the best simple model on the same rows}, where one was trained; ready for JSON."""


class Result(NamedTuple):
    """Result of an evaluation."""

    metrics: Mapping[str, float] | float = {}
    """{metric: value}, logged as `<name of the evaluator>/<metric>`; a single number is logged under the name."""
    lines: tuple[str, ...] | None = None
    """Report lines; by default the metrics."""
    details: Callable[[Any, Mapping[str, float]], Details] | None = None
    """(parameters, metrics of the validation set) → more about the same rows, where there is more; to be called in all
    processes, with the same parameters."""
    majority_baseline: Mapping[str, float] = {}
    """Metrics of a trivial prediction on the same rows, where there is one."""
    computed: Mapping[str, str] = {}
    """{metric: how it is computed}, where its name does not say all: a label, an average, a scorer's signature."""
    rescored: Callable[[Mapping[str, float]], Result] | None = None
    """Metrics of the validation set → what another evaluation of the same parameters would give, without it."""


Evaluate = Callable[[Any, Mapping[str, float], Callable[[], bool]], Result | None]
"""(parameters, metrics of earlier evaluators, stop) → result.

The parameters are sharded as in training; if the run keeps an average of them, they are the average. Call `stop`
between batches, in all processes, and return None if it returns True. All processes must return the same metrics.
A function may have an attribute `metric_names`, which `checkpoint.best_metric` is compared with before the first step.
"""


def default_every(config: Config) -> int:
    """Steps between the evaluations of an evaluator that does not say, and between checkpoints likewise."""
    return config.train.eval_every or max(config.train.steps // 10, 1)


class Evaluator(EvaluatorConfig):
    """Base of all evaluators. A module defines exactly one subclass."""

    def check(self, config: Config) -> None:
        """Finds what is wrong before TensorFlow is imported and the model made, in a second: files that are not there,
        columns that their first rows have not.

        Args:
          config: the run's configuration.

        Raises:
          UserError: the message begins with a key of the evaluator, before which `evals.N.` is put.
        """

    def prepare(self, setup: Setup, data: Data) -> Evaluate:
        """Makes the evaluation function.

        Compile programs here, ahead of time: during training, a signal would have to wait for the compiler before the
        state is saved.

        Args:
          setup: the run in its current phase: `config`, `network`, mesh and shardings.
          data: `train` and `validation` examples, tokenizer and vocabulary of the phase.

        Returns:
          The evaluation function.

        Raises:
          UserError: for user errors, such as a missing file.
        """
        raise NotImplementedError
