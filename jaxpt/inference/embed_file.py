"""`jaxpt embed`: vectors of the texts of a file, of their words or of their tokens, as Parquet.

text     int64   number of the text, from 0
word     string  the word or token, and the characters of the text that it is
start, end  int32
vector   fixed-size list of float32; layer_N for each of several layers
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxpt.decode.embed import Layer
from jaxpt.errors import StorageError, UserError
from jaxpt.inference import corpus, words
from jaxpt.inference.corpus import Text
from jaxpt.inference.loaded import Loaded, load
from jaxpt.runtime import disk
from jaxpt.runtime.progress import track

UNITS = ("token", "word")
CHARACTERS, CHARACTERS_OF_UNITS = 1 << 19, 1 << 15
"""Characters of texts that are embedded together: their vectors are in memory, of each token where units are wanted."""


def embed_file(
    path: str, file: str, out: str, *, layer: str = "-1", pool: str = "mean", field: str | None = None,
    normalize: bool = False,
) -> None:  # fmt: skip
    """Writes the vectors of a file's texts.

    Args:
      path: RUN_DIR or HF_DIR.
      file: texts, as `corpus.texts` reads them.
      out: the Parquet file; it appears when it is complete.
      layer: as `words.parse_layer`.
      pool: mean, cls or last, a vector for each text; word or token, one for each of these.
      field: the column of `file` with the text.
      normalize: divide each vector by its L2 norm.

    Raises:
      UserError: `out` exists, a text is not as it must be, or the model has no such layer.
    """
    chosen = words.parse_layer(layer)
    if Path(out).suffix != ".parquet":
        raise UserError(f"--out: wants a file F.parquet, got {out}")
    if Path(out).exists():
        raise UserError(f"{out}: already exists; choose a new file")
    total = sum(1 for _ in corpus.texts(file, field))  # what is wrong in the file is said before the model is loaded
    model = load(path)
    written = _Writer(Path(out), chosen, pool, {"model": str(path), "layer": layer, "pool": pool})
    with track("embedding", total, "texts") as work, written:
        max_characters = CHARACTERS_OF_UNITS if pool in UNITS else CHARACTERS
        for chunk in corpus.chunks(corpus.texts(file, field), max_characters):
            written.add(*_vectors(model, chunk, chosen, pool, normalize))
            work.add(len(chunk))
    print(f"{out}: {written.rows:,} rows, vectors of {written.width} numbers")
    if written.truncated:
        print(f"{written.truncated:,} of {total:,} texts were truncated to the model's positions")


def _vectors(
    model: Loaded, chunk: Sequence[Text], layer: Layer, pool: str, normalize: bool
) -> tuple[list[words.Words] | list[np.ndarray], int]:
    """The words of each text, or its vector; the number of texts that were truncated."""
    texts = [text.text for text in chunk]
    if pool not in UNITS:
        pooled = words.pooled(model, texts, pool, layer, normalize)
        return pooled.vectors, pooled.truncated
    spans = [text.spans if text.spans is not None else words.words_of(text.text) for text in chunk]
    words_by_text = model.embed_words(texts, layer, pool, spans if pool == "word" else None)
    if normalize:
        words_by_text = [
            text_words._replace(vectors=words.normalized(text_words.vectors)) for text_words in words_by_text
        ]
    return words_by_text, sum(text_words.is_cut for text_words in words_by_text)


class _Writer:
    """A Parquet file, written in row groups, that has its name when it is complete."""

    def __init__(self, path: Path, layer: Layer, pool: str, facts: dict[str, str]) -> None:
        """Takes the file, the layers, the pooling, and what the file says of itself."""
        self._path, self._layer, self._pool, self._facts = path, layer, pool, facts
        self._file, self._writer = disk.whole_file(path), None
        self.texts = self.rows = self.width = self.truncated = 0

    def __enter__(self) -> _Writer:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._to = self._file.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        if self._writer is not None:
            self._writer.close()
        self._file.__exit__(*error)

    def add(self, vectors_by_text: Sequence[Any], truncated: int) -> None:
        """Writes a row group.

        Args:
          vectors_by_text: the words of each text, or its vector.
          truncated: texts that were truncated.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        columns: dict[str, Any] = {"text": np.arange(self.texts, self.texts + len(vectors_by_text))}
        self.texts += len(vectors_by_text)
        if self._pool in UNITS:
            columns["text"] = np.repeat(columns["text"], [len(text_words.texts) for text_words in vectors_by_text])
            names = [name for text_words in vectors_by_text for name in text_words.texts]
            columns[self._pool] = pa.array(names, pa.string())
            spans_Wx2 = np.concatenate([text_words.spans for text_words in vectors_by_text]).astype(np.int32)
            columns |= {"start": spans_Wx2[:, 0], "end": spans_Wx2[:, 1]}
            vectors = np.concatenate([text_words.vectors for text_words in vectors_by_text], -2)
        else:
            vectors = np.stack(vectors_by_text, -2)  # [texts, D], of several layers [K, texts, D]
        names = self._names(len(vectors)) if vectors.ndim == 3 else ["vector"]
        for name, values_RxD in zip(names, vectors if vectors.ndim == 3 else [vectors]):
            flat = pa.array(np.ascontiguousarray(values_RxD, np.float32).ravel())
            columns[name] = pa.FixedSizeListArray.from_arrays(flat, values_RxD.shape[-1])
        table = pa.table(columns)
        try:
            if self._writer is None:
                schema = table.schema.with_metadata({"jaxpt": json.dumps(self._facts)})
                self._writer = pq.ParquetWriter(self._to, schema, write_page_checksum=True)
            self._writer.write_table(table.cast(self._writer.schema))
        except OSError as error:
            if (full := disk.full(error)) is None:
                raise
            raise StorageError(f"{self._path}: {full}; make room, then run the same command again") from None
        self.rows, self.width = self.rows + len(columns["text"]), vectors.shape[-1]
        self.truncated += truncated

    def _names(self, count: int) -> list[str]:
        layers = range(count) if self._layer == "all" else self._layer
        return [f"layer_{layer}" for layer in layers]
