"""Semantic textual similarity: do vectors of sentences lie as near as people say the sentences mean the same?

As in SentEval: the cosine of two sentences' vectors, nothing trained, and its correlation with the scores of a whole
file. Paper: https://arxiv.org/abs/1803.05449
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from jaxpt.data import tables
from jaxpt.data.tables.reading import where
from jaxpt.data.tables.rows import NUMBER, column, label, text
from jaxpt.decode import prompts
from jaxpt.decode.embed import Embeddings
from jaxpt.errors import UserError
from jaxpt.metrics.regression import pearson, spearman
from jaxpt.train import vocabularies
from jaxpt.train.evaluators import Evaluate, Evaluator, Result
from jaxpt.train.state import Setup

if TYPE_CHECKING:
    from jaxpt.config import Config
    from jaxpt.data.base import Data

COLUMNS = ("sentence1", "sentence2", "score")
FIRST_ROWS = 20
"""Rows that are looked at before a run."""


class SentenceSimilarity(Evaluator):
    """Correlation of the cosine of sentence vectors with people's scores."""

    kind: Literal["sts"] = "sts"
    path: str
    """Pairs with a score: .tsv, .csv, .jsonl, .parquet, each also as .gz."""
    columns: tuple[str, str, str] = COLUMNS
    """The columns of the two sentences and of their score."""
    layer: int | Literal["all", "mix"] = -1
    """0 for the embeddings, 1 … for the layers, negative from the end; the mean of all (mix); or each of them (all)."""
    pooling: Literal["mean", "cls", "last"] = "mean"
    """How the states of a sentence become one vector."""

    def check(self, config: Config) -> None:
        try:
            read(self.path, self.columns, FIRST_ROWS)
        except UserError as error:
            raise UserError(f"path: {error}") from None

    def prepare(self, setup: Setup, data: Data) -> Evaluate:
        if self.pooling == "cls" and setup.config.model.family != "encoder":
            raise UserError(f"evals.{self.called}.pooling: cls needs an encoder with [CLS]; use mean or last")
        pairs, reader = read(self.path, self.columns), prompts.of_run(setup.config, data.tokenizer)
        ids = data.tokenizer.encode_batch([*pairs.first, *pairs.second])
        setup = setup.for_evaluation()

        def embed(params: Any, stop: Callable[[], bool] = lambda: False) -> Embeddings | None:
            with setup.use():
                return reader.embed(setup.network, params, ids, pooling=self.pooling, layer=self.layer, stop=stop)

        embed(setup.placed_shapes().params)  # compiles

        def evaluate(params: Any, earlier: Mapping[str, float], stop: Callable[[], bool]) -> Result | None:
            params = vocabularies.with_word_vectors(setup.config, data.tokenizer, params)
            if (embeddings := embed(params, stop)) is None:
                return None
            layers = [correlations(*np.split(of_layer, 2), pairs.scores) for of_layer in embeddings.by_layer()]
            metrics = dict(layers[-1])
            if self.layer == "all":
                metrics |= {f"layer_{n}": of_layer["spearman"] for n, of_layer in enumerate(layers)}
            return Result(metrics)

        return evaluate


class Pairs(NamedTuple):
    """Pairs of sentences with their scores."""

    first: list[str]
    second: list[str]
    scores: list[float]


def read(path: str, columns: tuple[str, str, str] = COLUMNS, limit: int | None = None) -> Pairs:
    """Reads pairs of sentences.

    Args:
      path: a table (`jaxpt.data.tables`).
      columns: of the two sentences and the score.
      limit: the first rows alone.

    Returns:
      The pairs.

    Raises:
      UserError: names the file and the line with what is wrong.
    """
    pairs = Pairs([], [], [])
    for row in itertools.islice(tables.read(path), limit):
        place = where(path, row)
        score = label(column(row, columns[2], place)).strip()
        if not NUMBER.fullmatch(score):
            raise UserError(f"{place}: column {columns[2]!r} wants a number, got {score!r:.40}")
        pairs.first.append(text(row, columns[0], place))
        pairs.second.append(text(row, columns[1], place))
        pairs.scores.append(float(score))
    if len(pairs.scores) < 3:
        raise UserError(f"{path}: {len(pairs.scores)} pairs; a correlation wants three or more")
    return pairs


def correlations(first_NxD: np.ndarray, second_NxD: np.ndarray, scores: list[float]) -> dict[str, float]:
    """Correlations of the cosine of each pair with its score.

    Args:
      first_NxD: vectors of the first sentences.
      second_NxD: of the second ones.
      scores: of the pairs.

    Returns:
      {"spearman", "pearson"}, between −1 and 1. A vector of zeros has cosine 0 with all.

    Example:
      >>> x = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
      >>> correlations(x, np.array([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0]]), [5.0, 0.0, 4.0])["spearman"]
      1.0
    """
    first, second = first_NxD.astype(np.float64), second_NxD.astype(np.float64)
    norms = np.linalg.norm(first, axis=-1) * np.linalg.norm(second, axis=-1)
    cosines = (first * second).sum(-1) / np.maximum(norms, 1e-24)
    return spearman(cosines.tolist(), scores) | pearson(cosines.tolist(), scores)
