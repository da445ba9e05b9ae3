"""The one way to a run's data: from text, by `datasets.prepare`, or from prepared batches. No TensorFlow for these."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jaxpt.config import Config
from jaxpt.data.base import Data
from jaxpt.data.batches.read import open_batches
from jaxpt.data.fingerprint import NEWEST
from jaxpt.runtime.progress import Report


def import_pipeline(config: Config) -> None:
    """Imports what `prepare` needs: TensorFlow and SeqIO take seconds; nothing for prepared batches."""
    if config.data.source != "batches":
        from jaxpt.data import datasets  # noqa: F401


def prepare(
    config: Config,
    phase: int = 0,
    report: Report | None = None,
    save: bool = True,
    check_source: Callable[[Any], None] = lambda source: None,
    order: int = NEWEST,
    beside: bool = False,
) -> Data:
    """Makes the data of one phase ready, as `data.source` says.

    Args:
      config, phase, report, save, check_source: as of `jaxpt.data.datasets.prepare`.
      order: version of the order of the records that the run has, where it fits the run.
      beside: return when the first records are there; a thread makes the rest.

    Returns:
      Tokenizer, streams, and what determines them.

    Raises:
      UserError: the data, vocabulary or settings are not as they should be.
    """
    if config.data.source == "batches":
        return open_batches(config, phase, save, check_source)
    from jaxpt.data.datasets import prepare as from_text

    return from_text(config, phase, report, save, check_source=check_source, order=order, beside=beside)
