"""The metrics of a registered SeqIO Task (`metric_fns`, `postprocess_fn`), by SeqIO's Evaluator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from jaxpt.config import PositiveInt
from jaxpt.decode.engine import Prompt
from jaxpt.decode.packed import Row
from jaxpt.errors import UserError
from jaxpt.evals import generation, predictors
from jaxpt.objectives.seq2seq import Seq2Seq
from jaxpt.objectives.text_to_text import Decoding
from jaxpt.train.evaluators import Evaluate, Evaluator, Result
from jaxpt.train.state import Setup

if TYPE_CHECKING:
    from jaxpt.data.base import Data
    from jaxpt.data.task_metrics import TaskMetrics


class SeqioTask(Evaluator):
    """The Task's own metrics: on generated text, and on the log-likelihood of the targets."""

    kind: Literal["seqio_task"] = "seqio_task"
    split: str | None = None
    """The Task's split that is scored; by default the one that is held out from training."""
    examples: PositiveInt | None = None
    """Only the first so many examples."""
    decoding: Decoding = Decoding()
    """How answers are generated; at most `objective.targets_length` tokens by default."""

    def prepare(self, setup: Setup, data: Data) -> Evaluate:
        from jaxpt.data import parts
        from jaxpt.data.task_metrics import TaskMetrics

        config, objective = setup.config, setup.config.objective
        mixed = parts.parts(config)
        if not isinstance(objective, Seq2Seq) or any(part.config.data.source != "task" for part in mixed):
            raise UserError("evals: seqio_task needs data.source: task and objective.kind: seq2seq; remove it")
        targets_length = objective.targets_length or config.data.length
        tasks = {part.name: TaskMetrics(part.config.data, targets_length, self.split, self.examples) for part in mixed}
        vocabulary = data.vocabulary
        options = generation.search_options(
            self.decoding, self.decoding.max_new_tokens or targets_length, vocabulary.eos
        )
        texts = generation.Generation(setup)
        for task in tasks.values():
            if task.wants_predictions:
                texts.compile(_prompts(task, vocabulary.pad), options)
            if task.wants_scores:
                predictors.target_log_probs(setup, setup.placed_shapes().params, _scored(task, vocabulary.pad))

        def evaluate(params: Any, earlier: Mapping[str, float], stop: Callable[[], bool]) -> Result | None:
            metrics: dict[str, float] = {}
            for name, task in tasks.items():
                ids, log_probs = [], []
                if task.wants_predictions:
                    ids = texts(params, _prompts(task, vocabulary.pad), options, stop)
                if task.wants_scores and ids is not None:
                    log_probs = predictors.target_log_probs(setup, params, _scored(task, vocabulary.pad), stop)
                if ids is None or log_probs is None:
                    return None
                of_task = task.measure(ids, [float(x.sum(dtype="float64")) for x in log_probs], vocabulary.eos)
                metrics |= {f"{name}/{metric}" if len(tasks) > 1 else metric: x for metric, x in of_task.items()}
            return Result(metrics)

        return evaluate


def _prompts(task: TaskMetrics, start: int) -> list[Prompt]:
    """What is read of each example."""
    return [Prompt([start], example.inputs) for example in task.examples]


def _scored(task: TaskMetrics, start: int) -> list[Row]:
    """Each example with its targets."""
    prompts = _prompts(task, start)
    return [predictors.row_of(prompt, example.targets) for prompt, example in zip(prompts, task.examples)]
