"""`jaxpt sts`: the correlation of sentence vectors with people's scores, of layers and poolings."""

from __future__ import annotations

import numpy as np

from jaxpt.errors import UserError
from jaxpt.evals.sts import COLUMNS, correlations, read
from jaxpt.inference import words
from jaxpt.inference.static_vectors import StaticVectors, open_vectors

POOLINGS = ("mean", "cls", "last")


def sts(path: str, file: str, *, layer: str = "all", pool: str = "mean", columns: str = ",".join(COLUMNS)) -> None:
    """Prints Spearman's and Pearson's correlation, times 100, a line for each layer and pooling.

    Args:
      path: RUN_DIR or HF_DIR, or a file of static vectors.
      file: pairs of sentences with a score (`evals.sts.read`).
      layer: as `words.parse_layer`.
      pool: poolings with commas.
      columns: of the sentences and the score, with commas.

    Raises:
      UserError: a column is missing, a score is no number, or the model has no such layer or pooling.
    """
    chosen, names, poolings = words.parse_layer(layer), tuple(columns.split(",")), pool.split(",")
    if len(names) != 3:
        raise UserError(f"--columns: wants three names, as {','.join(COLUMNS)}, got {columns}")
    if wrong := [name for name in poolings if name not in POOLINGS]:
        raise UserError(f"--pool: {wrong[0]!r} is none of {', '.join(POOLINGS)}")
    pairs = read(file, names)
    model = open_vectors(path)
    print(f"{path}, {file}: {len(pairs.scores):,} pairs, correlation × 100 of their cosine with their score")
    print(f"{'layer':>8}{'pool':>8}{'Spearman':>10}{'Pearson':>10}")
    sentences = [*pairs.first, *pairs.second]
    if isinstance(model, StaticVectors):
        if layer != "all" or pool != "mean":
            raise UserError(f"{path}: has one vector of each word; leave out --layer and --pool")
        _print("words", "mean", model.embed(sentences), pairs.scores)
        return
    for pooling in poolings:
        embeddings = model.embed(sentences, pooling, chosen)
        layers = np.moveaxis(embeddings, 1, 0) if embeddings.ndim == 3 else [embeddings]
        numbers = range(len(layers)) if chosen == "all" else chosen if isinstance(chosen, tuple) else [chosen]
        for number, vectors in zip(numbers, layers):
            _print(number, pooling, vectors, pairs.scores)


def _print(layer: int | str, pooling: str, vectors: np.ndarray, scores: list[float]) -> None:
    coefficients = correlations(*np.split(vectors, 2), scores)
    print(f"{layer:>8}{pooling:>8}{100 * coefficients['spearman']:10.1f}{100 * coefficients['pearson']:10.1f}")
