"""Our tokenizers as SeqIO vocabularies, so that SeqIO tasks and preprocessors use them like any other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from jaxpt.data._tf import numpy_call, seqio, tf
from jaxpt.data.tokenizers.base import Tokenizer
from jaxpt.data.tokenizers.sentencepiece import SentencePieceTokenizer


def to_seqio(tokenizer: Tokenizer) -> seqio.Vocabulary:
    """The SeqIO vocabulary that gives a tokenizer's ids.

    Args:
      tokenizer: one that was loaded or saved.

    Returns:
      seqio.SentencePieceVocabulary for a SentencePiece model as it is, an adapter for the others.
    """
    is_as_read = isinstance(tokenizer, SentencePieceTokenizer) and tokenizer.style.plain
    if is_as_read and tokenizer.path is not None and not tokenizer.added and not tokenizer.declared:
        return _SentencePieceVocabulary(tokenizer)
    return TokenizerVocabulary(tokenizer)


def tokenizer_of(vocabulary: seqio.Vocabulary) -> Tokenizer:
    """The tokenizer behind a vocabulary of `to_seqio`."""
    return vocabulary._tokenizer


def pieces(vocabulary: seqio.Vocabulary, raw: bool = False) -> list[str]:
    """The readable piece of each id.

    Args:
      vocabulary: one of `to_seqio`, or any of SeqIO's.
      raw: as the vocabulary has it (`Tokenizer.pieces`).

    Returns:
      As many strings as there are ids.
    """
    size = vocabulary.vocab_size
    if isinstance(vocabulary, _OfTokenizer):
        tokenizer = vocabulary._tokenizer
        return tokenizer.pieces(range(size)) if raw else tokenizer.tokens(range(size))
    if isinstance(vocabulary, seqio.SentencePieceVocabulary):
        return [vocabulary.tokenizer.id_to_piece(i) for i in range(size)]
    return [vocabulary.decode([i]) for i in range(size)]


class _OfTokenizer:
    """What a tokenizer gives in every SeqIO vocabulary."""

    _tokenizer: Tokenizer

    def word_starts(self) -> np.ndarray:
        """Whether an id starts a word: bool [ids]."""
        return self._tokenizer.word_starts()

    def _encode_tf(self, s: tf.Tensor) -> tf.Tensor | tf.RaggedTensor:
        """int32 [n] for one string, ragged [strings, n] for a vector of them."""

        def encode(texts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            rows = self._tokenizer.encode_batch([t.decode("utf-8", "replace") for t in texts])
            flat = np.concatenate([np.zeros(0, np.int32), *(np.array(row, np.int32) for row in rows)])
            return flat, np.fromiter(map(len, rows), np.int64, len(rows))

        types = [tf.TensorSpec([None], tf.int32), tf.TensorSpec([None], tf.int64)]
        flat, lengths = numpy_call(encode, [tf.reshape(s, [-1])], types)
        return flat if s.shape.rank == 0 else tf.RaggedTensor.from_row_lengths(flat, lengths, validate=False)

    def __eq__(self, other: object) -> bool:
        same = isinstance(other, _OfTokenizer) and type(other) is type(self)
        return self._tokenizer.digest() == other._tokenizer.digest() if same else super().__eq__(other)

    def __hash__(self) -> int:
        return hash(self._tokenizer.digest())


class _SentencePieceVocabulary(_OfTokenizer, seqio.SentencePieceVocabulary):
    """SeqIO's, but the ids come from sentencepiece itself: its operation in TensorFlow takes twice the time."""

    def __init__(self, tokenizer: SentencePieceTokenizer) -> None:
        super().__init__(tokenizer.path, tokenizer.appended)
        self._tokenizer = tokenizer


class TokenizerVocabulary(_OfTokenizer, seqio.Vocabulary):
    """Any of our tokenizers behind SeqIO's interface."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Wraps `tokenizer`; its sentinels count as ordinary ids."""
        super().__init__(extra_ids=0)
        self._tokenizer = tokenizer

    @property
    def bos_id(self) -> int | None:
        """Id of the token that starts a text."""
        return self._tokenizer.vocabulary.bos

    @property
    def eos_id(self) -> int | None:
        """Id of the token that ends a text."""
        return self._tokenizer.vocabulary.eos

    @property
    def unk_id(self) -> int | None:
        """Id of the unknown token."""
        return self._tokenizer.vocabulary.unk

    @property
    def _base_vocab_size(self) -> int:
        return self._tokenizer.vocabulary.size

    def _encode(self, s: str) -> Sequence[int]:
        return self._tokenizer.encode(s)

    def _decode(self, ids: Iterable[int]) -> str:
        return self._tokenizer.decode(ids)

    def _decode_tf(self, ids: tf.Tensor) -> tf.Tensor:
        return numpy_call(lambda i: self._tokenizer.decode(i.tolist()), [ids], [tf.TensorSpec([], tf.string)])[0]
