"""`jaxpt neighbours`: the nearest uses of a word in context, as text and as a picture.

a query and --corpus        the uses of its word in the corpus, the nearest to the query first
--corpus and --label alone  for each word that the corpus marks, how often the nearest uses have the use's label
static vectors              the nearest words, which have no context; for a : b :: c : ? what is to c as b to a
"""

from __future__ import annotations

import collections
import itertools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jaxpt.decode.embed import Layer
from jaxpt.errors import UserError
from jaxpt.inference import corpus as corpora
from jaxpt.inference import occurrences, outside, words
from jaxpt.inference.loaded import Loaded, load
from jaxpt.inference.occurrences import Use
from jaxpt.inference.static_vectors import StaticVectors, of_run
from jaxpt.runtime.progress import track

_ANALOGY = re.compile(r"(\S+) : (\S+) :: (\S+)(?: : \?)?")
BATCH = 256
"""Number of uses that are embedded together."""
LIMIT = 10_000
"""Uses of a corpus that are compared."""


class NearestUses(NamedTuple):
    """The uses that are nearest to a query."""

    title: str
    query: Use
    query_D: np.ndarray
    others: list[Use]
    vectors_UxD: np.ndarray
    order: np.ndarray
    """Indices of the nearest ones, the nearest first."""
    cosines: np.ndarray


def neighbours(
    path: str, query: str | None = None, *, word: str | None = None, corpus: str | None = None,
    field: str | None = None, label: str | None = None, layer: str = "-1", k: int | None = None, limit: int = LIMIT,
    html: str | None = None, png: str | None = None,
) -> NearestUses | None:  # fmt: skip
    """Prints the nearest uses of a word.

    Args:
      path: RUN_DIR or HF_DIR, or a file of static vectors.
      query: a sentence with its word between asterisks; for static vectors a word, or an analogy.
      word: the word of a query, instead of asterisks.
      corpus: a file of texts (`corpus.texts`).
      field: the column of `corpus` with the text.
      label: the column of `corpus` with the label of each text.
      layer: the layer, as `words.parse_layer` reads it.
      k: number of uses to print (10), or of uses whose labels vote (3).
      limit: maximum number of uses of the corpus that are compared.
      html: a page that will be written.
      png: a picture that will be written.

    Returns:
      The nearest uses, for `jaxpt.report.points.draw`; None without a query.

    Raises:
      UserError: the arguments do not go together, the word is not there, or a file is not as it must be.
    """
    for name, file, suffix in (("--html", html, ".html"), ("--png", png, ".png")):
        if file is not None and Path(file).suffix != suffix:
            raise UserError(f"{name}: wants a file F{suffix}, got {file}")
    for name, text in (("TEXT", query), ("--word", word)):
        outside.check_utf_8(text or "", name)
    chosen = words.parse_layer(layer)
    if (static := _static(path)) is not None:
        given = {"--corpus": corpus, "--field": field, "--label": label, "--layer": None if layer == "-1" else layer}
        given["--limit"] = None if limit == LIMIT else limit
        if of_context := [option for option, value in given.items() if value is not None]:
            options = ", ".join(of_context)
            raise UserError(f"{static.path}: a static vector is the same in every sentence; leave out {options}")
        nearest = _of_static(static, query, word, k or 10)
    elif corpus is None:
        raise UserError("--corpus FILE: give the file in which uses of the word are looked for")
    elif query is None:
        if word is not None:
            raise UserError(
                "--word: is the word of a query; give a query, or mark the words of the corpus and leave it out"
            )
        _senses(path, corpus, field, label, chosen, k or 3, limit, html or png)
        return None
    else:
        query_use = _query(query, word)
        nearest = _of_corpus(path, query_use, corpora.texts(corpus, field), label, chosen, k or 10, limit, corpus)
    _print(nearest)
    return nearest


def _query(query: str, word: str | None) -> Use:
    if word is None:
        return occurrences.marked(query)
    match = next(occurrences.places(query, word), None)
    if match is None:
        raise UserError(f"--word {word}: is not in the query")
    return Use(query, *match.span())


def _of_corpus(
    path: str, query: Use, texts: corpora.Iterator[corpora.Text], label: str | None, layer: Layer, k: int, limit: int,
    corpus: str,
) -> NearestUses:  # fmt: skip
    """The nearest uses of the query's word in a corpus."""
    if layer == "all" or isinstance(layer, tuple):
        raise UserError("--layer: a query wants one layer, or mix")
    others = (use for use in occurrences.of_corpus(texts, query.word, label) if use[:2] != query[:2])
    corpus_uses = [*itertools.islice(others, limit + 1)]
    if not corpus_uses:
        raise UserError(f"{corpus}: has no use of {query.word!r}")
    is_more, corpus_uses = len(corpus_uses) > limit, corpus_uses[:limit]
    vectors = _vectors(load(path), [query, *corpus_uses], layer)
    order, cosines = occurrences.nearest(vectors[0], vectors[1:], k)
    count = f"{'the first ' * is_more}{len(corpus_uses):,} uses in {corpus}"
    where = {"mix": "mean of all layers", -1: "last layer"}.get(layer, f"layer {layer}")
    title = f"{query.word}: nearest of {count}, {where} of {path}"
    return NearestUses(title, query, vectors[0], corpus_uses, vectors[1:], order, cosines)


def _vectors(model: Loaded, word_uses: Sequence[Use], layer: Layer) -> np.ndarray:
    vectors = []
    with track("embedding", len(word_uses), "uses") as work:
        for first in range(0, len(word_uses), BATCH):
            vectors.append(occurrences.vectors(model, word_uses[first : first + BATCH], layer))
            work.add(vectors[-1].shape[-2])
    return np.concatenate(vectors, -2)


def _static(path: str) -> StaticVectors | None:
    """Loads the static vectors of a file or a run; None for any other model."""
    return StaticVectors(path) if Path(path).is_file() else of_run(path)


def _of_static(model: StaticVectors, query: str | None, word: str | None, k: int) -> NearestUses:
    """The nearest words of static vectors."""
    if query is not None and word is not None:
        raise UserError(f"{model.path}: a query and --word: give one of them")
    if query is None and word is None:
        raise UserError(f"{model.path}: wants a word, such as bank")
    if query is not None and (match := _ANALOGY.fullmatch(query.strip())):
        return _analogy(model, *match.groups(), k)
    text = word or (occurrences.marked(query).word if "*" in query else query)
    ranked = model.nearest(text, k)
    names = [Use(name, 0, len(name)) for name, _, _ in ranked]
    vectors, cosines = np.stack([vector for _, _, vector in ranked]), np.array([cosine for _, cosine, _ in ranked])
    title = f"{names[0].word}: nearest of {len(model.words):,} words in {model.path}"
    return NearestUses(title, names[0], vectors[0], names[1:], vectors[1:], np.arange(len(names) - 1), cosines[1:])


def _analogy(model: StaticVectors, a: str, b: str, c: str, k: int) -> NearestUses:
    """The words that are to c as b is to a."""
    ranked = model.analogy(a, b, c, k)
    names = [Use(name, 0, len(name)) for name, _, _ in ranked]
    vectors, cosines = np.stack([vector for _, _, vector in ranked]), np.array([cosine for _, cosine, _ in ranked])
    title = f"{a} : {b} :: {c} : ?  nearest of {len(model.words):,} words in {model.path}"
    return NearestUses(title, Use(c, 0, len(c)), model.vector(c), names, vectors, np.arange(len(names)), cosines)


# ---- what is shown --------------------------------------------------------------------------------------------------


def _print(nearest: NearestUses) -> None:
    print(nearest.title)
    has_labels = any(use.label for use in nearest.others)
    width = max(len(nearest.others[n].label) for n in nearest.order) if len(nearest.order) else 0
    for rank, (n, cosine) in enumerate(zip(nearest.order, nearest.cosines), 1):
        use = nearest.others[n]
        label = f"  {use.label:{width}}" if has_labels else ""
        print(f"{rank:3}  {cosine:6.3f}{label}  {use.marked if use.text != use.word else use.word}")


def _senses(
    path: str, corpus: str, field: str | None, label: str | None, layer: Layer, k: int, limit: int,
    picture: str | None,
) -> None:  # fmt: skip
    """Prints for each layer how often the k nearest other uses of a marked word have the label of a use."""
    if label is None:
        raise UserError("wants a query, such as 'the *bank* of the river', or --label NAME: the column with the senses")
    if picture:
        raise UserError("--html and --png show one query; give it")
    labelled = occurrences.labelled(itertools.islice(corpora.texts(corpus, field), limit + 1), label)
    is_more, labelled = len(labelled) > limit, labelled[:limit]
    groups: dict[str, list[int]] = {}
    for n, use in enumerate(labelled):
        groups.setdefault(use.word.lower(), []).append(n)
    for word, group in groups.items():
        if len({labelled[n].label for n in group}) < 2:
            raise UserError(f"{corpus}: wants two labels or more of {word!r}, and two texts or more of each")
    vectors = _vectors(load(path), labelled, layer)
    names = [str(layer)] if vectors.ndim == 2 else [*map(str, range(len(vectors)) if layer == "all" else layer)]
    first = f"the first {limit:,} uses in " if is_more else ""
    print(f"label of a use by its {k} nearest other uses (cosine), {path}, {first}{corpus}")
    print("".join(f"{name:>12}" for name in ("layer", *groups, "all")))
    majority = {w: collections.Counter(labelled[n].label for n in g).most_common(1)[0][1] for w, g in groups.items()}
    rows = {"majority": [majority[word] / len(group) for word, group in groups.items()]}
    for name, of_layer_UxD in zip(names, vectors.reshape(-1, *vectors.shape[-2:])):
        rows[name] = [
            occurrences.leave_one_out(of_layer_UxD[g], [labelled[n].label for n in g], k) for g in groups.values()
        ]
    sizes = [len(group) for group in groups.values()]
    for name, accuracies in rows.items():
        print(f"{name:>12}" + "".join(f"{a:12.1%}" for a in (*accuracies, np.average(accuracies, weights=sizes))))
