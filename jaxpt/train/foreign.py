"""Models that other programs saved, for runs that start from them or learn from them.

The core reads run directories alone. Applications read other forms (`jaxpt.config.applications`).
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from jaxpt.config import Config
from jaxpt.config.applications import READERS
from jaxpt.data.calls import Vocabulary
from jaxpt.models.network import Network
from jaxpt.runtime import hub


class Opened(NamedTuple):
    """A model whose weights are read one at a time."""

    parameters: Iterator[tuple[str, np.ndarray]]
    """By path, in the shape of storage; of a stack that is there in part `numpy.ma`, whose mask is True in the layers
    that are missing."""
    network: Network


class Reader(Protocol):
    """A form in which another program saves models."""

    def reads(self, path: Path) -> bool:
        """True if a directory is in this form."""

    def kind(self, path: Path) -> str:
        """`model.kind` of the model in a directory."""

    def labels(self, path: Path) -> tuple[str, ...] | None:
        """Names of the classes of a fine-tuned model in their order; None if it has none."""

    def open(self, path: Path, partial: bool) -> Opened:
        """Opens a directory; with `partial` tensors may be missing, or left over."""

    def renamed(self, source: Network, target: Network) -> dict[str, str]:
        """{path in the source: path in the target} of parameters that the form has under one name."""

    def ids(self, run_dir: Path, vocab_size: int) -> dict[str, Any]:
        """Fields of `jaxpt.decode.options.Options`, by the files that `carry` has left in a run_dir: ids that end a
        text ("eos"), that are forced or suppressed; {} if it has left none."""

    def carry(self, config: Config, vocabulary: Vocabulary) -> None:
        """Takes over, for a run that begins, the files of the model that it starts from."""


def readers() -> list[Reader]:
    """All of them."""
    return [importlib.import_module(name) for name in READERS]


def refusal(path: Path) -> str:
    """Why a path is no model, where no reader reads it and it is no run_dir."""
    if not path.exists():
        return f"{path}: no such directory; {hub.hint()}"
    return f"{path}: has neither a run's config.yaml nor Hugging Face's config.json"


def reader(path: str | Path) -> Reader | None:
    """The one that reads a directory; None for a run directory, and for what nobody reads."""
    return next((reader for reader in readers() if reader.reads(Path(path))), None)
