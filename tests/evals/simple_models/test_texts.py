"""TF-IDF with linear models predicts what pipelines of scikit-learn predict that are written out here."""

import doctest

import numpy as np
import pytest
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import average_precision_score
from sklearn.metrics.pairwise import paired_cosine_distances
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import make_pipeline, make_union
from sklearn.svm import LinearSVC

from jaxpt.data.tasks.classification import ClassificationTask
from jaxpt.data.tasks.multi_label import MultiLabelTask
from jaxpt.data.tasks.regression import RegressionTask
from jaxpt.errors import UserError
from jaxpt.evals.simple_models import texts
from tests import fine_tuning
from tests.evals.simple_models.helpers import candidates, splits_of

TRAIN, VALIDATION, TEST = (fine_tuning.rows(count, seed) for seed, count in enumerate((90, 40, 50)))
LABELS = ("bad", "good", "odd")
for n, row in enumerate(TRAIN + VALIDATION + TEST):  # a third label that the words tell badly
    row["label"] = "odd" if n % 5 == 0 else row["label"]


def words():
    return TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, token_pattern=r"(?u)\b\w+\b")


def chars():
    return TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 4), sublinear_tf=True)


VECTORS = {"words": words, "chars": chars, "both": lambda: make_union(words(), chars())}
MODELS = {"logistic": lambda c: LogisticRegression(C=c, max_iter=200), "svm": lambda c: LinearSVC(C=c, random_state=7)}


def column(rows, name="text"):
    return [row[name] for row in rows]


def test_examples_in_docstrings():
    assert doctest.testmod(texts).failed == 0


@pytest.mark.parametrize("features", VECTORS)
@pytest.mark.parametrize("model", MODELS)
def test_labels_are_those_of_a_pipeline(features, model):
    task = ClassificationTask(labels=LABELS)
    splits = splits_of(task, seed=7, train=TRAIN, validation=VALIDATION, test=TEST)
    found = candidates(texts.models(model), f"{features}_{model}", splits)
    assert list(found) == [f"C={c:g}" for c in texts.GRIDS[model]]
    for c, candidate in zip(texts.GRIDS[model], found.values()):
        pipeline = make_pipeline(VECTORS[features](), MODELS[model](c)).fit(column(TRAIN), column(TRAIN, "label"))
        for split, rows in (("validation", VALIDATION), ("test", TEST)):
            predicted = [LABELS[n] for n in candidate.predictions[split]]
            assert predicted == pipeline.predict(column(rows)).tolist()
        assert candidate.features == pipeline[0].transform(["a"]).shape[1]


def test_of_a_pair_products_differences_and_the_cosine_are_features():
    task = RegressionTask(label="score", pair="other")
    for n, row in enumerate(TRAIN + VALIDATION):
        row["score"] += n / 100
    splits = splits_of(task, train=TRAIN, validation=VALIDATION)
    vectors = chars().fit([*column(TRAIN), *column(TRAIN, "other")])

    def features(rows):
        a, b = (vectors.transform(column(rows, name)).toarray() for name in ("text", "other"))
        return np.concatenate([a, b, a * b, abs(a - b), 1 - paired_cosine_distances(a, b)[:, None]], 1)

    found = candidates(texts.models("ridge"), "chars_ridge", splits)
    for alpha, candidate in zip(texts.GRIDS["ridge"], found.values()):
        model = Ridge(alpha=alpha).fit(features(TRAIN), column(TRAIN, "score"))  # in closed form
        np.testing.assert_allclose(candidate.predictions["validation"], model.predict(features(VALIDATION)), atol=2e-3)
    assert list(found) == ["α=1", "α=3", "α=10"]


def test_of_several_labels_each_has_a_classifier_and_a_threshold_of_the_validation_set():
    task = MultiLabelTask(label="topics", labels=("film", "long", "never"), metrics=("average_precision",))

    def topics(rows):
        return [row | {"topics": row["topics"] + ["long"] * (len(row["text"].split()) > 6)} for row in rows]

    rows = {"train": topics(TRAIN), "validation": topics(VALIDATION), "test": topics(TEST)}
    splits = splits_of(task, **rows)
    (_, candidate), *_ = candidates(texts.models("logistic"), "words_logistic", splits).items()
    y = np.array([["film" in row["topics"], "long" in row["topics"]] for row in rows["train"]], int)
    pipeline = make_pipeline(words(), OneVsRestClassifier(LogisticRegression(C=1.0, max_iter=200)))
    pipeline.fit(column(rows["train"]), y)
    expected = pipeline.predict(column(rows["validation"]))
    assert [list(p[:2]) for p in candidate.predictions["validation"]] == expected.tolist()
    assert {p[2] for split in ("validation", "test") for p in candidate.predictions[split]} == {0}
    # On the test set the thresholds count that the validation set chose, as for a fine-tuned model.
    p_validation, p_test = (pipeline.predict_proba(column(rows[split])) for split in ("validation", "test"))
    heads = [[np.log(p / (1 - p))[None]] for p in np.c_[p_validation, np.full(len(p_validation), 1e-9)]]
    thresholds = task.with_measured(task.calibration(heads, splits.targets["validation"])).thresholds
    assert thresholds[0] != 0.5
    expected = (p_test > np.array(thresholds[:2])).astype(int)
    assert [list(p[:2]) for p in candidate.predictions["test"]] == expected.tolist()
    found = task.score(candidate.predictions["test"], splits.targets["test"], "average_precision")
    y = np.array(splits.targets["test"])[:, :2]  # no row has the third label, which counts 0
    assert found["average_precision"] == pytest.approx(average_precision_score(y, p_test) * 2 / 3)


def test_one_label_alone_cannot_be_learnt():
    task = ClassificationTask(labels=("bad", "good"))
    same = [row | {"label": "good"} for row in TRAIN]
    with pytest.raises(UserError, match=r"data.path: all 90 training rows have the label 'good'; wants rows of two"):
        candidates(texts.models("svm"), "words_svm", splits_of(task, train=same, validation=same))


def test_a_label_without_training_rows_is_never_predicted():
    task = ClassificationTask(labels=("unseen", *LABELS))
    splits = splits_of(task, train=TRAIN, validation=VALIDATION)
    for candidate in candidates(texts.models("svm"), "words_svm", splits).values():
        assert 0 not in candidate.predictions["validation"]
