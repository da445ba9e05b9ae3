"""Texts that stand in two splits."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

Text = str | Sequence[str]
"""A text, or the texts of a pair."""


def overlap(train: Iterable[Text], other: Iterable[Text]) -> int:
    """Counts the rows of a split whose text stands in the training set too.

    Args:
      train: the training set's texts. 8 bytes of each are kept, not the text.
      other: the texts of the other split.

    Returns:
      Rows of the other split; one that it has twice counts twice.

    Example:
      >>> overlap(["a", "b", "b"], ["b", "c", "b"])
      2
    """
    train_hashes = {digest(text) for text in train}
    return sum(digest(text) in train_hashes for text in other)


def digest(text: Text) -> int:
    """64 bits of the blake2b hash of a text, or of the texts of a pair.

    Example:
      >>> digest("ab") == digest(("ab",)) != digest(("a", "b"))
      True
    """
    parts = [text] if isinstance(text, str) else text
    data = b"\x1f".join(part.encode("utf-8", "surrogatepass") for part in parts)
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest())
