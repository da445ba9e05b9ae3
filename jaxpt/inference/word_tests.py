"""`jaxpt vectors`: what static word vectors know: similarity of words as people see it, and analogies.

    pairs       a line: two words and a score (WordSim-353, SimLex-999): Spearman's correlation of the cosine with it
    analogies   a line: a b c d, a is to b as c is to d; lines ": name" begin sections: how often d is the nearest word

Fields are separated by white space; other columns after the third, and lines that begin with #, are passed over. Lines
with a word that has no vector are left out, and counted.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jaxpt.data.tables.files import read_lines
from jaxpt.errors import UserError
from jaxpt.inference.static_vectors import StaticVectors, open_vectors
from jaxpt.inference.words import normalized
from jaxpt.metrics.regression import spearman

_NUMBER = re.compile(r"-?\d+(\.\d+)?")


class Tests(NamedTuple):
    """A file of tests."""

    pairs: list[tuple[str, str, float]]
    analogies: list[tuple[str, str, str, str]]


def vectors(path: str, files: Sequence[str]) -> None:
    """Prints a line for each file.

    Args:
      path: a file of static vectors, or a run of skip_gram, cbow or glove.
      files: pairs or analogies.

    Raises:
      UserError: no static vectors, or a line that is neither a pair nor an analogy.
    """
    tests = {file: read(file) for file in files}
    opened = open_vectors(path)
    if not isinstance(opened, StaticVectors):
        raise UserError(f"{path}: has no static vectors; `jaxpt sts` compares vectors of sentences")
    print(f"{path}: {len(opened.words):,} words, {opened.vectors_VxD.shape[1]} numbers each")
    for file, (pairs, analogies) in tests.items():
        if pairs:
            score, count = similarity(opened, pairs)
            print(f"{file}: Spearman's correlation × 100 {100 * score:.1f} over {count:,} of {len(pairs):,} pairs")
        if analogies:
            score, count = accuracy(opened, analogies)
            print(f"{file}: {score:.1%} of {count:,} analogies right, {len(analogies) - count:,} have unknown words")


def read(file: str | Path) -> Tests:
    """Reads a file of pairs or analogies.

    Raises:
      UserError: names the line that is neither, or the file without one.
    """
    tests, is_first = Tests([], []), True
    for number, line in read_lines(str(file)):
        fields = line.split()
        if not fields or fields[0] == ":" or line.startswith("#"):
            continue
        if len(fields) >= 3 and _NUMBER.fullmatch(fields[2]):
            tests.pairs.append((fields[0], fields[1], float(fields[2])))
        elif len(fields) == 4:
            tests.analogies.append(tuple(fields))
        elif not is_first:  # a first line may name the columns
            raise UserError(f"{file}: line {number}: wants two words and a score, or four words, got {line!r:.60}")
        is_first = False
    if len(tests.pairs) < 3 and not tests.analogies:
        raise UserError(f"{file}: {len(tests.pairs)} pairs of words with a score; a correlation wants three or more")
    return tests


def similarity(model: StaticVectors, pairs: Sequence[tuple[str, str, float]]) -> tuple[float, int]:
    """(Spearman's correlation of cosines and scores, NaN of fewer than three; number of pairs with vectors)."""
    known = [(model.known(a), model.known(b), score) for a, b, score in pairs]
    known = [row for row in known if row[0] is not None and row[1] is not None]
    if len(known) < 3:
        return float("nan"), len(known)
    first, second, scores = zip(*known)
    cosines = (normalized(np.stack(first)) * normalized(np.stack(second))).sum(-1)
    return spearman(cosines.tolist(), list(scores))["spearman"], len(known)


def accuracy(model: StaticVectors, analogies: Sequence[tuple[str, str, str, str]]) -> tuple[float, int]:
    """(share of analogies whose last word is the nearest, without the three others; number with vectors)."""
    known = [row for row in ([model.row(word) for word in words] for words in analogies) if None not in row]
    if not known:
        return float("nan"), 0
    a, b, c, d = np.array(known).T
    unit_VxD, right = model.unit_VxD, 0
    for first in range(0, len(known), 256):
        part = slice(first, first + 256)
        scores = (unit_VxD[b[part]] - unit_VxD[a[part]] + unit_VxD[c[part]]) @ unit_VxD.T
        for given in (a, b, c):
            scores[np.arange(len(scores)), given[part]] = -np.inf
        right += int((scores.argmax(-1) == d[part]).sum())
    return right / len(known), len(known)
