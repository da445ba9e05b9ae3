"""Which ids of a vocabulary begin a word or end a sentence."""

from __future__ import annotations

import string
from typing import Literal

import numpy as np

from jaxpt.data._tf import seqio
from jaxpt.data.preprocessors.documents import CLOSING, STOPS
from jaxpt.data.tokenizers import scripts
from jaxpt.data.vocabularies import pieces

_SPACES = (" ", "▁", "Ġ")


WordRule = Literal["spaces", "albert"]


def word_starts(vocabulary: seqio.Vocabulary, rule: WordRule = "spaces") -> np.ndarray:
    """Pieces that begin a word.

    Args:
      vocabulary: of the tokens; one without `word_starts` of its own has a word begin at each piece with a space, and
        at each of a script without spaces.
      rule: `albert`: in SentencePiece vocabularies a punctuation mark alone begins a word too, and so does a piece with
        a character that is neither an English letter nor punctuation (google-research/albert).

    Returns:
      bool [ids].

    Example:
      >>> [chr(i - 3) for i in np.flatnonzero(word_starts(seqio.ByteVocabulary()))]
      [' ']
    """
    if rule == "albert" and any(name.startswith("▁") for name in pieces(vocabulary, raw=True)):

        def starts(name: str) -> bool:
            is_english = all(c in string.punctuation or c.lower() in string.ascii_lowercase for c in name)
            return name.startswith(("▁", "<")) or name in set(string.punctuation) or not is_english

        return np.array([starts(name) for name in pieces(vocabulary, raw=True)])
    if hasattr(vocabulary, "word_starts"):
        return vocabulary.word_starts()
    return np.array([name.startswith(_SPACES) or scripts.is_unspaced(name) for name in pieces(vocabulary)])


def sentence_ends(vocabulary: seqio.Vocabulary) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Pieces that end a sentence: a full stop and nothing else, or 。, ？ or ।, with or without closing quotes.

    BART's rule knows full stops alone, so that ! and ? end no sentence; but those are also what SentencePiece makes of
    the wide ！ and ？, which do.

    Args:
      vocabulary: of the tokens.

    Returns:
      bool [ids] each: what ends a sentence wherever it stands; what does so after a piece of a script without spaces;
      the pieces that end in such a script.

    Example:
      >>> [[chr(i - 3) for i in np.flatnonzero(x)] for x in sentence_ends(seqio.ByteVocabulary())]
      [['.'], ['!', '?'], []]
    """
    names = [name.lstrip("".join(_SPACES)).removeprefix("##") for name in pieces(vocabulary)]

    def hold(marks: str) -> np.ndarray:
        return np.array([bool(set(name) & set(marks)) and set(name) <= {*marks, *CLOSING} for name in names])

    is_unspaced = np.array([scripts.is_unspaced(name[-1:]) for name in names])
    return hold(STOPS) | (np.array(names) == "."), hold("!?"), is_unspaced
