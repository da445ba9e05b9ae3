"""What an evaluator is: settings, and a function of the parameters that is made ready before the first step.

A recipe names evaluators under `evals:`; the train loop and `jaxpt eval` run them in that order. One is one module of
this package, or of anyone's, with one subclass of `Evaluator`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from jaxpt.config import EvaluatorConfig

if TYPE_CHECKING:
    from jaxpt.data.pipeline import Data
    from jaxpt.train.state import Setup


class Result(NamedTuple):
    """What an evaluator found."""

    metrics: Mapping[str, float] | float = {}
    """{metric: value}, recorded as `<name of the evaluator>/<metric>`; a single number is recorded under the name."""
    lines: tuple[str, ...] | None = None
    """What the user is shown, the metrics by default."""


Evaluate = Callable[[Any, Mapping[str, float], Callable[[], bool]], Result | None]
"""(parameters, metrics of the evaluators before this one, stop) → what was found.

The parameters are placed as in training; where an average of them is kept it is that. `stop` is asked between batches,
in all processes: where it says True the answer is None. All processes give the same metrics.
"""


class Evaluator(EvaluatorConfig):
    """Base of all evaluators: subclass it once in a module of `jaxpt.evals` (or your own)."""

    def prepare(self, setup: Setup, data: Data) -> Evaluate:
        """Makes ready what is called at each evaluation.

        Programs are compiled here, ahead of time: during the steps a signal would have to wait for the compiler while
        the state is not saved.

        Args:
          setup: the run in its current phase: `config`, `network`, mesh and placement.
          data: `train` and `validation` examples, tokenizer and vocabulary of the phase.

        Returns:
          The function.

        Raises:
          UserError: for what a user can mend, such as a file that is missing.
        """
        raise NotImplementedError
