"""Static word vectors: a word has one vector, in a file (`vector_files.py`) or in a run of skip_gram, cbow or glove.

Shapes: V words · D numbers of each
"""

from __future__ import annotations

import functools
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from flax import traverse_util

from jaxpt import config as configs
from jaxpt.data import tokenizers
from jaxpt.data.tokenizers.words import SPECIAL, Words, of_words
from jaxpt.errors import UserError
from jaxpt.inference import vector_files
from jaxpt.inference.loaded import Loaded, load
from jaxpt.inference.opening import resolve_checkpoint
from jaxpt.inference.words import normalized, words_of
from jaxpt.models.layers import stored_rows
from jaxpt.objectives.rows import TOKENS, RowObjective
from jaxpt.runtime import disk
from jaxpt.train import vocabularies, weights

Near = list[tuple[str, float, np.ndarray]]
"""(word, cosine, vector), the nearest first."""


class StaticVectors:
    """Word vectors.

    Attributes:
      path: where they are from.
      words: in the order of their source, mostly that of frequency.
      vectors_VxD: their vectors.
    """

    def __init__(
        self,
        path: str | Path,
        words: Sequence[str] | None = None,
        vectors_VxD: np.ndarray | None = None,
        compose: Callable[[str], np.ndarray | None] | None = None,
        tokenizer: Words | None = None,
    ) -> None:
        """Reads a file, or takes what is given.

        Args:
          path: the file, or where the vectors are from.
          words: instead of the file's.
          vectors_VxD: theirs.
          compose: makes the vector [D] of another word, or None (fastText).
          tokenizer: folds a word, and cuts one that is not known, as the text was that the vectors were trained on.

        Raises:
          UserError: names the line of the file that is not as it must be.
        """
        self.path = Path(path)
        if words is None or vectors_VxD is None:
            words, vectors_VxD = vector_files.read(path)
        self.words, self.vectors_VxD = list(words), vectors_VxD
        self._rows = {word: row for row, word in enumerate(self.words)}
        self._compose, self._tokenizer = compose, tokenizer

    def row(self, word: str) -> int | None:
        """The row of a word, of the word folded, or of its lower case; None where there is none."""
        spellings = (word, self._folded(word), word.lower())
        return next((self._rows[x] for x in spellings if x in self._rows), None)

    def _folded(self, word: str) -> str:
        return word if self._tokenizer is None else self._tokenizer.folded(word)

    def vector(self, word: str) -> np.ndarray:
        """The vector of a word: [D].

        Raises:
          UserError: there is no such word.
        """
        vector = self.known(word)
        if vector is None:
            raise UserError(f"{self.path}: has no vector of {word!r}")
        return vector

    def known(self, word: str) -> np.ndarray | None:
        """As `vector`; None where there is none."""
        row = self.row(word)
        if row is not None:
            return self.vectors_VxD[row]
        return None if self._compose is None else self._compose(self._folded(word))

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        """The mean of the vectors of each text's words: float32 [texts, D]; 0 where none of them is known."""
        means = np.zeros((len(texts), self.vectors_VxD.shape[1]), np.float32)
        for mean, text in zip(means, texts):
            vectors = (self.known(word) for start, end in words_of(text) for word in self._cut(text[start:end]))
            if known := [vector for vector in vectors if vector is not None]:
                mean[:] = np.mean(known, 0)
        return means

    def _cut(self, word: str) -> list[str]:
        """A word, or its parts where it is not known: don't is don ' t of most texts."""
        return [word] if self._tokenizer is None or self.row(word) is not None else self._tokenizer.cut(word)

    @functools.cached_property
    def unit_VxD(self) -> np.ndarray:
        """The vectors, each of length 1."""
        return normalized(self.vectors_VxD)

    def nearest(self, word: str, k: int) -> Near:
        """The words with the nearest vectors.

        Args:
          word: any that `vector` knows.
          k: how many.

        Returns:
          (word, cosine, vector), the word itself first.

        Raises:
          UserError: there is no such word.
        """
        vector, row = self.vector(word), self.row(word)
        name = word if row is None else self.words[row]
        return [(name, 1.0, vector), *self.nearest_to(vector, k, () if row is None else (row,))]

    def nearest_to(self, vector_D: np.ndarray, k: int, without: Sequence[int] = ()) -> Near:
        """The k words nearest to a vector, as `nearest`; `without` are rows that are left out."""
        cosines_V = self.unit_VxD @ normalized(vector_D[None])[0]
        cosines_V[list(without)] = -np.inf
        order = np.argsort(-cosines_V, kind="stable")[: min(k, len(self.words) - len(without))]
        return [(self.words[n], float(cosines_V[n]), self.vectors_VxD[n]) for n in order]

    def analogy(self, a: str, b: str, c: str, k: int) -> Near:
        """What is to c as b is to a: the words nearest to b̂ − â + ĉ, without the three. Paper:
        https://aclanthology.org/N13-1090

        Args:
          a, b, c: words, such as man, king and woman.
          k: how many.

        Returns:
          As `nearest_to`.
        """
        a_D, b_D, c_D = normalized(np.stack([self.vector(word) for word in (a, b, c)]))
        known = [row for row in map(self.row, (a, b, c)) if row is not None]
        return self.nearest_to(b_D - a_D + c_D, k, known)


def of_run(path: str | Path) -> StaticVectors | None:
    """The vectors of a run of skip_gram, cbow or glove; None of any other model.

    Args:
      path: RUN_DIR or RUN_DIR/checkpoints/STEP.
    """
    resolved, step = resolve_checkpoint(path)
    if step is None:
        return None
    run_dir = resolved.parents[1]
    config = configs.load(run_dir)
    if not isinstance(config.objective, RowObjective):
        return None
    tokenizer = tokenizers.load(run_dir / "tokenizer", config.data.tokenizer.kind)
    tables = traverse_util.flatten_dict(weights.read(run_dir, step), sep="/")
    _, words, vectors_VxD = vocabularies.word_vectors(config.objective, tokenizer, tables)
    cuts_words = tokenizer if isinstance(tokenizer, Words) else None
    return StaticVectors(path, words, vectors_VxD, config.objective.composer(tables), cuts_words)


def open_vectors(path: str | Path) -> Loaded | StaticVectors:
    """A model from its directory, or static vectors from their file or run."""
    if Path(path).is_file():
        return StaticVectors(path)
    return of_run(path) or load(path)


def import_vectors(source: str | Path, out: str | Path) -> None:
    """`jaxpt import` of a file of word vectors: a run whose model is the table and whose vocabulary the words.

    Text is cut into words at white space and around punctuation. Case is folded where no word of the file has a capital
    letter; accents stay. The unknown word has the file's vector of <unk>, or zeros.

    Args:
      source: as `vector_files.read` takes it.
      out: the directory to create.

    Raises:
      UserError: `out` exists, or the file is not as it must be. `out` is then not created.
    """
    out = Path(out)
    if out.exists():
        raise UserError(f"{out}: already exists; choose a new directory")
    disk.check_path(out)
    words, vectors_VxD = vector_files.read(source)
    rows, zeros_D = dict(zip(words, vectors_VxD)), np.zeros(vectors_VxD.shape[1], np.float32)
    # Files of word2vec have </s>, those of GloVe <unk>.
    special = [rows.pop(token, rows.pop(token.lower(), zeros_D)) for token in SPECIAL.values()]
    table_VxD = np.stack([*special, *rows.values()])
    lowercase = all(word == word.lower() for word in rows)
    config = configs.build(_recipe(str(out), table_VxD.shape, lowercase), lambda key: f"{source}: {key}")
    network = config.objective.network(config.model)
    padded = np.pad(table_VxD, ((0, stored_rows(len(table_VxD)) - len(table_VxD)), (0, 0)))
    with disk.whole_directory(out) as temporary:
        of_words(rows, lowercase).save(temporary / "tokenizer")
        disk.write_text(temporary / "config.yaml", configs.with_checksum(configs.to_yaml(config)))
        weights.write(temporary, network, {TOKENS: np.dtype(np.float32)}, iter([(TOKENS, None, padded)]))
    run = shlex.quote(str(out))
    print(f"{out}: word_vectors, {len(rows):,} words, {vectors_VxD.shape[1]} numbers each, from {source}")
    print(f"to look at it: jaxpt neighbours {run} WORD")
    print(f"to train from it: jaxpt train RECIPE init_from.path={run}")


def _recipe(run_dir: str, shape: tuple[int, ...], lowercase: bool) -> dict[str, Any]:
    rows, width = shape
    return {
        "run_dir": run_dir,
        "model": {"kind": "word_vectors", "vocab_size": rows, "embed_dim": width},
        "objective": {"kind": "skip_gram"},
        "data": {"tokenizer": {"kind": "words", "lowercase": lowercase}, "length": 256, "batch_size": 16},
        "optimizer": {"kind": "sparse_sgd", "learning_rate": 0.025, "updates": 128},
    }


def export(run: str, out: str) -> None:
    """Writes the vectors of a run to a file, in the form that its suffix says.

    Args:
      run: RUN_DIR or RUN_DIR/checkpoints/STEP of skip_gram, cbow or glove.
      out: the file, as `vector_files.write` takes it.

    Raises:
      UserError: another run, or the file cannot be written.
    """
    vectors = of_run(run)
    if vectors is None:
        raise UserError(f"{run}: makes no static vectors (skip_gram, cbow, glove); name a directory to export to")
    vector_files.write(out, vectors.words, vectors.vectors_VxD)
    print(f"{out}: {len(vectors.words):,} words, {vectors.vectors_VxD.shape[1]} numbers each, from {run}")
