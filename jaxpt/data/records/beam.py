"""The shards of a store made by Apache Beam, where one machine's cores are too few.

The same shards as `cache.py` makes, of the same bytes: each is an element of the pipeline. All workers and
the machine that starts the pipeline share the directory of the cache (a mounted file system).
"""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxpt.data.records.work import Work, WorkSpec, make_shard
from jaxpt.errors import UserError


def make_shards(spec: WorkSpec, jobs: Sequence[tuple[int, Any, Path]], options: Sequence[str]) -> None:
    """Runs the pipeline to its end.

    Args:
      spec: how shards are made.
      jobs: (number, shard, file) of each.
      options: Beam's own, such as `--runner=DataflowRunner --project=…`.

    Raises:
      UserError: Beam is not installed, or a shard is not where it should be afterwards.
    """
    try:
        import apache_beam as beam
        from apache_beam.options.pipeline_options import PipelineOptions
    except ModuleNotFoundError:
        raise UserError("--beam needs Apache Beam: pip install 'jaxpt[beam]'") from None
    work = [(number, shard, os.path.abspath(path)) for number, shard, path in jobs]
    with beam.Pipeline(options=PipelineOptions(list(options))) as pipeline:
        _ = pipeline | beam.Create(work) | beam.Reshuffle() | beam.Map(functools.partial(_make, spec))
    lost = [path for _, _, path in work if not os.path.exists(path)]
    if lost:
        raise UserError(f"--beam: {lost[0]} is not there: workers and this machine must share data.cache_dir")


_opened: dict[Any, Work] = {}


def _make(spec: WorkSpec, job: tuple[int, Any, str]) -> None:
    """One shard, on a worker; a worker opens sources and vocabulary once."""
    number, shard, path = job
    key = repr(spec)
    if key not in _opened:
        _opened.clear()
        _opened[key] = spec.open()
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    make_shard(_opened[key], number, shard, Path(path))
