"""The tasks of a mixture. Each has its own source, records, order and epochs."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from jaxpt.config import Config
from jaxpt.data.parts import Part
from jaxpt.data.sources.base import Source
from jaxpt.data.sources.readers import PAIR_SEPARATOR
from jaxpt.data.stream.order import Mixture, proportional


def mixture(
    config: Config, tasks: Sequence[Part], sizes: Sequence[int], key: int, examples: Sequence[int] | None = None
) -> Mixture:
    """The shares of the tasks.

    Args:
      config: gives temperature and cap of shares by size.
      tasks: what `parts.parts` gave.
      sizes: rows of each task.
      key: decides the order.
      examples: of each task; None: a row is one. With them shares are of examples, of which a packed row has several.

    Returns:
      Which task gives which row.
    """
    rates = [task.rate for task in tasks]
    if None in rates:
        rates = proportional(examples or sizes, config.data.mixture_temperature, config.data.mixture_cap)
    if examples is not None:
        rates = [rate * rows / count for rate, rows, count in zip(rates, sizes, examples)]
    return Mixture(rates, key)


def languages(sources: Sequence[Source]) -> list[str]:
    """The languages of several sources, each once, in the order in which they come."""
    return list(dict.fromkeys(source.language for source in sources if source.language is not None))


def texts(sources: Sequence[Source]) -> Iterator[str]:
    """The training texts of several sources in turn, for a vocabulary of all of them."""
    streams = ((text for _, _, text in source.documents("train") if isinstance(text, str)) for source in sources)
    for group in itertools.zip_longest(*streams):
        yield from (text.replace(PAIR_SEPARATOR, "\n") for text in group if text is not None)
