"""What a run has of its data, whoever made it ready: `datasets.py` from text, `batches/read.py` from files. No
TensorFlow."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from jaxpt.data.calls import Vocabulary
from jaxpt.data.tokenizers.base import Tokenizer

if TYPE_CHECKING:
    from jaxpt.data.batches.read import TrainingBatches, ValidationRows
    from jaxpt.data.records.store import Store
    from jaxpt.data.stream.loader import Stream


@dataclasses.dataclass(frozen=True)
class Data:
    """Everything that training and evaluation need of the data, for one phase."""

    tokenizer: Tokenizer
    vocabulary: Vocabulary
    train: Stream | TrainingBatches
    """Batches, addressed by their step."""
    validation: Stream | ValidationRows
    """Rows of one task or several, always under the same noise."""
    stores: dict[str, Store]
    """The records, by split; of a mixture by "task/split"; {} where batches were prepared before."""
    fingerprint: dict[str, Any]
    """What determines the stream, ready for JSON: a resume under another one would be another run."""
    summary: dict[str, dict[str, int]]
    """By split, of a mixture by "task/split": {"documents", "empty" (skipped), "records", "tokens"}."""
    text_per_row: float
    """Mean tokens of text in a row of a training batch, without `DataSpec.overhead_tokens`."""
    code: dict[str, str]
    """{module of one's own: digest of its source}: the preprocessors of records and of examples."""
    baseline_loss: float | None = None
    """The baseline that counts training batches, where it was computed before: prepared batches are fewer."""
