"""TF-IDF of words and characters with a linear model: labels, sets of labels and numbers of texts and pairs of texts.

    text         words: 1- and 2-grams; chars: 2- to 4-grams inside of words; both: the two side by side
    pair a, b    [a, b, a∘b, |a − b|, cos(a, b)] of these
    labels       logistic regression or linear SVM, of several labels per row one for each label
    numbers      ridge regression

N rows, F features, K outputs.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxpt.data.tasks.base import LocatedRow
from jaxpt.errors import UserError
from jaxpt.evals.simple_models.base import Candidate, SimpleModel, Splits

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix
    from sklearn.base import BaseEstimator

FEATURES = ("words", "chars", "both")
GRIDS = {"logistic": (1.0, 10.0), "svm": (0.1, 1.0), "ridge": (1.0, 3.0, 10.0)}
"""C of the classifiers (the inverse weight of the penalty), α of ridge regression (its weight)."""
_MAX_ITERATIONS = 200
_NO_CLASS = -500.0  # the output of a label without training rows


def vectorizer(features: str) -> BaseEstimator:
    """TF-IDF of texts, with 1 + log(count) for counts.

    Args:
      features: one of `FEATURES`.

    Example:
      >>> vectorizer("words").fit(["a film", "a plot"]).get_feature_names_out().tolist()
      ['a', 'a film', 'a plot', 'film', 'plot']
    """
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.pipeline import FeatureUnion

    words = TfidfVectorizer(token_pattern=r"(?u)\b\w+\b", ngram_range=(1, 2), sublinear_tf=True)
    chars = TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 4), sublinear_tf=True)
    return {"words": words, "chars": chars, "both": FeatureUnion([("words", words), ("chars", chars)])}[features]


def linear_model(name: str, strength: float, seed: int = 0) -> BaseEstimator:
    """A linear model of scikit-learn.

    Args:
      name: one of `GRIDS`.
      strength: C, of ridge regression α.
      seed: of the SVM's order of rows.
    """
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.svm import LinearSVC

    if name == "logistic":
        return LogisticRegression(C=strength, max_iter=_MAX_ITERATIONS)
    if name == "svm":
        return LinearSVC(C=strength, random_state=seed)
    return Ridge(alpha=strength, solver="sparse_cg")


def matrices(vectors: BaseEstimator, texts: dict[str, list[tuple[str, ...]]]) -> dict[str, csr_matrix]:
    """Features of texts, or of pairs of texts, of each split: {split: [N, F]}.

    Args:
      vectors: fitted here, on all texts of the training set.
      texts: {split: (text,) or (text, second text) of each row}.

    Raises:
      UserError: the training texts have no word.
    """
    columns = {split: list(zip(*of_split)) for split, of_split in texts.items()}
    try:
        vectors.fit([text for column in columns["train"] for text in column])
    except ValueError:
        raise UserError("data.path: the training texts have no words (task.text); are they empty?") from None
    return {split: of_texts(*(vectors.transform(column) for column in of_split)) for split, of_split in columns.items()}


def of_texts(first_NxF: csr_matrix, second_NxF: csr_matrix | None = None) -> csr_matrix:
    """The features of a text; of a pair [a, b, a∘b, |a − b|, cos(a, b)].

    Example:
      >>> from scipy.sparse import csr_matrix
      >>> of_texts(csr_matrix([[0.6, 0.8]]), csr_matrix([[1.0, 0.0]])).toarray().round(1).tolist()
      [[0.6, 0.8, 1.0, 0.0, 0.6, 0.0, 0.4, 0.8, 0.6]]
    """
    if second_NxF is None:
        return first_NxF
    from scipy.sparse import hstack

    product_NxF = first_NxF.multiply(second_NxF).tocsr()
    cosine_Nx1 = product_NxF.sum(1) / np.maximum(_norms(first_NxF) * _norms(second_NxF), 1e-12)
    return hstack([first_NxF, second_NxF, product_NxF, abs(first_NxF - second_NxF), np.asarray(cosine_Nx1)]).tocsr()


def _norms(x_NxF: csr_matrix) -> np.ndarray:
    """[N, 1]"""
    return np.sqrt(np.asarray(x_NxF.multiply(x_NxF).sum(1)))


def fit_outputs(model: BaseEstimator, x_NxF: csr_matrix, targets: np.ndarray, outputs: int) -> Any:
    """Fits a linear model; returns a function of features that gives outputs [N, K] as a head's.

    Args:
      model: of `linear_model`, not fitted.
      x_NxF: features of the training rows.
      targets: int [N], classes; int [N, K], 0 or 1 for each label; float [N].
      outputs: K.
    """
    if targets.dtype.kind == "f":
        model.fit(x_NxF, targets)
        return lambda x: model.predict(x)[:, None]
    if targets.ndim == 2:
        from sklearn.base import clone

        fitted = [_of_label(clone(model), x_NxF, column) for column in targets.T]
        return lambda x: np.stack([of_label(x) for of_label in fitted], 1)
    model.fit(x_NxF, targets)

    def of_classes(x: csr_matrix) -> np.ndarray:
        scores = model.decision_function(x)
        logits = np.full((x.shape[0], outputs), _NO_CLASS)
        logits[:, model.classes_] = np.stack([-scores, scores], 1) if scores.ndim == 1 else scores
        return logits

    return of_classes


def _of_label(model: BaseEstimator, x_NxF: csr_matrix, is_labelled: np.ndarray) -> Any:
    """A classifier of one label; of one that all rows have, or none, a constant."""
    if is_labelled.min() == is_labelled.max():
        return lambda x: np.full(x.shape[0], _NO_CLASS * (1 - 2 * int(is_labelled[0])))
    return model.fit(x_NxF, is_labelled).decision_function


def _candidates(features: str, name: str, splits: Splits) -> Iterator[Candidate]:
    """One for each strength of the penalty."""
    task: Any = splits.task
    x = splits.shared(features, lambda: matrices(vectorizer(features), texts_of(splits)))
    targets = np.array(splits.targets["train"], None if task.kind == "regression" else np.int64)
    if task.kind == "classification":
        check_classes(targets, task.shown)
    letter = "α" if name == "ridge" else "C"
    for strength in GRIDS[name]:
        outputs_of = fit_outputs(linear_model(name, strength, splits.seed), x["train"], targets, task.outputs)
        outputs = {split: outputs_of(x[split]) for split in splits.scored}
        yield Candidate(f"{letter}={strength:g}", x["train"].shape[1], decided(splits, outputs))


def texts_of(splits: Splits) -> dict[str, list[tuple[str, ...]]]:
    """The text, or both, of each row."""
    task: Any = splits.task

    def texts(row: LocatedRow) -> tuple[str, ...]:
        return task.texts(row.row, row.where)

    return {split: list(map(texts, rows)) for split, rows in splits.rows.items()}


def check_classes(targets: Sequence[int], labels: Sequence[str]) -> None:
    """Raises UserError where all training rows have one label."""
    if len(set(map(int, targets))) < 2:
        label = labels[int(targets[0])]
        raise UserError(f"data.path: all {len(targets):,} training rows have the label {label!r}; wants rows of two")


def decided(splits: Splits, outputs: dict[str, np.ndarray]) -> dict[str, list[Any]]:
    """The predictions that the task makes of outputs [N, K], with thresholds of the validation set on the test set."""
    task: Any = splits.task
    as_heads = {split: [[row[None]] for row in of_split] for split, of_split in outputs.items()}
    tuned = task
    if task.kind == "multi_label":
        tuned = task.with_measured(task.calibration(as_heads["validation"], splits.targets["validation"]))
    return {
        split: [(tuned if split == "test" else task).decide(row) for row in rows] for split, rows in as_heads.items()
    }


_NAMES = {"logistic": "logistic regression", "svm": "a linear SVM", "ridge": "ridge regression"}
_SUMMARIES = {"words": "TF-IDF of words", "chars": "TF-IDF of characters", "both": "TF-IDF of words and characters"}


def models(*names: str) -> tuple[SimpleModel, ...]:
    """Each of `FEATURES` with each of some linear models.

    Args:
      *names: of `GRIDS`.
    """
    return tuple(
        SimpleModel(
            f"{features}_{name}",
            f"{_SUMMARIES[features]} with {_NAMES[name]}",
            functools.partial(_candidates, features, name),
            is_quick=features != "both" and name != "logistic",
        )
        for features in FEATURES
        for name in names
    )
