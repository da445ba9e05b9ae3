"""Which ids of a vocabulary begin a word or end a sentence."""

from __future__ import annotations

import numpy as np
import seqio

from jaxpt.data.vocabularies import pieces

_SPACES = (" ", "▁", "Ġ")


def word_starts(vocabulary: seqio.Vocabulary) -> np.ndarray:
    """Pieces that begin a word.

    Args:
      vocabulary: of the tokens; one without `word_starts` of its own has a word begin at each piece with a space.

    Returns:
      bool [ids].

    Example:
      >>> [chr(i - 3) for i in np.flatnonzero(word_starts(seqio.ByteVocabulary()))]
      [' ']
    """
    if hasattr(vocabulary, "word_starts"):
        return vocabulary.word_starts()
    return np.array([name.startswith(_SPACES) for name in pieces(vocabulary)])


def full_stops(vocabulary: seqio.Vocabulary) -> np.ndarray:
    """Pieces that are a full stop and nothing else: bool [ids].

    Args:
      vocabulary: of the tokens.

    Returns:
      bool [ids].

    Example:
      >>> [chr(i - 3) for i in np.flatnonzero(full_stops(seqio.ByteVocabulary()))]
      ['.']
    """
    return np.array([name.lstrip("".join(_SPACES)).removeprefix("##") == "." for name in pieces(vocabulary)])
