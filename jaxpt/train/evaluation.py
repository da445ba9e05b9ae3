"""The evaluators of a phase: which are due, what they find, and how it is called."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxpt.config import Config, EvaluatorConfig
from jaxpt.config.applications import EVALUATORS
from jaxpt.config.kinds import nearest, resolve
from jaxpt.errors import UserError, shown
from jaxpt.runtime.progress import counted, track
from jaxpt.train.checkpoint import Checkpoints
from jaxpt.train.evaluators import default_every
from jaxpt.train.metrics import Metrics
from jaxpt.train.run_dir import records
from jaxpt.train.state import Setup

if TYPE_CHECKING:
    from jaxpt.data.base import Data
    from jaxpt.train.evaluators import Evaluate, Result


class Evaluators:
    """Those of a recipe, in one phase of a run.

    Attributes:
      found: {name: result} of what has run since `forget`.
      earlier: figures of the same parameters from before the process began, by their full names.
    """

    def __init__(self, setup: Setup, data: Data) -> None:
        """Nothing is compiled yet."""
        self._setup, self._data = setup, data
        self._ready: dict[str, Evaluate] = {}
        self.found: dict[str, Result] = {}
        self.earlier: Mapping[str, float] = {}

    def compile(self) -> None:
        """Makes ready those that run during the steps.

        Raises:
          UserError: `checkpoint.best_metric` is none of an evaluator's, as far as it knows them.
        """
        evaluators = [evaluator for evaluator in self._setup.config.evals if evaluator.every != "end"]
        for evaluator in counted(evaluators, "compiling evaluators", len(evaluators), "evaluators"):
            names = getattr(self._prepared(evaluator), "metric_names", None)
            metric = self._setup.config.checkpoint.best_metric
            evaluator_name, _, name = metric.partition("/")
            if names is not None and evaluator_name == evaluator.called and name not in names:
                raise UserError(
                    f"checkpoint.best_metric: {metric}: {evaluator_name} measures no {name}{nearest(name, names)}"
                )

    def due(self, step: int) -> list[EvaluatorConfig]:
        """Those that run after a step; at the last one all but those for the end alone."""
        config = self._setup.config

        def is_due(every: int) -> bool:
            return step % every == 0 or step == config.train.steps

        return [e for e in config.evals if e.every != "end" and is_due(e.every or default_every(config))]

    def missing(self) -> list[EvaluatorConfig]:
        """Those that have found nothing since `forget`."""
        return [evaluator for evaluator in self._setup.config.evals if evaluator.called not in self.found]

    def forget(self) -> None:
        """The parameters are others from now on."""
        self.found, self.earlier = {}, {}

    @property
    def measured(self) -> dict[str, float]:
        """What is known of the parameters: metrics by their full names."""
        return {**self.earlier, **figures(self.found)}

    def progress(self, due: Sequence[EvaluatorConfig]) -> dict[str, Any]:
        """What is kept beside a checkpoint: which of the evaluators that are due have not run, and, for these, what the
        others found."""
        missed = [evaluator.called for evaluator in due if evaluator.called not in self.found]
        return {"missed": missed, "measured": self.measured if missed else {}}

    def run(
        self, evaluators: Iterable[EvaluatorConfig], params: object, stop: Callable[[], bool] = lambda: False
    ) -> Iterator[tuple[str, Result]]:
        """Runs evaluators one after the other.

        Args:
          evaluators: some of the recipe's.
          params: the parameters.
          stop: asked between batches; True ends it.

        Yields:
          (name, result) of each that was not stopped.
        """
        for evaluator in evaluators:
            with track(f"evaluating {evaluator.called}"):
                result = self._prepared(evaluator)(params, self.measured, stop)
            if result is None and stop():
                return
            self.found[evaluator.called] = result = checked(evaluator, result)
            yield evaluator.called, result

    def lines(self, name: str, result: Result) -> list[str]:
        """What the user is shown of a result of `run`."""
        return lines(name, result, (*self._setup.config.objective.coefficients(), "target_loss"))

    def of_task(self, split: str) -> Evaluate | None:
        """What measures a task on a split: "test", or "validation", if the recipe has an evaluator for it."""
        evaluators = [evaluator for evaluator in self._setup.config.evals if evaluator.kind == "task"]
        if split == "test":
            settings = evaluators[0] if evaluators else resolve("task", EVALUATORS, EvaluatorConfig)()
            return self._prepared(settings.model_copy(update={"name": "test", "split": "test"}))
        return next((self._prepared(evaluator) for evaluator in evaluators if evaluator.split == split), None)

    def rescored_task(self, measured: Mapping[str, float]) -> Result | None:
        """What `of_task("validation")` would give of the parameters that were evaluated since `forget`; None if it was
        not run.

        Args:
          measured: metrics of the validation set.
        """
        evals = self._setup.config.evals
        name = next((one.called for one in evals if one.kind == "task" and one.split == "validation"), None)
        rescored = self.found[name].rescored if name in self.found else None
        return None if rescored is None else rescored(measured)

    def without_best(self) -> str | None:
        """What is to be said where an evaluator ran that does not give `checkpoint.best_metric`, though named in it."""
        metric, known = self._setup.config.checkpoint.best_metric, figures(self.found)
        name = metric.partition("/")[0]
        if name not in self.found or metric in known:
            return None
        metric_names = list(figures({name: self.found[name]}))
        return f"checkpoint.best_metric: {metric} was not measured{nearest(metric, metric_names)}"

    def _prepared(self, evaluator: EvaluatorConfig) -> Evaluate:
        if evaluator.called not in self._ready:
            self._ready[evaluator.called] = evaluator.prepare(self._setup, self._data)
        return self._ready[evaluator.called]


class Patience:
    """For how many evaluations of a phase `checkpoint.best_metric` has not improved; each phase counts anew, as its
    texts may have another length. Kept beside each checkpoint where `train.patience` is set."""

    def __init__(self, config: Config, meta: Mapping[str, Any] | None) -> None:
        """Restores the state from a checkpoint's `meta`, if any; that of another metric or mode is left out."""
        self._config = config
        self._metric = [config.checkpoint.best_metric, config.checkpoint.best_mode]
        self._best, self._evaluations = None, 0
        self._start: int | None = None
        best, evaluations, *rest = (meta or {}).get("patience", (None, 0))
        metric, start = rest[:2], rest[2:]
        if not metric:  # of an earlier version
            settings = (meta or {}).get("config", {}).get("checkpoint", {})
            metric = [settings.get(key, now) for key, now in zip(("best_metric", "best_mode"), self._metric)]
        if metric == self._metric:
            self._best, self._evaluations, self._start = best, evaluations, next(iter(start), None)

    @property
    def is_over(self) -> bool:
        """Whether the run is to end."""
        patience = self._config.train.patience
        return patience is not None and self._evaluations >= patience

    def see(self, results: Mapping[str, Result], start: int) -> str | None:
        """Counts an evaluation, if it measured the metric.

        Args:
          results: {name of the evaluator: result}.
          start: the step at which the run's phase begins.

        Returns:
          What is to be said where the run ends by it.
        """
        metric, mode = self._metric
        score = figures(results).get(metric)
        if score is None:
            return None
        if self._start not in (None, start):
            self._best, self._evaluations = None, 0
        self._start = start
        sign = 1 if mode == "min" else -1
        if math.isfinite(score) and (self._best is None or sign * score < sign * self._best):
            self._best, self._evaluations = score, 0
        else:
            self._evaluations += 1
        if not self.is_over:
            return None
        return f"train.patience: {metric} did not improve in {self._evaluations} evaluations; the run ends"

    def saved(self) -> dict[str, Any]:
        """What is kept beside a checkpoint."""
        state = [self._best, self._evaluations, *self._metric, self._start]
        return {"patience": state} if self._config.train.patience else {}


def checked(evaluator: EvaluatorConfig, result: Any) -> Result:
    """What an evaluator found, its metrics as Python's numbers.

    Args:
      evaluator: for messages.
      result: what its function returned.

    Raises:
      UserError: it is no `Result` of numbers.
    """
    where = f"evals: {evaluator.called} (kind: {evaluator.kind})"
    if not hasattr(result, "metrics") or not hasattr(result, "lines"):
        form = type(result).__name__
        raise UserError(
            f"{where}: must return a jaxpt.train.evaluators.Result, or None if `stop` said so; it returns {form}"
        )
    if result.lines is not None and not (isinstance(result.lines, tuple | list) and all(map(_is_text, result.lines))):
        raise UserError(f"{where}: Result.lines must be lines of text, they are {shown(result.lines)}")
    metrics = result.metrics if isinstance(result.metrics, Mapping) else {"metrics": result.metrics}
    numbers = {}
    for name, x in metrics.items():
        try:
            numbers[name] = float("" if isinstance(x, str) or not isinstance(name, str) else x)
        except (TypeError, ValueError):
            raise UserError(f"{where}: Result.metrics: {name!r} must be a number, it is {shown(x)}") from None
    return result._replace(metrics=numbers if isinstance(result.metrics, Mapping) else numbers["metrics"])


def _is_text(x: Any) -> bool:
    return isinstance(x, str)


def record(run_dir: Path, config: Config, step: int, measured: Mapping[str, float], checkpoints: Checkpoints) -> None:
    """Records what evaluators found of a finished run that a signal had stopped at its last step; once.

    Args:
      run_dir: of the run.
      config: of the run.
      step: the last one.
      measured: metrics by their full names.
      checkpoints: of the run, whose last one is ranked by them.
    """
    if not is_recorded(run_dir, step, measured):
        metrics = Metrics(run_dir, config, step)
        metrics.write(step, dict(measured))
        metrics.close()
    checkpoints.add_figures(step, measured)


def is_recorded(run_dir: Path, step: int, measured: Mapping[str, float]) -> bool:
    """Whether metrics.jsonl has figures of a step by the names of those measured."""
    return any(entry["step"] == step and not measured.keys().isdisjoint(entry) for entry in records(run_dir)[0])


def figures(results: Mapping[str, Result]) -> dict[str, float]:
    """Metrics by their full names, as in metrics.jsonl.

    Example:
      >>> from jaxpt.train.evaluators import Result
      >>> figures({"validation": Result({"loss": 3.5}), "f1": Result(0.5), "samples": Result(lines=("one",))})
      {'validation/loss': 3.5, 'f1': 0.5}
    """
    named: dict[str, float] = {}
    for name, result in results.items():
        if isinstance(result.metrics, Mapping):
            named |= {f"{name}/{metric}": value for metric, value in result.metrics.items()}
        else:
            named[name] = result.metrics
    return named


def lines(name: str, result: Result, losses: Collection[str] = ()) -> list[str]:
    """What the user is shown of a result.

    Args:
      name: of the evaluator.
      result: what it found.
      losses: metrics that are left out where they are the loss again: its only part, and that at the targets.

    Example:
      >>> from jaxpt.train.evaluators import Result
      >>> lines("validation", Result({"loss": 3.5, "a/loss": 3.0, "a/accuracy": 0.5}))
      ['validation: loss 3.5000  a/loss 3.0000']
      >>> lines("validation", Result({"loss": 0.5, "regression": 0.5, "accuracy": 0.5}), ("regression", "target_loss"))
      ['validation: loss 0.5000  accuracy 0.5000']
    """
    if result.lines is not None:
        return list(result.lines)
    if not isinstance(result.metrics, Mapping):
        return [f"{name}: {result.metrics:.4f}"]
    loss = result.metrics.get("loss", math.nan)
    again = {k for k in losses if math.isclose(result.metrics.get(k, math.inf), loss, rel_tol=1e-6)}
    named = {k: v for k, v in result.metrics.items() if k not in again and ("/" not in k or k.endswith("/loss"))}
    return [f"{name}: {'  '.join(f'{k} {v:.4f}' for k, v in named.items())}"] if named else []
