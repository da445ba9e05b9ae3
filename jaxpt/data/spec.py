"""What an objective says of its data. No JAX, no TensorFlow."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from jaxpt.data.calls import Call, Transforms, Vocabulary, preprocessors
from jaxpt.errors import UserError

Arrays = Mapping[str, np.ndarray]
Features = dict[str, tuple[tuple[int, ...], str]]
"""{feature: (shape without the batch, "int32" or "float32")}."""
MakeRows = Callable[..., dict[str, np.ndarray]]
"""(records, keys, packs) → {feature: array [rows, ...]}."""


@dataclasses.dataclass(frozen=True)
class DataSpec:
    """The features of a batch, the preprocessors that make them, and what else the pipeline must know of them."""

    features: Features
    """Shape (without the batch) and dtype of each feature of a batch."""
    transforms: Callable[[Vocabulary, int], Transforms]
    """(vocabulary, seed) → the preprocessors that make the features, with all their arguments."""
    max_packed_lengths: Callable[[Arrays], dict[str, np.ndarray]] | None = None
    """{feature of a record: its lengths, int [records]} → {feature of a batch: int [records]}: upper bounds of the
    tokens that each record occupies in a packed row, whose capacity is the length in `features`. One feature of the
    encoder, one of the decoder, and every feature that can fill up before them (masked positions). None: records cannot
    be packed."""
    no_packing: str = "does not support packing; remove data.packing"
    """Why records cannot be packed, after the objective's kind."""
    overhead_tokens: int = 0
    """Tokens of a record that are not text of its own: special tokens, and tokens that overlap with the record before.
    A study's token budget does not count them."""
    num_passes: int = 1
    """How often the records hold each document."""
    static_mask_copies: int | None = None
    """Number n of static mask copies: epoch e uses the noise of copy e mod n. None: new noise in every epoch."""
    untrainable_examples: Callable[[Arrays], dict[str, np.ndarray]] = lambda batch: {}
    """Features of a batch → {problem and remedy: True for each example without a training signal, bool [examples]}. A
    run warns at the start if most examples are affected."""
    max_target_tokens: int | None = None
    """Maximum number of target tokens if the input is examples of a SeqIO Task; None if it is documents."""
    uses_chat_template: bool = False
    """True if records depend on the tokenizer's chat template."""
    chat_template: str | None = None
    """The chat template that the run's tokenizer is given: a file, or a name; None: it keeps its own."""
    wrap_for_mixture: Callable[[str, MakeRows], MakeRows] = lambda name, make_rows: make_rows
    """(name of a task, what makes rows of its own batch) → what makes rows of the whole mixture's batch."""

    def check_packing(self, kind: str) -> None:
        """Raises UserError if records cannot be packed; called before data is prepared.

        Args:
          kind: of the objective.
        """
        if self.max_packed_lengths is None:
            raise UserError(f"data.packing: objective.kind: {kind} {self.no_packing}")


def checked(kind: str, spec: Any) -> DataSpec:
    """The description itself; UserError where someone's own objective returns something else.

    Args:
      kind: of the objective.
      spec: what its `data_spec` returned.
    """
    if not isinstance(spec, DataSpec):
        raise UserError(
            f"objective.kind: {kind}: data_spec must return a DataSpec of {__name__}, it returns {type(spec).__name__}"
        )
    return spec


def text_windows(length: int, **options: Any) -> tuple[Call, Call]:
    """Offline transforms from documents to windows of at most `length` tokens; `options` are of `windows.cut`."""
    return Call(preprocessors.documents.tokenize), Call(preprocessors.windows.cut, {"length": length, **options})


def masked_features(sequences: tuple[str, ...], length: int, predictions: int) -> Features:
    """Shape and dtype of an encoder's features: int32 sequences, and masked positions, targets and weights."""
    masked = {"masked_positions": "int32", "masked_targets": "int32", "masked_weights": "float32"}
    texts = dict.fromkeys((f"encoder_{name}" for name in sequences), ((length,), "int32"))
    return texts | {name: ((predictions,), dtype) for name, dtype in masked.items()}
