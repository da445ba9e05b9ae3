"""What to do with a finished run: commands, ready to paste."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from jaxpt.config import Config
from jaxpt.data.labelled.files import NAMED
from jaxpt.data.parts import each_task
from jaxpt.errors import UserError

if TYPE_CHECKING:
    from jaxpt.data.base import Data


def next_commands(config: Config, data: Data, run_dir: Path) -> str:
    """Lines with a command each; the last one generates text, if the model does.

    Args:
      config: the run's configuration, of its last phase.
      data: the run's data.
      run_dir: the run.

    Returns:
      The lines.
    """
    run, prompt = shlex.quote(str(run_dir)), shlex.quote(example_prompt(config, data))
    lines = [
        f"to evaluate it: jaxpt eval {run}",
        *([f"to see its data: jaxpt inspect {run}"] if config.data.source != "batches" else []),
        f"to extend it: jaxpt train {run} train.steps={2 * config.train.steps}",
    ]
    if config.task is not None and config.task.kind == "dialogue":
        lines.append(f"to try it: jaxpt chat {run}")
    elif config.task is not None:
        name, task_config = next(iter(each_task(config).items()))
        use = f" task.use={name}" if name else ""
        lines.append(
            f"to try it: jaxpt predict {run} {shlex.quote(_some_file(task_config))} --out predictions.jsonl{use}"
        )
    elif _generates(config, data):
        lines.append(f"to try it: jaxpt generate {run} --prompt {prompt}")
    return "\n".join(lines)


def _some_file(config: Config) -> str:
    """A file with rows of the task."""
    data = config.data
    paths = data.test_path or data.validation_path or data.path
    if data.source in NAMED or paths is None:
        return "FILE"
    return paths if isinstance(paths, str) else paths[0]


def example_prompt(config: Config, data: Data) -> str:
    """A prompt for the model: with a mask or a sentinel if it fills them, as its tokenizer writes it."""
    blank = _blank(config, data)
    return "The cat sat on" if blank is None else f"The {data.tokenizer.tokens([blank])[0]} sat on the mat."


def _generates(config: Config, data: Data) -> bool:
    """True if `jaxpt generate` can answer: an encoder fills masks, other models decode with a cache."""
    if config.objective.family == "encoder":
        is_trained = "masked_positions" in config.objective.data_spec(config.data.length).features
        return is_trained and data.vocabulary.mask is not None
    return config.objective.network(config.model).has_cache


def _blank(config: Config, data: Data) -> int | None:
    """The id of what the model fills."""
    vocabulary, family = data.vocabulary, config.objective.family
    if family == "encoder":
        return vocabulary.mask
    try:
        language = next(iter(vocabulary.languages), None)
        kind = config.objective.text_format(config.model, vocabulary, language=language).blank
    except UserError:  # a finished run does not fail here
        return None
    return {"mask": vocabulary.mask, "sentinels": vocabulary.first_sentinel}.get(kind)
