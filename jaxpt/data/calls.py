"""What an objective asks of the data: preprocessors by their names, and the ids of a vocabulary. No TensorFlow."""

from __future__ import annotations

import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """The ids that objectives need to know of a vocabulary; None where it has no such token."""

    size: int
    pad: int = 0
    unk: int | None = None
    bos: int | None = None
    eos: int | None = None
    cls: int | None = None
    sep: int | None = None
    mask: int | None = None
    sentinels: int = 0
    """How many sentinels; the first is id size-1, the next size-2, …"""
    languages: tuple[int, ...] = ()
    """The tokens of the recipe's languages."""


@dataclasses.dataclass(frozen=True)
class Call:
    """A preprocessor by name, with its arguments: `Call("span_corruption.corrupt", {"density": 0.15})`.

    The name is `module.function` under `jaxpt.data.preprocessors`, or a full dotted path to anyone's own.
    """

    name: str
    kwargs: dict[str, Any] = dataclasses.field(default_factory=dict)
    uses: tuple[str, ...] = ()
    """Names of functions that it is given by name: records made by other code are other records."""


@dataclasses.dataclass(frozen=True)
class Pipeline:
    """The two halves of a SeqIO task: before and after `seqio.CacheDatasetPlaceholder`.

    `prepare` turns documents ({"text", "origin"}) into records: any number from any number, no random draw that is
    not frozen in the seed. `present` is strictly one-to-one: record + stateless seed → the batch's features.
    """

    prepare: tuple[Call, ...]
    present: tuple[Call, ...]
