"""Tasks of the harness while a model trains; `limit` says what they cost."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from jaxpt.config import NonNegativeInt, Overrides, PositiveInt
from jaxpt.decode import likelihood, prompts
from jaxpt.decode.engine import Prompt
from jaxpt.decode.options import Options, StopStrings
from jaxpt.errors import UserError
from jaxpt.evals import generation
from jaxpt.evals.few_shot import baselines, measures, scoring, task
from jaxpt.evals.few_shot.examples import Example, check_first_rows, examples
from jaxpt.evals.few_shot.model import Complete, NetworkModel
from jaxpt.train import foreign, vocabularies
from jaxpt.train.evaluators import Evaluate, Evaluator, Result
from jaxpt.train.state import Setup

if TYPE_CHECKING:
    from jaxpt.config import Config
    from jaxpt.data.base import Data

CHUNK = 64
"""Examples between two questions whether to stop."""
Values = Mapping[str, measures.Value]
"""{metric: value}."""


class Harness(Evaluator):
    """Metrics of tasks, as `jaxpt eval RUN_DIR --tasks …` has them; programs are compiled by the first evaluation."""

    kind: Literal["harness"] = "harness"
    tasks: Annotated[tuple[str, ...], Field(min_length=1)]
    """Names of tasks, or their files."""
    set: Overrides = ()
    """Keys of the tasks, as `{lambada.data.path: rows.jsonl}`."""
    shots: NonNegativeInt | None = None
    """Examples shown before each; each task's own by default."""
    limit: PositiveInt | None = None
    """The first examples of each task alone; of pairs, of each group."""
    data: str | None = None
    """The directory with the tasks' files."""
    seed: NonNegativeInt = 0
    """Of the shots."""
    form: Literal["plain", "span"] | None = None
    """Of an encoder-decoder: the target, or a missing span; by default as it is pretrained."""
    unit: Literal["piece", "word"] = "piece"
    """Of an encoder: one token is masked, or the later ones of its word too."""

    def check(self, config: Config) -> None:
        likelihood.check_settings(config.model, self.form, None if self.unit == "piece" else self.unit)
        if self.data and not Path(self.data).is_dir():
            raise UserError(f"data: {self.data}: no such directory")
        try:
            for eval_task in self._load_tasks(""):
                hint = f"data: DIR, or set: {{{eval_task.name}.data.path: FILE}}"
                check_first_rows(eval_task, self.data, hint)
        except UserError as error:
            raise UserError(f"tasks: {error}") from None

    def _load_tasks(self, key: str) -> list[task.HarnessTask]:
        """The tasks with what `set` changes; `key`: where their names stand, for messages."""
        return task.load_all(self.tasks, [f"{name}={json.dumps(value)}" for name, value in self.set], key)

    def _check_model(
        self, model: NetworkModel, task_examples: Sequence[tuple[task.HarnessTask, Sequence[Example]]]
    ) -> None:
        """Raises UserError, before the first step, where the model cannot be asked a task in this form."""
        try:
            for eval_task, of_task in task_examples:
                model.check(eval_task)
                model.check_examples(eval_task, of_task)
        except UserError as error:
            raise UserError(f"evals.{self.called}: {error}") from None

    def prepare(self, setup: Setup, data: Data) -> Evaluate:
        config = setup.config
        tasks = self._load_tasks(f"evals.{self.called}.tasks")
        task_examples = [
            (eval_task, examples(eval_task, self.shots, self.limit, self.data, self.seed)) for eval_task in tasks
        ]
        constant = {eval_task.name: baselines.baselines(eval_task, of_task) for eval_task, of_task in task_examples}
        reader = prompts.of_run(config, data.tokenizer)
        run_dir, size = Path(config.run_dir), config.model.vocab_size
        ids = next((found for reader in foreign.readers() if (found := reader.ids(run_dir, size))), {})
        texts = generation.Generation(setup)
        ends = prompts.eos_of(data.tokenizer, prompts.tokenizer_folder(run_dir), ids.get("eos", ()))
        options = Options(**(ids | {"eos": ends}))

        def build_model(params: Any) -> NetworkModel:
            complete = _complete(texts, params, reader, options)
            return NetworkModel(
                setup.network, params, reader, complete, form=self.form, unit=self.unit, current=setup.use
            )

        self._check_model(build_model(None), task_examples)

        def evaluate(params: Any, earlier: Mapping[str, float], stop: Callable[[], bool]) -> Result | None:
            model = build_model(vocabularies.with_word_vectors(config, data.tokenizer, params))
            metrics: dict[str, float] = {}
            lines = []
            for eval_task, of_task in task_examples:
                outcomes: list[measures.SampleResult] = []
                for first in range(0, len(of_task), CHUNK):
                    outcomes += scoring.score(eval_task, model, of_task[first : first + CHUNK])
                    if stop():
                        return None
                values = measures.measure(eval_task, outcomes)
                metrics |= {f"{eval_task.name}/{name}": value.value for name, value in values.items()}
                lines.append(f"{self.called}: {line_of(eval_task, values, constant[eval_task.name])}")
            return Result(metrics, tuple(lines))

        return evaluate


def line_of(one: task.HarnessTask, values: Values, constant: Mapping[str, Values]) -> str:
    """The metrics of a task; in brackets the first one of each baseline.

    Args:
      one: the task.
      values: its metrics.
      constant: {baseline: its metrics}.

    Returns:
      A line.
    """
    summary = "  ".join(f"{name} {value}" for name, value in values.items())
    first = next(iter(values))  # of squad: exact_match
    trivial = ", ".join(f"{name} {metrics[first]}" for name, metrics in constant.items() if first in metrics)
    return f"{one.name}: {summary}" + (f" ({trivial})" if trivial else "")


def _complete(texts: generation.Generation, params: Any, reader: prompts.PromptEncoder, options: Options) -> Complete:
    """Writes answers by the run's own programs; a stop string ends one, and what follows it is cut off."""

    def decode(ids: Sequence[int]) -> str:
        return reader.tokenizer.decode([i for i in ids if i not in options.eos])

    def complete(prompts: Sequence[Prompt], max_new_tokens: int, stop: Sequence[str]) -> list[str]:
        stops = StopStrings(stop)

        def watch(index: int, sample: int, ids: list[int]) -> bool:
            return stops.first(decode(ids)) is not None

        limited = dataclasses.replace(options, max_new_tokens=max_new_tokens)
        answer_ids = texts(params, list(prompts), limited, watch=watch if stop else None)
        return [stops.cut(decode(ids)) for ids in answer_ids]

    return complete
