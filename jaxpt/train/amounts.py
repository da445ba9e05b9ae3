"""How much text a run has, and how often it reads it: the line at the start of a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from jaxpt.config import Config
from jaxpt.config.data import SourceConfig
from jaxpt.train.display import number

if TYPE_CHECKING:
    from jaxpt.data.base import Data


def line(config: Config, data: Data, steps: int) -> str:
    """Documents, tokens and epochs of the training set, and where it is from.

    Args:
      config: of the phase.
      data: what was prepared for it.
      steps: of the phase, from its beginning.

    Returns:
      As "train: 38 documents, 315k tokens of mytexts/*.txt; 0.81 epochs in 1,000 steps".
    """
    counts = [entry for name, entry in data.summary.items() if name.rpartition("/")[2] == "train"]
    documents, tokens = (sum(entry.get(name, 0) for entry in counts) for name in ("documents", "tokens"))
    tokens //= config.objective.data_spec(config.data.length).num_passes
    unit = "documents" if config.task is None else "rows"
    held = f"{documents or sum(entry['records'] for entry in counts):,} {unit}"
    if tokens:
        held += f", {number(tokens)} tokens"
    from_files = config.data.source == "batches"
    sources: Sequence[SourceConfig] = (config.data,) if from_files else config.data.mixture or (config.data,)
    origin = ", ".join(dict.fromkeys(of_source(source) for source in sources))
    if left := sum(entry.get("shards_left", 0) for entry in counts):
        return f"train: {held} of {origin} so far, {left} more shards are made beside the run; {steps:,} steps"
    rows = steps * config.data.batch_size
    read = rows * data.text_per_row / tokens if tokens else rows / max(sum(entry["records"] for entry in counts), 1)
    return f"train: {held} of {origin}; {few(read)} epochs in {steps:,} steps"


def few(value: float) -> str:
    """A number of epochs: 0.81, 2.3, 233."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.2g}"


def of_source(data: SourceConfig) -> str:
    """Where text comes from, in words.

    Args:
      data: a source.

    Returns:
      Paths, the name of a task or set, where prepared batches lie, or "CPython's documentation (no data.path)".
    """
    if data.source == "builtin" or (data.source == "auto" and data.path is None):
        return "CPython's documentation" + (" (no data.path)" if data.source == "auto" else "")
    if data.source == "batches":
        return f"batches prepared in {data.path}"
    paths = (data.path,) if isinstance(data.path, str) else data.path or ()
    name = data.task or data.source
    return " + ".join(paths[:3]) + (f" and {len(paths) - 3} more" if len(paths) > 3 else "") if paths else name
