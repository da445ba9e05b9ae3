"""`jaxpt sts` and `jaxpt vectors`: vectors of sentences and of words, compared with what people say of them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jaxpt.data.tables.files import read_lines
from jaxpt.data.tables.rows import NUMBER
from jaxpt.errors import UserError
from jaxpt.evals.sts import COLUMNS, correlations, read
from jaxpt.inference.static_vectors import StaticVectors, open_vectors
from jaxpt.inference.words import normalized, parse_layer
from jaxpt.metrics.regression import spearman

POOLINGS = ("mean", "cls", "last")
_TITLE = re.compile(r"word[ _]?\d?", re.IGNORECASE)


def sts(
    path: str, file: str, *, layer: str | None = None, pool: str = "mean", columns: str = ",".join(COLUMNS)
) -> None:
    """`jaxpt sts`: prints Spearman's and Pearson's correlation, times 100, a line for each layer and pooling.

    Args:
      path: RUN_DIR or HF_DIR, or a file of static vectors.
      file: pairs of sentences with a score (`evals.sts.read`).
      layer: as `words.parse_layer`; by default all, of a model whose layers differ in width the last.
      pool: poolings with commas.
      columns: of the sentences and the score, with commas.

    Raises:
      UserError: a column is missing, a score is no number, or the model has no such layer or pooling.
    """
    chosen, names, poolings = parse_layer(layer or "all"), tuple(columns.split(",")), pool.split(",")
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
        if chosen != "all" or pool != "mean":
            raise UserError(f"{path}: has one vector of each word; leave out --layer and --pool")
        _print("words", "mean", model.embed(sentences), pairs.scores)
        return
    if layer is None and not model.network.config.equal_widths:
        chosen = -1
    for pooling in poolings:
        embeddings = model.embed(sentences, pooling, chosen)
        layers = np.moveaxis(embeddings, 1, 0) if embeddings.ndim == 3 else [embeddings]
        numbers = range(len(layers)) if chosen == "all" else chosen if isinstance(chosen, tuple) else [chosen]
        for number, vectors in zip(numbers, layers):
            _print(number, pooling, vectors, pairs.scores)


def _print(layer: int | str, pooling: str, vectors: np.ndarray, scores: list[float]) -> None:
    coefficients = correlations(*np.split(vectors, 2), scores)
    print(f"{layer:>8}{pooling:>8}{100 * coefficients['spearman']:10.1f}{100 * coefficients['pearson']:10.1f}")


class Tests(NamedTuple):
    """A file of tests."""

    pairs: list[tuple[str, str, float]]
    analogies: list[tuple[str, str, str, str]]


def vectors(path: str, files: Sequence[str]) -> None:
    """`jaxpt vectors`: what static word vectors know: similarity of words as people see it, and analogies.

    pairs       a line: two words and a score (WordSim-353, SimLex-999, as published): Spearman's correlation of the
                cosine with it
    analogies   a line: a b c d, a is to b as c is to d; lines ": name" begin sections: how often d is the nearest word

    Fields are separated by tabs, commas or white space. The score is the first number after the words; other columns,
    a first line of titles, and lines that begin with #, are passed over. Lines with a word that has no vector are left
    out, and counted. A line is printed for each file.

    Args:
      path: a file of static vectors, or a run of skip_gram, cbow or glove.
      files: pairs or analogies.

    Raises:
      UserError: no static vectors, a line that is neither a pair nor an analogy, or a file with too few known words.
    """
    tests = {file: read_tests(file) for file in files}
    opened = open_vectors(path)
    if not isinstance(opened, StaticVectors):
        raise UserError(f"{path}: has no static vectors; `jaxpt sts` compares vectors of sentences")
    print(f"{path}: {len(opened.words):,} words, {opened.vectors_VxD.shape[1]} numbers each")
    unknown = []
    for file, (pairs, analogies) in tests.items():
        if pairs:
            score, count = similarity(opened, pairs)
            if score is None:
                unknown.append(
                    f"{file}: {count:,} of {len(pairs):,} pairs are known; a correlation wants three or more"
                )
            else:
                print(f"{file}: Spearman's correlation × 100 {100 * score:.1f} over {count:,} of {len(pairs):,} pairs")
        if analogies:
            score, count = accuracy(opened, analogies)
            if score is None:
                unknown.append(f"{file}: each of the {len(analogies):,} analogies has an unknown word")
            else:
                print(
                    f"{file}: {score:.1%} of {count:,} analogies right, {len(analogies) - count:,} have unknown words"
                )
    if unknown:
        raise UserError("; ".join(unknown))


def read_tests(file: str | Path) -> Tests:
    """Reads a file of pairs or analogies.

    Raises:
      UserError: names the line that is neither, or the file without one.
    """
    tests, is_first, titles = Tests([], []), True, None
    for number, line in read_lines(str(file)):
        fields = _fields(line)
        if not fields or line.startswith("#") or line.split()[0] == ":":
            continue
        score = next((field for field in fields[2:] if NUMBER.fullmatch(field)), None)
        if is_first and (score is None or all(map(_TITLE.fullmatch, fields[:2]))):
            titles = fields
        elif score is not None:
            tests.pairs.append((fields[0], fields[1], float(score)))
        elif len(fields) == 4:
            tests.analogies.append(tuple(fields))
        else:
            raise UserError(f"{file}: line {number}: wants two words and a score, or four words, got {line!r:.60}")
        is_first = False
    if titles is not None and len(titles) == 4 and not tests.pairs:
        tests.analogies.insert(0, tuple(titles))  # no titles: the first analogy
    if len(tests.pairs) < 3 and not tests.analogies:
        raise UserError(f"{file}: {len(tests.pairs)} pairs of words with a score; a correlation wants three or more")
    return tests


def _fields(line: str) -> list[str]:
    """The fields of a line: between tabs, else between commas, else between white space."""
    fields = line.strip().split("\t" if "\t" in line.strip() else ",")
    return [field.strip() for field in fields] if len(fields) > 2 else line.split()


def similarity(model: StaticVectors, pairs: Sequence[tuple[str, str, float]]) -> tuple[float | None, int]:
    """(Spearman's correlation of cosines and scores, None of fewer than three; number of pairs with vectors)."""
    known = [(model.known(a), model.known(b), score) for a, b, score in pairs]
    known = [row for row in known if row[0] is not None and row[1] is not None]
    if len(known) < 3:
        return None, len(known)
    first, second, scores = zip(*known)
    cosines = (normalized(np.stack(first)) * normalized(np.stack(second))).sum(-1)
    return spearman(cosines.tolist(), list(scores))["spearman"], len(known)


def accuracy(model: StaticVectors, analogies: Sequence[tuple[str, str, str, str]]) -> tuple[float | None, int]:
    """(share of analogies whose last word is the nearest, without the others, None of none; number with vectors)."""
    known = [row for row in ([model.row(word) for word in row] for row in analogies) if None not in row]
    if not known:
        return None, 0
    a, b, c, d = np.array(known).T
    unit_VxD, right = model.unit_VxD, 0
    for first in range(0, len(known), 256):
        part = slice(first, first + 256)
        scores = (unit_VxD[b[part]] - unit_VxD[a[part]] + unit_VxD[c[part]]) @ unit_VxD.T
        for given in (a, b, c):
            scores[np.arange(len(scores)), given[part]] = -np.inf
        right += int((scores.argmax(-1) == d[part]).sum())
    return right / len(known), len(known)
